"""Engine options as Python callers write them: what is taken, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.engine_options import stage_config
from rlt_core.api.llm import LLM
from rlt_core.contract.errors import OptionError
from tests.app_kit import FAST, run, scripted

FACTORY = "tests.scripted_engine:build"
COUNTS = (
    *("max_num_seqs", "max_num_tokens", "chunk_size", "max_depth", "max_model_len", "page_size"),
    *("kv_memory", "kv_pages", "swap_memory", "random_weights", "draft_depth"),
)
FLAGS = ("prefix_cache", "exact", "graphs", "debug")
NAMES = (
    *("dtype", "device", "kv_layout", "exit_policy", "strategy", "prompts", "attention"),
    "engine_factory",
)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[
            (name, value)
            for name in COUNTS
            for value in (-1, True, 1.5, "4", 2**70, np.bool_(True))
        ],
        *[(name, 0) for name in COUNTS[:8]],
        *[(name, value) for name in FLAGS for value in ("x", 1, 0)],
        *[(name, value) for name in NAMES for value in (5, "", True, b"cpu")],
        *[("ops", value) for value in ("x", 5, {1: "a"}, {"linear": None}, [("a", "b")])],
        *[("ignore_config", value) for value in (5, [5], None)],
        *[("exit_mode", value) for value in ("half", 5, None)],
        *[(name, None) for name in ("device", "exact", "debug")],
        *[("model", value) for value in (5, "", b"folder", True)],
        *[("tokenizer", value) for value in (5, "", object(), ["a"])],
        ("in_process", "x"),
    ],
)
@pytest.mark.parametrize("owner", [LLM, AsyncLLM])
def test_wrong_values_name_their_option(owner: Any, name: str, value: Any) -> None:
    """CASES A100: a value of another kind was taken as true, or ended in a traceback of rlt."""
    options = {"engine_factory": FACTORY, "in_process": True, name: value}
    with pytest.raises(OptionError) as caught:
        owner(**options)
    assert caught.value.option == name
    assert caught.value.value is value
    assert len(str(caught.value).splitlines()) <= 4


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"dtype": torch.bfloat16}, {"dtype": "bfloat16"}),
        ({"device": torch.device("cpu")}, {"device": "cpu"}),
        ({"device": torch.device("cuda", 1)}, {"device": "cuda:1"}),
        ({"max_num_seqs": np.int64(4)}, {"num_slots": 4}),
        ({"exact": np.bool_(False)}, {"exact": False}),
        ({"swap_memory": 0, "draft_depth": 0}, {"swap_memory": 0, "draft_depth": 0}),
        ({"kv_memory": 1 << 40, "random_weights": 0}, {"kv_memory": 1 << 40, "random_weights": 0}),
        ({"ops": None}, {"ops": {}}),
        ({"ignore_config": "one"}, {"ignore_config": ("one",)}),
        ({"ignore_config": (name for name in "ab")}, {"ignore_config": ("a", "b")}),
        ({"model": Path("folder")}, {"model_path": "folder"}),
    ],
)
def test_likely_values_become_plain(given: dict[str, Any], kept: dict[str, Any]) -> None:
    """torch's dtypes and devices and numpy's numbers were refused, though it is clear what is
    meant."""
    config = stage_config(**given)
    found = {name: getattr(config, name) for name in kept}
    assert found == kept
    assert [type(value) for value in found.values()] == [type(value) for value in kept.values()]


@pytest.mark.parametrize("owner", [LLM, AsyncLLM])
def test_unknown_options_name_the_class(owner: Any) -> None:
    """It said that `stage_config()` got an unexpected keyword, which nobody had called."""
    with pytest.raises(
        TypeError, match=rf"{owner.__name__} has no option 'max_num_sequences' "
    ) as e:
        owner(max_num_sequences=4)
    assert "did you mean max_num_seqs" in str(e.value)
    with pytest.raises(
        TypeError, match=rf"{owner.__name__} has no option 'zzz'\nit has .*chunk_size"
    ):
        owner(zzz=4)
    near = {LLM: "tokenizer", AsyncLLM: "max_waiting"}[owner]
    with pytest.raises(TypeError, match=f"did you mean {near}"):
        owner(**{near + "s": 4})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("max_waiting", value) for value in ("x", -1, True, 1.5, 2**70)],
        *[("hang_s", value) for value in ("x", 0, -1, True, float("nan"))],
        *[("restart", value) for value in ("x", None, 1)],
    ],
)
def test_options_of_asyncllm_alone(name: str, value: Any) -> None:
    """A TypeError of a comparison, or a thread that ended in one later."""
    with pytest.raises(OptionError) as caught:
        AsyncLLM(engine_factory=FACTORY, in_process=True, **{name: value})
    assert caught.value.option == name


def test_a_deadline_is_a_number() -> None:
    """A deadline of another kind was a TypeError of the event loop, after the request was taken."""

    async def scene() -> None:
        async with scripted() as llm:
            wrong: list[Any] = ["x", True, float("nan")]
            for value in wrong:
                for call in (llm.generate, llm.score):
                    with pytest.raises(OptionError, match="deadline"):
                        await call(FAST, deadline=value)
            assert (await llm.generate(FAST, deadline=np.float32(9))).finished
            assert llm.num_open == 0

    run(scene())
