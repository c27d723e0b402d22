"""Every check there is, in the order in which they run, and the subject of each spec."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from rlt_core.contract.specs import Spec
from rlt_core.testing.checks import (
    config,
    graph,
    model,
    plugin,
    promises,
    rows,
    tokens,
    weights,
)
from rlt_core.testing.checks.check import Check
from rlt_core.testing.checks.subjects import Bench, PartSubject

_FILES: tuple[ModuleType, ...] = (plugin, config, model, weights, rows, graph, promises, tokens)

CHECKS: tuple[Check, ...] = tuple(
    value
    for file in _FILES
    for value in vars(file).values()
    if isinstance(value, Check) and value.run.__module__ == file.__name__
)
SUBJECTS: dict[type[Spec], Callable[[Any, Bench], PartSubject[Any]]] = {}
