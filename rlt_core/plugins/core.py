"""The core's own plugin: its layouts, policies, strategies and reference operators.

They go through the same hooks as everybody else's, and are refused by the same rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from rlt_core.contract.capabilities import Word
from rlt_core.contract.hookspecs import hookimpl
from rlt_core.contract.specs import (
    AttentionSpec,
    Entry,
    ExitPolicySpec,
    KVLayoutSpec,
    OpSpec,
    ParamSpec,
    PromptModeSpec,
    StrategySpec,
)
from rlt_core.plugins.kinds import OPERATORS

_DEVICES = ("cpu", "cuda")
_DTYPES = ("float32", "bfloat16")


@hookimpl
def rlt_kv_layouts() -> list[KVLayoutSpec]:
    return [
        KVLayoutSpec(
            id="last_exited",
            summary="one plane per depth; an exit copies its values to the deeper planes",
            factory="rlt_core.kv.layouts:LastExited",
            provides=frozenset(
                {Word.VARIABLE_DEPTH, Word.FULL_DEPTH_KV, Word.DEPTHS_APART, Word.PROMPT_BY_DEPTH}
            ),
        ),
        KVLayoutSpec(
            id="shared",
            summary="one plane; every loop overwrites its position, prompts run by position",
            factory="rlt_core.kv.layouts:Shared",
            provides=frozenset({Word.VARIABLE_DEPTH}),
        ),
        KVLayoutSpec(
            id="last_step",
            summary="prompts as in last_exited, then only the last plane; decoding as in shared",
            factory="rlt_core.kv.layouts:LastStep",
            provides=frozenset({Word.VARIABLE_DEPTH, Word.PROMPT_BY_DEPTH}),
        ),
    ]


@hookimpl
def rlt_exit_policies() -> list[ExitPolicySpec]:
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
        _policy(
            id="latent",
            summary="leaves when a loop moves the state by less than a part of its length",
            factory="rlt_core.exits.latent:Latent",
            signal=Word.STATE,
            param=_threshold("length of the move over that of the state to leave below", 0.03),
        ),
        _policy(
            id="cosine",
            summary="leaves when a loop hardly turns the state",
            factory="rlt_core.exits.cosine:Cosine",
            signal=Word.STATE,
            param=_threshold("1 - cosine of the turn to leave below", 1e-3),
        ),
        _policy(
            id="entropy",
            summary="leaves when the entropy of the next token settles",
            factory="rlt_core.exits.entropy:Entropy",
            signal=Word.LOGITS,
            param=_threshold("change of the entropy, in nats, to leave below", 1e-3),
        ),
        _policy(
            id="kl",
            summary="leaves when the distribution of the next token hardly moves",
            factory="rlt_core.exits.kl:KL",
            signal=Word.LOGITS,
            param=_threshold("divergence from the loop before, in nats, to leave below", 1e-3),
        ),
        _policy(
            id="minp_kl",
            summary="as kl, with all unlikely tokens alike",
            factory="rlt_core.exits.minp_kl:MinPKL",
            signal=Word.LOGITS,
            param=_threshold("divergence from the loop before, in nats, to leave below", 1e-5),
        ),
        _policy(
            id="argmax",
            summary="leaves when the likeliest token has stayed the same for some loops",
            factory="rlt_core.exits.argmax:Argmax",
            signal=Word.LOGITS,
            param=ParamSpec(
                name="exit_threshold",
                kind="int",
                summary="loops in a row that did not change the likeliest token",
                default=5,
                minimum=1,
            ),
        ),
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


def _policy(
    *, id: str, summary: str, factory: str, signal: Word, param: ParamSpec
) -> ExitPolicySpec:
    """A policy of one parameter that compares a signal from loop to loop."""
    return ExitPolicySpec(
        id=id,
        summary=summary,
        factory=factory,
        params=(param,),
        needs=frozenset({signal, Word.VARIABLE_DEPTH}),
    )


def _threshold(summary: str, default: float) -> ParamSpec:
    return ParamSpec(
        name="exit_threshold",
        kind="float",
        summary=summary,
        default=default,
        minimum=0.0,
        exclusive_minimum=True,
    )


@hookimpl
def rlt_strategies() -> list[StrategySpec]:
    # Both move rows between slots, and have rows of several depths in one launch.
    needs = frozenset({Word.ROW_COMPACTION, Word.SPLIT_PLANES})
    return [
        StrategySpec(
            id="refill",
            summary="a row that leaves is replaced at once (continuous depth batching)",
            factory="rlt_core.schedule.strategies:Refill",
            entry=Entry.ON_LEAVE,
            needs=needs,
        ),
        StrategySpec(
            id="cohort",
            summary="rows enter together and all leave before the next tokens (the baseline)",
            factory="rlt_core.schedule.strategies:Cohort",
            entry=Entry.ALL_LEFT,
            needs=needs,
        ),
    ]


@hookimpl
def rlt_prompt_modes() -> list[PromptModeSpec]:
    return [
        PromptModeSpec(
            id="chunked",
            summary="a chunk of a prompt runs all depths, mixed with decode rows",
            factory="rlt_core.schedule.prompts:Chunked",
        )
    ]


@hookimpl
def rlt_attention_backends() -> list[AttentionSpec]:
    return [
        AttentionSpec(
            id="torch",
            summary="reference attention: fixed tiles of rows by 128 keys",
            factory="rlt_core.runtime.attention_torch:TorchAttention",
            devices=_DEVICES,
            dtypes=_DTYPES,
            provides=frozenset({Word.EXACT, Word.SPLIT_PLANES, Word.STORE_FALSE, Word.HIDDEN_KEYS}),
        )
    ]


@hookimpl
def rlt_ops() -> list[OpSpec]:
    return [
        OpSpec(
            id=f"torch.{op}",
            op=op,
            factory=f"rlt_core.runtime.ops_torch:{op}",
            devices=_DEVICES,
            dtypes=_DTYPES,
            exact=True,
        )
        for op in OPERATORS
    ]


@hookimpl(trylast=True)
def rlt_choose_op(candidates: Sequence[OpSpec]) -> OpSpec | None:
    """The highest priority; of equals the first by id, so that the choice is always the same."""
    ordered = sorted(candidates, key=lambda spec: (-spec.priority, spec.id))
    return ordered[0] if ordered else None
