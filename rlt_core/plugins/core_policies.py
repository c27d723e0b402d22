"""The core's exit policies, as its plugin offers them."""

from __future__ import annotations

from rlt_core.contract.capabilities import Word
from rlt_core.contract.specs import ExitPolicySpec, ParamSpec


def exit_policies() -> list[ExitPolicySpec]:
    """The specs of rlt_core.exits."""
    return [
        ExitPolicySpec(
            id="fixed",
            summary="every token takes all its loops",
            factory="rlt_core.exits.fixed:Fixed",
        ),
        ExitPolicySpec(
            id="gate",
            summary="leaves when the gate's cumulated exit probability reaches a threshold",
            factory="rlt_core.exits.gate:Gate",
            params=(
                ParamSpec(
                    name="exit_threshold",
                    kind="float",
                    summary="cumulated exit probability to leave at; 1 never leaves early",
                    minimum=0.0,
                    maximum=1.0,
                ),
            ),
            needs=frozenset({Word.GATE, Word.VARIABLE_DEPTH}),
        ),
        *_comparing_policies(),
        ExitPolicySpec(
            id="trace",
            summary="replays recorded depths, one per output token",
            factory="rlt_core.exits.trace:Trace",
            params=(
                ParamSpec(
                    name="trace", kind="depths", summary="the depth of each output", minimum=1
                ),
            ),
            needs=frozenset({Word.VARIABLE_DEPTH}),
        ),
    ]


def _comparing_policies() -> list[ExitPolicySpec]:
    """Policies that compare what a row shows from loop to loop, by its state or by its logits."""
    state, logits = Word.STATE, Word.LOGITS
    divergence = "divergence from the loop before, in nats, to leave below"
    return [
        _comparing(
            "latent:Latent",
            state,
            "leaves when a loop moves the state by less than a part of its length",
            "length of the move over that of the state to leave below",
            0.03,
        ),
        _comparing(
            "cosine:Cosine",
            state,
            "leaves when a loop hardly turns the state",
            "1 - cosine of the turn to leave below",
            1e-3,
        ),
        _comparing(
            "entropy:Entropy",
            logits,
            "leaves when the entropy of the next token settles",
            "change of the entropy, in nats, to leave below",
            1e-3,
        ),
        _comparing(
            "kl:KL",
            logits,
            "leaves when the distribution of the next token hardly moves",
            divergence,
            1e-3,
        ),
        _comparing(
            "minp_kl:MinPKL", logits, "as kl, with all unlikely tokens alike", divergence, 1e-5
        ),
        _comparing(
            "argmax:Argmax",
            logits,
            "leaves when the likeliest token has stayed the same for some loops",
            "loops in a row that did not change the likeliest token",
            5,
        ),
    ]


def _comparing(
    place: str, signal: Word, summary: str, meaning: str, default: float | int
) -> ExitPolicySpec:
    """One of them, `id:Class` in exits/. A whole default is a count, from 1; another one a
    quantity above 0."""
    counts = isinstance(default, int)
    param = ParamSpec(
        name="exit_threshold",
        kind="int" if counts else "float",
        summary=meaning,
        default=default,
        minimum=1 if counts else 0.0,
        exclusive_minimum=not counts,
    )
    return ExitPolicySpec(
        id=place.partition(":")[0],
        summary=summary,
        factory=f"rlt_core.exits.{place}",
        params=(param,),
        needs=frozenset({signal, Word.VARIABLE_DEPTH}),
    )
