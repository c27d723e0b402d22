"""What a plugin author reads. Imports no torch."""

from rlt_core.contract.capabilities import Word, promise
from rlt_core.contract.hookspecs import hookimpl
from rlt_core.contract.layouts import LayoutTables, PlaneRule
from rlt_core.contract.protocols import RopeSpec, StateSpec
from rlt_core.contract.specs import (
    AttentionSpec,
    Entry,
    ExitPolicySpec,
    Extra,
    KVLayoutSpec,
    ModelShape,
    ModelSpec,
    OpSpec,
    ParamSpec,
    PromptModeSpec,
    StrategySpec,
    TrackSpec,
)

__all__ = [
    "AttentionSpec",
    "Entry",
    "ExitPolicySpec",
    "Extra",
    "KVLayoutSpec",
    "LayoutTables",
    "ModelShape",
    "ModelSpec",
    "OpSpec",
    "ParamSpec",
    "PlaneRule",
    "PromptModeSpec",
    "RopeSpec",
    "StateSpec",
    "StrategySpec",
    "TrackSpec",
    "Word",
    "hookimpl",
    "promise",
]
