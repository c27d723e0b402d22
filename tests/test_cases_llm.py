"""Faults that others met in looped models or engines (CASES), through LLM on the real engine."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlt_core.api.llm import LLM
from rlt_core.api.outputs import RequestOutput
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import RequestError, RltError, StageError
from rlt_core.runtime.batch import TickInput
from rlt_core.runtime.executor import Executor
from rlt_core.schedule.engine import Engine
from rlt_core.stage.build import build_engine
from rlt_core.stage.config import StageConfig
from rlt_core.stage.local import LocalClient
from rlt_core.stage.stage import BuiltEngine
from tests.engines import GOLDEN
from tests.selection import mostly_slow

FOLDER = GOLDEN / "ouro_a"
VOCAB, LOOPS = 160, 4
SIZES: dict[str, Any] = {"kv_pages": 200, "max_num_seqs": 4, "max_num_tokens": 16, "page_size": 4}
PROMPT = [5, 17, 3, 44]


def start(folder: Path = FOLDER, **options: Any) -> LLM:
    return LLM(folder, **{"in_process": True, "debug": True, **SIZES, **options})


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with start() as made:
        yield made


def ids(*tokens: int) -> dict[str, object]:
    return {"prompt_token_ids": list(tokens)}


def params(**changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 4, "temperature": 0, "ignore_eos": True, **changes})


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [answer.token_ids for output in outputs for answer in output.outputs]


def copied(folder: Path, **config: object) -> Path:
    """The golden checkpoint with fields of config.json changed; ... removes one."""
    folder.mkdir()
    shutil.copy(FOLDER / "model.safetensors", folder)
    fields = json.loads((FOLDER / "config.json").read_text()) | config
    kept = {key: value for key, value in fields.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


@pytest.mark.slow
def test_bookkeeping_and_remote_code_change_no_answer(llm: LLM, tmp_path: Path) -> None:
    """CASES A3, A18, A27: remote code was run, a missing pad id crashed the embedding, and a
    merged fine-tune's auto_map named a class that is nowhere."""
    wanted = tokens(llm.generate(ids(*PROMPT), params()))
    for name, pad in (("absent", ...), ("null", None), ("eos", 0)):
        foreign = {"AutoModelForCausalLM": "modeling_peft.PeftModel"}
        folder = copied(tmp_path / name, pad_token_id=pad, auto_map=foreign)
        for file in ("modeling_ouro.py", "modeling_peft.py"):
            (folder / file).write_text("raise RuntimeError('remote code was run')\n")
        with start(folder) as other:
            assert tokens(other.generate(ids(*PROMPT), params())) == wanted, name


@pytest.mark.parametrize("bad", [0, -1, True, 2.0, LOOPS + 1])
def test_impossible_loop_counts(llm: LLM, bad: Any) -> None:
    """CASES A6: 0, a negative count, true or more loops than were trained gave fluent nonsense."""
    with pytest.raises(RequestError) as caught:
        llm.generate(ids(*PROMPT), params(loops=bad))
    assert caught.value.field == "loops"


def test_fewer_loops_only_when_asked_for(llm: LLM) -> None:
    """CASES A6: a request with its own loop count changed those beside it."""
    wanted = [llm.generate(ids(*PROMPT), params(loops=loops))[0] for loops in (None, 3)]
    asked = [params(loops=loops) for loops in (3, None, 3)]
    found = llm.generate([ids(*PROMPT)] * 3, asked)
    assert [output.exit_depths for output in found] == [[3] * 4, [LOOPS] * 4, [3] * 4]
    assert tokens(found) == tokens([wanted[1], wanted[0], wanted[1]])


def test_a_threshold_without_exits_is_refused() -> None:
    """CASES A9: an engine without exits took a threshold and ran all loops without a word."""
    with start(exit_policy="fixed") as llm:
        with pytest.raises(RequestError) as caught:
            llm.generate(ids(*PROMPT), params(exit_threshold=0.5))
        assert caught.value.field == "exit_threshold"
        assert llm.generate(ids(*PROMPT), params())[0].exit_depths == [LOOPS] * 4


def test_the_temperature_used_is_reported(llm: LLM, tmp_path: Path) -> None:
    """CASES A24: the file's temperature overruled an explicit 0, and nobody could see it."""
    folder = copied(tmp_path / "model")
    (folder / "generation_config.json").write_text('{"temperature": 0.7, "do_sample": true}')
    greedy = tokens(llm.generate(ids(*PROMPT), params(max_tokens=6)))
    with start(folder) as other:
        (drawn,) = other.generate(ids(*PROMPT), params(max_tokens=6, temperature=None, seed=1))
        (plain,) = other.generate(ids(*PROMPT), params(max_tokens=6))
    assert (drawn.sampling["temperature"], drawn.from_generation_config) == (0.7, ("temperature",))
    assert (plain.sampling["temperature"], plain.from_generation_config) == (0.0, ())
    assert tokens([plain]) == greedy != tokens([drawn])


@pytest.mark.slow
def test_sampler_corners_on_the_engine(llm: LLM) -> None:
    """CASES A61: top_p near 0 kept nothing, top_k beyond the vocabulary crashed, and temperature
    0 still drew where top_p was given."""

    def ask(**changes: Any) -> list[list[int]]:
        options = {"max_tokens": 6, "temperature": 1.0, "seed": 6, **changes}
        return tokens(llm.generate(ids(*PROMPT), params(**options)))

    greedy = ask(temperature=0)
    assert ask(top_p=1e-9) == ask(top_k=1) == ask(min_p=1.0) == greedy
    assert ask(temperature=0, top_p=0.5, top_k=3, seed=7) == greedy
    assert ask(top_k=10 * VOCAB) == ask(top_k=0) != greedy


BAD: dict[str, tuple[Any, dict[str, Any]]] = {
    "empty text": ("", {}),
    "no ids": (ids(), {}),
    "negative": (ids(5, -1), {}),
    "beyond": (ids(VOCAB), {}),
    "nested": ({"prompt_token_ids": [[5]]}, {}),
    "no prompt": (None, {}),
    "too long": (ids(*[1] * 500), {}),
    "loops": (ids(5), {"loops": 9}),
    "stop id": (ids(5), {"stop_token_ids": [VOCAB]}),
    "bias": (ids(5), {"logit_bias": {VOCAB: 1.0}}),
    "policy": (ids(5), {"exit_policy": "nosuch"}),
}


def test_bad_requests_among_good_ones(llm: LLM) -> None:
    """CASES A87: one bad request of a batch stopped the engine, or cost others their answers."""
    good = [ids(*PROMPT), ids(9), ids(*range(1, 9))]
    alone = [tokens(llm.generate(prompt, params()))[0] for prompt in good]
    bad = [(prompt, params(**changes)) for prompt, changes in BAD.values()]
    asked = [(prompt, params()) for prompt in good]
    asked[1:1], asked[-1:-1] = bad, bad
    outputs = llm.generate([prompt for prompt, _ in asked], [options for _, options in asked])
    assert tokens(outputs) == alone
    refused = [output.error for output in outputs if output.error is not None]
    assert len(refused) == 2 * len(BAD)
    assert all(isinstance(error, RequestError) for error in refused)
    assert all(len(str(error).splitlines()) <= 4 for error in refused)
    for changes in ({"n": 0}, {"logit_bias": {1: 1e9}}, {"max_tokens": 0}, {"n": 10**9}):
        with pytest.raises(RltError):
            llm.generate(good, params(**changes))
    assert tokens(llm.generate(good, params())) == alone


class Failing(Executor):
    """An executor that raises between a tick's launch and its collection, some ticks in."""

    left = 9

    def submit(self, tick: TickInput) -> None:
        super().submit(tick)
        self.left -= 1
        if not self.left:
            raise FloatingPointError("planted")


def build_failing(config: StageConfig) -> BuiltEngine:
    """The real engine with an executor that fails in the middle of a run."""
    built = build_engine(config)
    assert isinstance(built.engine, Engine)
    built.engine._executor.__class__ = Failing
    return built


@pytest.mark.parametrize("in_process", mostly_slow([True, False], True))
def test_a_fault_in_the_executor_reaches_every_waiting_call(in_process: bool) -> None:
    """CASES A99: a fault in the middle of a run left calls waiting, or only one was told."""
    factory = f"{__name__}:build_failing"
    failures: list[BaseException] = []
    with start(in_process=in_process, engine_factory=factory) as llm:

        def ask() -> None:
            try:
                # More requests than slots: some run, some wait.
                llm.generate([ids(*PROMPT)] * 6, params(max_tokens=30))
            except BaseException as error:
                failures.append(error)

        calls = [threading.Thread(target=ask, daemon=True) for _ in range(3)]
        for call in calls:
            call.start()
        for call in calls:
            call.join(30)
        assert not any(call.is_alive() for call in calls), "a call hangs"
        assert [type(error) for error in failures] == [StageError] * 3
        assert any("planted" in str(error) for error in failures)
        with pytest.raises(StageError):
            llm.generate(ids(5), params())
    if in_process:
        with start() as fresh:
            assert len(tokens(fresh.generate(ids(*PROMPT), params()))[0]) == 4


@pytest.mark.slow
def test_planned_bytes_are_allocated_ones(llm: LLM) -> None:
    """CASES A28, A100: the plan counted layers and not loops, or buffers grew outside of it."""
    client = llm._client
    assert isinstance(client, LocalClient)
    engine = client._stage._engine
    assert isinstance(engine, Engine)
    executor = engine._executor
    assert isinstance(executor, Executor)
    storage = executor.pool.storage
    # 3 layers x 4 loops, k and v of 4 heads of 16, float32
    assert llm.report.page_size == 4
    assert storage.nbytes == llm.report.num_pages * executor.kv.page_bytes
    assert executor.kv.page_bytes * executor.kv.table_rows == 4 * 3 * 4 * 2 * 4 * 16 * 4
    before = (storage.data_ptr(), _kept_bytes(executor))
    mixed = [params(exit_threshold=t, max_tokens=9) for t in (0.1, 0.5, 0.9, 1.0)] * 2
    llm.generate([ids(*range(1, 2 + 7 * i)) for i in range(8)], mixed)
    assert (executor.pool.storage.data_ptr(), _kept_bytes(executor)) == before
    with start(kv_pages=None, kv_memory=300_000) as other:
        report = other.report
        assert report.num_pages * executor.kv.page_bytes <= 300_000
        assert (report.num_pages + 1) * executor.kv.page_bytes > 300_000


def _kept_bytes(executor: Executor) -> int:
    """Bytes of the tensors that slots and pool keep."""
    slots = executor.slots
    tables = (slots.policy_state, slots.int_params, slots.float_params, slots.scalar_params)
    plain = [value for value in vars(slots).values() if hasattr(value, "nbytes")]
    kept = [*plain, *(tensor for table in tables for tensor in table.values())]
    return int(executor.pool.storage.nbytes + sum(tensor.nbytes for tensor in kept))


def test_page_sizes_that_cannot_work_name_those_that_do() -> None:
    """CASES A100: a block size that a backend cannot use failed at the first launch."""
    for size in (3, 24, 256):
        with pytest.raises(RltError) as caught:
            start(page_size=size)
        assert "1, 2, 4, 8, 16, 32, 64, 128" in str(caught.value)
