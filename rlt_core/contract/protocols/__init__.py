"""What the objects behind the factories look like. No base class: fit the shape."""

from rlt_core.contract.layouts import KVLayout
from rlt_core.contract.protocols.attention import Attention, KVRows, PagedAttention, PagedRows, Turn
from rlt_core.contract.protocols.exit_policy import ExitPolicy, StateSpec
from rlt_core.contract.protocols.looped_model import (
    LoopContext,
    LoopedModel,
    ModelFactory,
    Operators,
    RopeSpec,
    WeightedModel,
)
from rlt_core.contract.protocols.schedule import (
    PromptMode,
    PromptView,
    Strategy,
    StrategyPlan,
    StrategyView,
)

__all__ = [
    "Attention",
    "ExitPolicy",
    "KVLayout",
    "KVRows",
    "LoopContext",
    "LoopedModel",
    "ModelFactory",
    "Operators",
    "PagedAttention",
    "PagedRows",
    "PromptMode",
    "PromptView",
    "RopeSpec",
    "StateSpec",
    "Strategy",
    "StrategyPlan",
    "StrategyView",
    "Turn",
    "WeightedModel",
]
