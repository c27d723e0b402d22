"""SamplingParams and their reading against what an engine serves."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlt_core.api.defaults import GenerationDefaults, read_generation_defaults
from rlt_core.api.requests import RequestBuilder
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import CheckpointError, ConfigError, RequestError
from rlt_core.contract.specs import ParamSpec
from rlt_core.schedule.request import EngineRequest
from rlt_core.stage.messages import AddRequests, decode_request, encode
from tests.scripted_engine import LOOPS, MAX_LEN, VOCAB, report


def build(params: SamplingParams, defaults: Any = None, **changes: Any) -> EngineRequest:
    builder = RequestBuilder(report(**changes), defaults or GenerationDefaults())
    prompt = builder.tokens("prompt", [5, 6, 7])
    return builder.generate(prompt, params, range(1))[0]


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *[("temperature", value) for value in (math.nan, math.inf, -0.1, True, "1", 1e-9)],
        *[("top_p", value) for value in (0, -1, 1.1, math.nan, True, [1])],
        *[("min_p", value) for value in (-0.1, 1.5, math.nan)],
        *[("top_k", value) for value in (-2, 1.5, True, "3")],
        *[("n", value) for value in (0, -1, 1.0, True, None, 10**9)],
        *[("max_tokens", value) for value in (0, -1, 2.5, True, math.inf)],
        *[("seed", value) for value in (-1, 2**63, 0.5, True)],
        *[("repetition_penalty", value) for value in (0, -1, 1e-40, math.nan, False)],
        *[("presence_penalty", value) for value in (2.1, math.inf, True, None, "x")],
        *[("frequency_penalty", value) for value in (-2.1, math.nan)],
        *[("logprobs", value) for value in (-1, 21, True, 0.5)],
        *[("prompt_logprobs", value) for value in (-1, 21, True)],
        *[("loops", value) for value in (0, -1, True, 0.5, math.nan)],
        *[("min_loops", value) for value in (0, True, 1.0)],
        *[("max_loops", value) for value in (0, False)],
        *[("exit_threshold", value) for value in (math.nan, math.inf, True, "0.5")],
        *[("exit_policy", value) for value in (3, True)],
        *[("stop", value) for value in ("", [""], 3, [1], {"a": 1})],
        *[("stop_token_ids", value) for value in ([-1], [True], [1.5], "12", 5)],
        *[("logit_bias", value) for value in ({-1: 1}, {1: math.nan}, {1: 101}, {True: 1}, [1])],
        *[("logit_bias", dict.fromkeys(range(513), 1.0))],
        *[("trace", value) for value in ([0], [True], "11", [1.0])],
        *[("ignore_eos", value) for value in (1, None, "yes")],
        *[(name, 2**31) for name in ("max_tokens", "top_k", "loops", "min_loops", "max_loops")],
        *[("stop_token_ids", [2**70]), ("trace", [2**70]), ("logit_bias", {2**70: 1.0})],
        pytest.param("temperature", 10**400, id="temperature-10**400"),
        pytest.param("exit_threshold", -(10**400), id="exit_threshold--10**400"),
        pytest.param("seed", 10**5000, id="seed-10**5000"),
        *[("include_stop_str_in_output", 0), ("skip_special_tokens", None)],
    ],
)
def test_bad_values_name_their_field(name: str, bad: Any) -> None:
    """CASES A61, A87: a NaN, a bool or a negative value reached the sampler; a number of more
    than 64 bits ended the thread that sends requests."""
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: bad})
    assert caught.value.field == name
    assert len(str(caught.value).splitlines()) <= 4


def test_numbers_of_other_kinds_become_plain() -> None:
    """A numpy float or a subclass of int passed every check, and no message could hold it."""

    class Count(int):
        pass

    params = SamplingParams(
        max_tokens=Count(3),
        n=Count(1),
        stop_token_ids=[Count(4)],
        logit_bias={Count(5): 1.0},
        presence_penalty=np.float64(0.5),
        frequency_penalty=np.float64(0.5),
    )
    (sent,) = decode_request(encode(AddRequests(requests=[build(params)]))).requests  # type: ignore[union-attr]  # what was sent
    assert (sent.max_tokens, sent.presence_penalty, sent.frequency_penalty) == (3, 0.5, 0.5)
    assert 4 in sent.stop_ids
    assert sent.logit_bias == {5: 1.0}


def test_unknown_fields_are_refused() -> None:
    """A misspelt option was ignored in silence."""
    with pytest.raises(TypeError, match="temprature"):
        SamplingParams(temprature=0.5)  # type: ignore[call-arg]


def test_edges_are_taken() -> None:
    """CASES A61: values at the very edge of a range were refused."""
    params = SamplingParams(
        temperature=0,
        top_p=1e-9,
        top_k=2**31 - 1,
        max_tokens=2**31 - 1,
        min_p=1,
        logit_bias={0: -100, VOCAB - 1: 100},
        stop="x",
        seed=2**63 - 1,
        exit_threshold=0.0,
        min_loops=LOOPS,
        max_loops=LOOPS,
    )
    request = build(params)
    assert (request.temperature, request.top_p, request.top_k) == (0.0, 1e-9, 2**31 - 1)
    assert request.exit_params == {"exit_threshold": 0.0}
    assert (request.loops, request.min_loops, request.max_loops) == (LOOPS, LOOPS, LOOPS)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"loops": LOOPS + 1}, "loops"),
        ({"loops": 2, "min_loops": 3}, "min_loops"),
        ({"max_loops": LOOPS + 1}, "max_loops"),
        ({"min_loops": 3, "max_loops": 2}, "min_loops"),
        ({"exit_policy": "latent"}, "exit_policy"),
        ({"exit_policy": "fixed", "exit_threshold": 0.5}, "exit_threshold"),
        ({"exit_threshold": 1.5}, "exit_threshold"),
        ({"exit_threshold": -0.5}, "exit_threshold"),
        ({"exit_params": {"other": 1.0}}, "other"),
        ({"trace": [1, 2]}, "trace"),
        ({"stop_token_ids": [VOCAB]}, "stop_token_ids"),
        ({"stop_token_ids": list(range(1, 17))}, "stop_token_ids"),
        ({"logit_bias": {VOCAB: 1.0}}, "logit_bias"),
    ],
)
def test_ranges_that_need_the_model(values: dict[str, Any], field: str) -> None:
    """CASES A6, A9, A87: an impossible depth or id crashed the engine, or was ignored."""
    with pytest.raises(RequestError) as caught:
        build(SamplingParams(**values))
    assert caught.value.field == field


def test_threshold_without_a_policy_is_refused() -> None:
    """CASES A9: an exit threshold on an engine without exits changed nothing and said nothing."""
    with pytest.raises(RequestError) as caught:
        build(SamplingParams(exit_threshold=0.7), exit_policy="fixed", exit_params=())
    assert caught.value.field == "exit_threshold"
    assert "'fixed'" in caught.value.reason


def test_other_loop_counts_only_where_the_model_allows_them() -> None:
    """A loops option was taken by a model that runs one number only."""
    assert build(SamplingParams(loops=LOOPS), loops_override=False).loops == LOOPS
    with pytest.raises(RequestError, match="no other number"):
        build(SamplingParams(loops=2), loops_override=False)


def test_policy_parameters_come_from_the_checkpoint_unless_given() -> None:
    """The checkpoint's early_exit_threshold was overruled by the policy's own default."""
    assert build(SamplingParams()).exit_params == {"exit_threshold": 0.3}
    assert build(SamplingParams(), exit_defaults={}).exit_params == {"exit_threshold": 0.5}
    assert build(SamplingParams(exit_threshold=1)).exit_params == {"exit_threshold": 1.0}
    assert not build(SamplingParams(exit_policy="fixed")).use_policy


def test_trace_is_padded_and_checked() -> None:
    """A trace shorter than the answer made an index error in the engine."""
    spec = ParamSpec(name="trace", kind="depths", summary="")
    serves = {"exit_policy": "trace", "exit_params": (spec,), "exit_defaults": {}}
    request = build(SamplingParams(trace=[1, 2], max_tokens=4), **serves)
    assert request.trace is not None
    assert request.trace.tolist() == [1, 2, LOOPS, LOOPS]
    for values in ({"trace": [LOOPS + 1]}, {}):
        with pytest.raises(RequestError) as caught:
            build(SamplingParams(**values), **serves)  # type: ignore[arg-type]
        assert caught.value.field == "trace"


@pytest.mark.parametrize("bad", [[], [-1], [VOCAB], [True], [1.0], ["1"], [[1]], "12", None, 7])
def test_bad_prompts(bad: object) -> None:
    """CASES A87: an empty prompt, a nested list or an id outside the vocabulary ended a server."""
    with pytest.raises(RequestError) as caught:
        RequestBuilder(report(), GenerationDefaults()).tokens("prompt_token_ids", bad)
    assert caught.value.field == "prompt_token_ids"


def test_too_long_names_both_numbers() -> None:
    """CASES A74: a prompt longer than the pool was taken and failed later."""
    builder = RequestBuilder(report(max_len=40, token_capacity=40), GenerationDefaults())
    builder.generate(builder.tokens("prompt", [1] * 39), SamplingParams(), range(1))
    with pytest.raises(RequestError, match=r"40 .*at least 1 output.*\b40\b"):
        builder.generate(builder.tokens("prompt", [1] * 40), SamplingParams(), range(1))
    assert build(SamplingParams(max_tokens=None)).max_tokens == MAX_LEN


def test_stop_ids_hold_the_models_own() -> None:
    """ignore_eos dropped the stop ids that the request gave, or kept the model's."""
    defaults = GenerationDefaults(eos_token_ids=(9,))
    assert build(SamplingParams(stop_token_ids=[4, 0]), defaults).stop_ids == (0, 9, 4)
    ignoring = SamplingParams(stop_token_ids=[4], ignore_eos=True)
    assert build(ignoring, defaults).stop_ids == (4,)


def test_seeds_are_drawn_and_siblings_differ() -> None:
    """Requests without a seed all had the same one; siblings of n gave n equal answers."""
    drawn = {build(SamplingParams()).seed for _ in range(8)}
    assert len(drawn) == 8
    builder = RequestBuilder(report(), GenerationDefaults())
    prompt = builder.tokens("prompt", [1])
    requests = builder.generate(prompt, SamplingParams(n=3, seed=7), range(3))
    assert requests[0].seed == build(SamplingParams(seed=7)).seed == 7
    assert len({request.seed for request in requests}) == 3


def generation_config(folder: Path, **values: object) -> GenerationDefaults:
    (folder / "generation_config.json").write_text(json.dumps(values))
    return read_generation_defaults(str(folder))


def test_checkpoint_defaults_yield_to_explicit_values(tmp_path: Path) -> None:
    """CASES A24: temperature 0 in a request was overruled by the file's 0.7, unreported."""
    defaults = generation_config(tmp_path, temperature=0.7, top_k=None, eos_token_id=[3, 4])
    assert build(SamplingParams(), defaults).temperature == 0.7
    assert build(SamplingParams(temperature=0), defaults).temperature == 0.0
    assert build(SamplingParams(), defaults).stop_ids == (0, 3, 4)
    builder = RequestBuilder(report(), defaults)
    assert builder.from_checkpoint(SamplingParams()) == ("temperature",)
    assert builder.from_checkpoint(SamplingParams(temperature=0)) == ()
    assert builder.sampling(SamplingParams(top_k=-1))["top_k"] == 0


def test_do_sample_false_means_greedy(tmp_path: Path) -> None:
    """A file that asks for greedy decoding was sampled at its unused temperature."""
    defaults = generation_config(tmp_path, temperature=0.7, do_sample=False)
    assert build(SamplingParams(), defaults).temperature == 0.0


def test_damaged_generation_config_is_an_error(tmp_path: Path) -> None:
    """A value out of range in the file failed in the sampler, far from its cause."""
    with pytest.raises(ConfigError) as caught:
        generation_config(tmp_path, temperature=-1)
    assert caught.value.field == "temperature"
    (tmp_path / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointError):
        read_generation_defaults(str(tmp_path))
    assert read_generation_defaults(None) == GenerationDefaults()
