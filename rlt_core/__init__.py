"""rlt serves looped language models: it schedules loops, not tokens.

`LLM`, `AsyncLLM`, `SamplingParams` and `Structured` are what a user needs, the other names what a
plugin author needs. Importing this package imports no torch; these four are looked up when first
used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from rlt_core.contract import (
    AttentionSpec,
    Entry,
    ExitPolicySpec,
    Extra,
    KVLayoutSpec,
    LayoutTables,
    ModelShape,
    ModelSpec,
    OpSpec,
    ParamSpec,
    PlaneRule,
    PromptModeSpec,
    RopeSpec,
    StateSpec,
    StrategySpec,
    TrackSpec,
    Word,
    hookimpl,
    promise,
)
from rlt_core.contract.errors import RltError

if TYPE_CHECKING:
    from rlt_core.api.async_llm import AsyncLLM
    from rlt_core.api.llm import LLM
    from rlt_core.api.sampling_params import SamplingParams
    from rlt_core.api.structured import Structured

__all__ = [
    "LLM",
    "AsyncLLM",
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
    "RltError",
    "RopeSpec",
    "SamplingParams",
    "StateSpec",
    "StrategySpec",
    "Structured",
    "TrackSpec",
    "Word",
    "hookimpl",
    "promise",
]

_LAZY = {
    "AsyncLLM": "rlt_core.api.async_llm",
    "LLM": "rlt_core.api.llm",
    "SamplingParams": "rlt_core.api.sampling_params",
    "Structured": "rlt_core.api.structured",
}


def __getattr__(name: str) -> object:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'rlt_core' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
