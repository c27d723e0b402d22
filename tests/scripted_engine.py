"""An engine without a model: scripted tokens behind the interface of schedule.engine.Engine.

A request's answer is its own prompt, over and over (so that a test says what comes out), at depth
1 + index % loops. Special first tokens make it slow or broken on purpose.
"""

from __future__ import annotations

import os
import time

import numpy as np

from rlt_core.contract.errors import ConflictError, RequestError
from rlt_core.contract.specs import ParamSpec
from rlt_core.runtime.batch import I32, I64, logprob_bits
from rlt_core.schedule.request import ABORT, LENGTH, RUNNING, STOP, EngineRequest, Events
from rlt_core.schedule.stats import EngineStats
from rlt_core.stage.config import StageConfig
from rlt_core.stage.messages import StageReport
from rlt_core.stage.stage import BuiltEngine

VOCAB, LOOPS, MAX_LEN = 300, 4, 4096
CRASH, DIE, REFUSE, SLOW, BROKEN, HANG = 290, 291, 292, 293, 294, 295  # first token of a prompt
STARTS_FILE = "RLT_TEST_STARTS"  # names the file that `build_when_allowed` looks at
THRESHOLD = ParamSpec(
    name="exit_threshold", kind="float", summary="", minimum=0.0, maximum=1.0, default=0.5
)


def report(**changes: object) -> StageReport:
    """What the scripted engine says it serves."""
    values: dict[str, object] = {
        "model": "scripted",
        "vocab_size": VOCAB,
        "loops": LOOPS,
        "max_depth": LOOPS,
        "max_len": MAX_LEN,
        "token_capacity": 8192,
        "num_slots": 8,
        "num_pages": 64,
        "page_size": 16,
        "max_logprobs": 20,
        "eos_token_ids": (0,),
        "exit_policy": "gate",
        "exit_mode": "skip",
        "exit_params": (THRESHOLD,),
        "exit_defaults": {"exit_threshold": 0.3},
        "loops_override": True,
        "kv_layout": "last_exited",
        "strategy": "refill",
        "prompts": "chunked",
        "device": "cpu",
        "dtype": "float32",
        "notes": ("scripted",),
    }
    return StageReport(**{**values, **changes})  # type: ignore[arg-type]


def build(config: StageConfig) -> BuiltEngine:
    """Named by `engine_factory` in tests."""
    return BuiltEngine(engine=ScriptedEngine(), report=report())


def build_trace(config: StageConfig) -> BuiltEngine:
    """An engine whose policy replays depths."""
    spec = ParamSpec(name="trace", kind="depths", summary="")
    served = report(exit_policy="trace", exit_params=(spec,), exit_defaults={})
    return BuiltEngine(engine=ScriptedEngine(), report=served)


def build_when_allowed(config: StageConfig) -> BuiltEngine:
    """Starts only while the file that the environment names is there."""
    if not os.path.exists(os.environ[STARTS_FILE]):
        raise ConflictError([], ["put the file back"])
    return build(config)


def build_refused(config: StageConfig) -> BuiltEngine:
    """Start-up ends with an error the user can act on."""
    raise ConflictError([], ["try something else"])


def build_broken(config: StageConfig) -> BuiltEngine:
    """Start-up ends with a fault."""
    raise ZeroDivisionError("planted")


class ScriptedEngine:
    """Answers each request with its own prompt again and again."""

    def __init__(self) -> None:
        self._running: dict[int, tuple[EngineRequest, int]] = {}
        self._aborted: list[int] = []
        self._tick = 0
        self.closed = False

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._aborted)

    def add(self, request: EngineRequest) -> None:
        if request.prompt[0] == REFUSE:
            raise RequestError("prompt", "refused by the engine")
        self._running[request.request_id] = (request, 0)

    def abort(self, request_id: int) -> None:
        if self._running.pop(request_id, None) is not None:
            self._aborted.append(request_id)

    def put_masks(self, request_id: I64, index: I64, words: I32) -> None:
        """Its tokens are scripted: no mask changes them."""

    def step(self) -> Events:
        self._tick += 1
        rows: list[tuple[int, int, int, int]] = [(i, -1, 0, ABORT) for i in self._aborted]
        self._aborted, errors = [], {}
        scores = [r for r, _ in self._running.values() if _scored(r)]
        for request, count in list(self._running.values()):
            rows.append(self._advance(request, count))
            if request.prompt[0] == BROKEN:
                errors[request.request_id] = "the logits were not finite"
        return _events(self._tick, rows, errors, [r for r in scores if self._first(r)])

    def stats(self) -> EngineStats:
        return EngineStats(slots_used=len(self._running), num_slots=8, ticks=self._tick)

    def close(self) -> None:
        self.closed = True

    def _first(self, request: EngineRequest) -> bool:
        _, count = self._running.get(request.request_id, (None, 1))
        return count <= 1

    def _advance(self, request: EngineRequest, count: int) -> tuple[int, int, int, int]:
        first = request.prompt[0]
        if first == CRASH:
            raise ValueError("planted in a tick")
        if first == DIE:
            os._exit(7)
        if first == SLOW:
            time.sleep(0.05)
        if first == HANG:
            time.sleep(60)
        if first == BROKEN:
            del self._running[request.request_id]
            return request.request_id, -1, 0, 3
        if request.kind == "score":
            del self._running[request.request_id]
            return request.request_id, -1, 0, LENGTH
        token = int(request.prompt[count % len(request.prompt)])
        finish = STOP if token in request.stop_ids else RUNNING
        if finish == RUNNING and count + 1 >= request.max_tokens:
            finish = LENGTH
        self._running[request.request_id] = (request, count + 1)
        if finish != RUNNING:
            del self._running[request.request_id]
        return request.request_id, token, 1 + count % request.loops, finish


def _scored(request: EngineRequest) -> bool:
    return request.kind == "score" or request.prompt_logprobs is not None


def _events(
    tick: int,
    rows: list[tuple[int, int, int, int]],
    errors: dict[int, str],
    scored: list[EngineRequest],
) -> Events:
    table = np.asarray(rows, np.int64).reshape(-1, 4)
    count = len(table)
    positions = [(r.request_id, p) for r in scored for p in range(len(r.prompt) - 1)]
    places = np.asarray(positions, np.int64).reshape(-1, 2)
    return Events(
        tick=tick,
        columns=np.stack(
            (
                *table.T[:3],
                np.ones(count, np.int64),
                table[:, 3],
                logprob_bits(np.full(count, -0.5, np.float32)),
            )
        ),
        top_ids=np.stack([table[:, 1], table[:, 1] + 1], 1),
        top_logprobs=np.tile(np.asarray([-0.5, -1.5], np.float32), (count, 1)),
        score_request_id=places[:, 0],
        score_position=places[:, 1],
        score_logprob=(-0.25 * (1 + places[:, 1])).astype(np.float32),
        score_rank=1 + places[:, 1],
        score_depth=1 + places[:, 1] % LOOPS,
        score_top_ids=np.stack([places[:, 1], places[:, 1] + 1], 1),
        score_top_logprobs=np.tile(np.asarray([-0.5, -1.5], np.float32), (len(places), 1)),
        errors=errors,
    )
