"""The kinds of things that plugins declare: hook, spec type and the words for messages."""

from __future__ import annotations

from dataclasses import dataclass

from rlt_core.contract.capabilities import Word
from rlt_core.contract.specs import (
    AttentionSpec,
    ExitPolicySpec,
    KVLayoutSpec,
    ModelSpec,
    OpSpec,
    PromptModeSpec,
    Spec,
    StrategySpec,
)

# The specs that stand for a part of a choice; operators are chosen one by one below them.
Part = ModelSpec | KVLayoutSpec | ExitPolicySpec | StrategySpec | PromptModeSpec | AttentionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind: `hook` declares it, `label` names it in messages, `plural` in listings."""

    hook: str
    spec: type[Spec]
    label: str
    plural: str


KINDS = (
    Kind(hook="rlt_models", spec=ModelSpec, label="model", plural="models"),
    Kind(hook="rlt_kv_layouts", spec=KVLayoutSpec, label="KV layout", plural="kv_layouts"),
    Kind(
        hook="rlt_exit_policies", spec=ExitPolicySpec, label="exit policy", plural="exit_policies"
    ),
    Kind(hook="rlt_strategies", spec=StrategySpec, label="strategy", plural="strategies"),
    Kind(hook="rlt_prompt_modes", spec=PromptModeSpec, label="prompt mode", plural="prompt_modes"),
    Kind(
        hook="rlt_attention_backends",
        spec=AttentionSpec,
        label="attention backend",
        plural="attention_backends",
    ),
    Kind(hook="rlt_ops", spec=OpSpec, label="operator", plural="ops"),
)

# The operators that every plan has one candidate for (protocols.Operators).
OPERATORS = (
    "embed",
    "linear",
    "rms_norm",
    "add_rms_norm",
    "norm_add_norm",
    "add_norm",
    "silu_mul",
    "linear_silu_mul",
)
# Those that a plan may do without: the runtime has its own way (contract.steps and
# contract.lane_steps).
OPTIONAL_OPERATORS = ("steps", "lane_steps", "fill", "random_bits")

# Which side keeps a promise. A word that a plugin coined may be kept by any side.
KEEPERS: dict[str, type[Spec]] = {
    Word.GATE: ModelSpec,
    Word.STATE: ModelSpec,
    Word.LOGITS: ModelSpec,
    Word.ROW_COMPACTION: ModelSpec,
    Word.LOOPS_OVERRIDE: ModelSpec,
    Word.KEYED_STATE: ModelSpec,
    Word.GRAPH_SAFE: ModelSpec,
    Word.VARIABLE_DEPTH: KVLayoutSpec,
    Word.FULL_DEPTH_KV: KVLayoutSpec,
    Word.DEPTHS_APART: KVLayoutSpec,
    Word.PROMPT_BY_DEPTH: KVLayoutSpec,
    Word.EXACT: AttentionSpec,
    Word.SPLIT_PLANES: AttentionSpec,
    Word.STORE_FALSE: AttentionSpec,
    Word.HIDDEN_KEYS: AttentionSpec,
    Word.NUM_ROWS: OpSpec,
}


def kind_of(spec: Spec | type[Spec]) -> Kind:
    """The kind of a spec, or of a spec type."""
    wanted = spec if isinstance(spec, type) else type(spec)
    return next(kind for kind in KINDS if kind.spec is wanted)
