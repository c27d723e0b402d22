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

_DTYPES = ("float32", "bfloat16")
_ATTENDS = frozenset({Word.SPLIT_PLANES, Word.STORE_FALSE, Word.HIDDEN_KEYS})


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


@hookimpl
def rlt_strategies() -> list[StrategySpec]:
    # Both move rows between slots, and have rows of several depths in one launch.
    needs = frozenset({Word.ROW_COMPACTION, Word.SPLIT_PLANES})
    ahead = {Word.DEPTHS_APART, Word.STORE_FALSE, Word.LOGITS}
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
        StrategySpec(
            id="pipeline",
            summary="consecutive tokens of a request at successive depths, guessed and checked",
            factory="rlt_core.schedule.strategies:Refill",
            entry=Entry.ON_GUESS,
            needs=needs | ahead,
        ),
        StrategySpec(
            id="adaptive",
            summary="pipeline for requests whose guesses hold, while rows ahead are cheap",
            factory="rlt_core.schedule.strategies:Adaptive",
            entry=Entry.ON_GUESS,
            adapts=True,
            needs=needs | ahead,
        ),
    ]


@hookimpl
def rlt_prompt_modes() -> list[PromptModeSpec]:
    return [
        PromptModeSpec(
            id="chunked",
            summary="a chunk of a prompt runs all depths, mixed with decode rows",
            factory="rlt_core.schedule.prompts:Chunked",
        ),
        PromptModeSpec(
            id="wavefront",
            summary="a chunk follows the one before it a loop behind, so that a prompt waits less",
            factory="rlt_core.schedule.prompts:Wavefront",
            overlaps=True,
            needs=frozenset({Word.PROMPT_BY_DEPTH, Word.SPLIT_PLANES}),
        ),
    ]


@hookimpl
def rlt_attention_backends() -> list[AttentionSpec]:
    return [
        AttentionSpec(
            id="torch",
            summary="reference attention: fixed tiles of rows by 128 keys",
            factory="rlt_core.runtime.attention_torch:TorchAttention",
            devices=("cpu",),
            dtypes=_DTYPES,
            provides=_ATTENDS | {Word.EXACT},
        ),
        # The same code; on a GPU the library's products change with the rows beside a row.
        AttentionSpec(
            id="torch_cuda",
            summary="reference attention on a GPU, slow and not exact",
            factory="rlt_core.runtime.attention_torch:TorchAttention",
            devices=("cuda",),
            dtypes=_DTYPES,
            provides=_ATTENDS,
        ),
    ]


@hookimpl
def rlt_ops() -> list[OpSpec]:
    # On a GPU the same functions are cuBLAS's products and reductions by row count: not exact.
    return [
        OpSpec(
            id=f"{name}.{op}",
            op=op,
            factory=f"rlt_core.runtime.ops_torch:{op}",
            devices=(device,),
            dtypes=_DTYPES,
            exact=device == "cpu",
        )
        for name, device in (("torch", "cpu"), ("torch_cuda", "cuda"))
        for op in OPERATORS
    ]


@hookimpl(trylast=True)
def rlt_choose_op(candidates: Sequence[OpSpec]) -> OpSpec | None:
    """The highest priority; of equals the first by id, so that the choice is always the same."""
    ordered = sorted(candidates, key=lambda spec: (-spec.priority, spec.id))
    return ordered[0] if ordered else None
