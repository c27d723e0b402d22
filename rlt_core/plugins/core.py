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
    PromptModeSpec,
    StrategySpec,
)
from rlt_core.plugins.core_policies import exit_policies
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
    return exit_policies()


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
