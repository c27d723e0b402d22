"""Checks of a model's methods: that they are there, what they take, what they give."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rlt_core.testing.checks.check import CheckFailed, check, expect
from rlt_core.testing.checks.config import CONFIG_HOLDS
from rlt_core.testing.checks.expectations import expect_state, expect_tensor, expect_tracks, told
from rlt_core.testing.checks.recorder import Attended, Recorder
from rlt_core.testing.checks.rig import NUM_ROWS, Rig
from rlt_core.testing.checks.subjects import ModelSubject

# Method -> the arguments that the core gives it, by position and by name.
METHODS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "prelude": (("tokens", "ctx"), ()),
    "loop": (("state", "ctx"), ()),
    "signals": (("state", "before", "ctx", "names"), ()),
    "coda": (("state", "ctx"), ("store",)),
    "head": (("state", "ctx"), ()),
    "weight_table": ((), ()),
    "ignored_weights": ((), ()),
    "tied_weights": ((), ()),
}


@check("model", after=CONFIG_HOLDS)
def check_plan_resolves(model: ModelSubject) -> None:
    """The model alone, with everything else by default, makes a plan.

    If this fails: the conflict names both sides; `rlt explain` says the same of a folder.
    """
    model.plan()


@check("model", after=(check_plan_resolves,))
def check_methods_exist(model: ModelSubject) -> None:
    """The factory's object has the five methods and the three about weights, as the core calls
    them.

    If this fails: rlt_core.contract.protocols has LoopedModel and WeightedModel with their exact
    signatures; no base class is needed.
    """
    found = model.load()
    for name, (given, named) in METHODS.items():
        method = getattr(found, name, None)
        expect(callable(method), f"a method {name}", f"{model.spec.factory} has none")
        first: tuple[str, ...] = ("self",) if inspect.isclass(found) else ()
        call = f"{name}({', '.join([*given, *(f'{n}=' for n in named)])})"
        try:
            inspect.signature(getattr(found, name)).bind(*first, *given, **dict.fromkeys(named))
        except TypeError as error:
            raise CheckFailed(f"{call} to be possible", f"{error}") from error


@check("model", after=(check_methods_exist,))
def check_model_builds(model: ModelSubject) -> None:
    """The factory takes (shape, device=, dtype=), and its weight table can be filled.

    If this fails: see protocols.ModelFactory; the table maps checkpoint names to tensors that
    exist already. With --weights the message lists names that are missing or left over.
    """
    expect(bool(model.model.weight_table()), "weights in weight_table()", "none")


@check("model", after=(check_model_builds,))
def check_prelude_shape(model: ModelSubject) -> None:
    """prelude gives one state a row, as wide as the shape says, in the model's dtype.

    If this fails: compare `state_width` of the shape with what prelude returns; state packs all
    that the loops carry along.
    """
    rig = model.rig
    expect_state(rig, "prelude", rig.prelude(whole=True))


@check("model", after=(check_prelude_shape,))
def check_loop_shape(model: ModelSubject) -> None:
    """loop gives back a state like the one it took.

    If this fails: what every loop needs of the prelude must be carried inside the state.
    """
    rig = model.rig
    state = rig.prelude(whole=True)
    for depth in range(1, rig.loops + 1):
        state = rig.loop(state, depth=depth, whole=True)
        expect_state(rig, f"loop at depth {depth}", state)


@check("model", after=(check_loop_shape,))
def check_coda_shape(model: ModelSubject) -> None:
    """coda gives a state of the same width; without layers after the loops it is the identity.

    If this fails: the head reads what coda returns; pad or keep the width.
    """
    rig = model.rig
    expect_state(rig, "coda", rig.coda(_last_state(rig), whole=True))


@check("model", after=(check_coda_shape,))
def check_head_shape(model: ModelSubject) -> None:
    """head gives finite float32 logits [rows, vocab_size].

    If this fails: end head with `.float()`; sampling and logprobs are float32 in every dtype.
    """
    rig = model.rig
    logits = rig.head(rig.coda(_last_state(rig), whole=True))
    size = rig.plan.shape.vocab_size
    expect_tensor("head", logits, (NUM_ROWS, size), torch.float32)
    expect(bool(logits.isfinite().all()), "finite logits", "NaN or infinity")


@check("model", after=(check_loop_shape,))
def check_signals_declared(model: ModelSubject) -> None:
    """Each signal that the spec provides comes when it is asked for, one value or row per row.

    If this fails: `gate` is the raw logit [rows], `state` what a policy may compare; `logits` is
    the core's own and no model gives it. A signal that is not in `provides` may not be given.
    """
    rig = model.rig
    last = _last_state(rig)
    for names in ({*rig.declared}, *({name} for name in sorted(rig.declared))):
        given = rig.signals(last, last, names=frozenset(names))
        expect(hasattr(given, "items"), "a mapping from signals", type(given).__name__)
        got = ", ".join(sorted(given)) or "nothing"
        asked = ", ".join(sorted(names))
        expect(names <= {*given} <= rig.declared, f"{asked} from signals", got)
        for name, value in given.items():
            rows = value.shape[0] if isinstance(value, Tensor) and value.ndim else None
            expect(rows == NUM_ROWS, f"{NUM_ROWS} rows of {name}", told(value))
            expect(value.is_floating_point(), f"numbers in {name}", told(value))
        if "gate" in given:
            expect_tensor("signal gate", given["gate"], (NUM_ROWS,), given["gate"].dtype)


@check("model", after=(check_coda_shape,))
def check_tracks_attended(model: ModelSubject) -> None:
    """Each layer of each track is attended exactly once a pass, with the heads that it declares.

    If this fails: TrackSpec counts layers, KV heads and head size; per_depth tracks belong to
    loop, the others to prelude or coda (has_prelude_layers, has_coda_layers).
    """
    rig = model.rig
    calls: dict[str, list[Attended]] = {}
    with Recorder(rig) as recorder:
        state = rig.prelude(whole=True)
        calls["prelude"] = recorder.take()
        for depth in range(1, rig.loops + 1):
            state = rig.loop(state, depth=depth, whole=True)
            calls["loop"] = recorder.take()
            expect_tracks(rig, "loop", calls["loop"], per_depth=True)
        rig.head(rig.coda(state, whole=True))
        calls["coda"] = recorder.take()
    shape = rig.plan.shape
    expect(
        not calls["prelude"] or shape.has_prelude_layers,
        "has_prelude_layers in the shape, as prelude attends",
        "False",
    )
    expect(
        not calls["coda"] or shape.has_coda_layers,
        "has_coda_layers in the shape, as coda attends",
        "False",
    )
    expect_tracks(rig, "prelude and coda", calls["prelude"] + calls["coda"], per_depth=False)


@check("model", after=(check_head_shape, check_signals_declared, check_tracks_attended))
def check_results_repeat(model: ModelSubject) -> None:
    """The same call gives the same bits again: a model keeps nothing between calls.

    If this fails: move what the model remembers into the state, and its random numbers to
    ctx.random_bits.
    """
    rig = model.rig
    first = rig.text
    again = Rig(rig.plan, rig.model).text
    for name in ("states", "coda", "logits"):
        same = torch.equal(getattr(first, name), getattr(again, name))
        expect(same, f"the same bits of {name} when the texts run again", "others")


@check("model", after=(check_head_shape, check_signals_declared, check_tracks_attended))
def check_arguments_untouched(model: ModelSubject) -> None:
    """No method changes a tensor that it is given.

    If this fails: use `x = x + y` for the first change of an argument; the core reads the state
    before a loop again after it.
    """
    rig = model.rig
    rig.text  # noqa: B018  # the pool holds every plane from here on
    last, tokens = rig.text.states[-1], rig.tokens.clone()
    calls: tuple[tuple[str, Tensor, Callable[[Tensor], Any]], ...] = (
        ("prelude", tokens, lambda x: rig.prelude(tokens=x)),
        ("loop", last, lambda x: rig.loop(x, depth=rig.loops)),
        ("signals", last, lambda x: rig.signals(x, x)),
        ("coda", last, lambda x: rig.coda(x)),
        ("head", last, lambda x: rig.head(x)),
    )
    for name, given, call in calls:
        passed = given.clone()
        call(passed)
        expect(torch.equal(passed, given), f"{name} to leave its argument alone", "it changed")


@check("model", after=(check_head_shape, check_signals_declared, check_tracks_attended))
def check_bfloat16_runs(model: ModelSubject) -> None:
    """The model runs in bfloat16 as well: states keep the dtype, logits are float32 and finite.

    If this fails: a constant or a table in float32 has promoted the state; cast it to the dtype
    that the factory got.
    """
    rig = Rig(model.plan(dtype="bfloat16"), model.build("bfloat16"))
    state = rig.prelude(whole=True)
    expect_state(rig, "prelude in bfloat16", state)
    state = rig.loop(state, depth=1, whole=True)
    expect_state(rig, "loop in bfloat16", state)
    state = rig.coda(state, whole=True)
    expect_state(rig, "coda in bfloat16", state)
    logits = rig.head(state)
    shape = (NUM_ROWS, rig.plan.shape.vocab_size)
    expect_tensor("head in bfloat16", logits, shape, torch.float32)
    expect(bool(logits.isfinite().all()), "finite logits in bfloat16", "NaN or infinity")


# What comes after has a model whose methods can be called at will.
METHODS_HOLD = (check_results_repeat, check_arguments_untouched, check_bfloat16_runs)


def _last_state(rig: Rig) -> Tensor:
    state: Tensor = rig.prelude(whole=True)
    for depth in range(1, rig.loops + 1):
        state = rig.loop(state, depth=depth, whole=True)
    return state
