"""Every check there is, in the order in which they run, and the subject of each spec."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from rlt_core.contract.specs import (
    AttentionSpec,
    ExitPolicySpec,
    KVLayoutSpec,
    OpSpec,
    PromptModeSpec,
    Spec,
    StrategySpec,
)
from rlt_core.testing.checks import (
    attention,
    config,
    graph,
    layout,
    model,
    operators,
    plugin,
    policy,
    promises,
    rows,
    strategy,
    tokens,
    weights,
)
from rlt_core.testing.checks.attention import AttentionSubject
from rlt_core.testing.checks.check import Check
from rlt_core.testing.checks.operators import OperatorSubject
from rlt_core.testing.checks.subjects import (
    Bench,
    LayoutSubject,
    PartSubject,
    PolicySubject,
    PromptModeSubject,
    StrategySubject,
)

_FILES: tuple[ModuleType, ...] = (
    *(plugin, config, model, rows, graph, promises, weights, tokens),
    *(layout, policy, strategy, operators, attention),
)

# A file also holds the checks that it imports to come after.
CHECKS: tuple[Check, ...] = tuple(
    value
    for file in _FILES
    for value in vars(file).values()
    if isinstance(value, Check) and value.run.__module__ == file.__name__
)
SUBJECTS: dict[type[Spec], Callable[[Any, Bench], PartSubject[Any]]] = {
    KVLayoutSpec: LayoutSubject,
    ExitPolicySpec: PolicySubject,
    StrategySpec: StrategySubject,
    PromptModeSpec: PromptModeSubject,
    OpSpec: OperatorSubject,
    AttentionSpec: AttentionSubject,
}
