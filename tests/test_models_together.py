"""Three models at once, each on its own engine in one process: nothing is shared between them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from safetensors.numpy import load_file

from rlt_core import LLM, SamplingParams
from tests.engines import GOLDEN

# Checkpoint -> the record of greedy tokens, the loops and the options that it was made with.
RECORDS: dict[str, tuple[str, int | None, dict[str, object]]] = {
    "ouro_a": ("gen", None, {}),
    "nanbeige_b": ("gen", None, {}),
    "huginn_a": ("gen_zero", 4, {"state_scale": 0.0}),
    "huginn_b": ("gen_warm", 4, {"state_scale": 0.0, "warm_start": True}),
}
PROMPTS = ("p0", "p1", "p2")
RECORDED, OUTPUTS = 24, 8


def _answers(name: str, in_process: bool) -> bool:
    """Whether all prompts of a checkpoint, together, give the first recorded tokens."""
    record, loops, extra = RECORDS[name]
    golden = load_file(GOLDEN / name / "expected.safetensors")
    prompts = [{"prompt_token_ids": golden[f"{p}.ids"].ravel().tolist()} for p in PROMPTS]
    params = SamplingParams(
        temperature=0, max_tokens=OUTPUTS, ignore_eos=True, loops=loops, extra=extra
    )
    options = {"dtype": "float32", "max_model_len": 96, "chunk_size": 16, "in_process": in_process}
    with LLM(GOLDEN / name, **options) as llm:  # type: ignore[arg-type]  # mixed values
        outputs = llm.generate(prompts, params)
    found = [output.outputs[0].token_ids for output in outputs]
    wanted = [golden[f"{p}.{record}.ids"].ravel()[-RECORDED:].tolist() for p in PROMPTS]
    return found == [tokens[:OUTPUTS] for tokens in wanted]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("in_process", [True, False], ids=["in-process", "stages"])
def test_three_models_answer_at_once(in_process: bool) -> None:
    """Guards against state in a module: each engine's tables, tracks and options are its own."""
    with ThreadPoolExecutor(len(RECORDS)) as threads:
        right = dict(zip(RECORDS, threads.map(_answers, RECORDS, [in_process] * 4), strict=True))
    assert right == dict.fromkeys(RECORDS, True)
