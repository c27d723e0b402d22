"""Checks that a model's methods can be captured in a graph (GRAPH_SAFE)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rlt_core.contract.capabilities import Word
from rlt_core.testing.checks.check import check, expect
from rlt_core.testing.checks.host_reads import NoHostReads
from rlt_core.testing.checks.model import METHODS_HOLD
from rlt_core.testing.checks.rig import Rig
from rlt_core.testing.checks.rows import check_rows_depths
from rlt_core.testing.checks.subjects import ModelSubject

_RUNS = (*METHODS_HOLD, check_rows_depths)


@check("model", word=Word.GRAPH_SAFE, after=_RUNS)
def check_nothing_read_back(model: ModelSubject) -> None:
    """No method reads a value back to the host, and no shape depends on data.

    If this fails: `.item()`, `if tensor:`, `nonzero` and indexing with a mask stall the device;
    torch.where over all rows does the same work without.
    """
    _count(model.rig, model.rig.all)


@check("model", word=Word.GRAPH_SAFE, after=(check_nothing_read_back,))
def check_operator_count(model: ModelSubject) -> None:
    """The methods run as many operators for 8 rows as for 256: nothing loops over rows in Python.

    If this fails: replace the Python loop by one tensor operation over all rows.
    """
    rig = model.rig
    few, many = _count(rig, rig.all[:8]), _count(rig, rig.all)
    for name in many:
        told = f"{few[name]} and {many[name]}"
        expect(few[name] == many[name], f"as many operators in {name} for 8 rows as for 256", told)


def _count(rig: Rig, rows: Tensor) -> dict[str, int]:
    """Operators of each method on these rows; a host read fails the check."""
    text = rig.text
    last, before, coda = text.states[-1, rows], text.states[-2, rows], text.coda[rows]
    ctx, tokens = rig.context(rows, rig.loops), rig.tokens[rows]
    first = rig.context(rows, 0)
    calls: dict[str, Callable[[], object]] = {
        "prelude": lambda: rig.model.prelude(tokens, first),
        "loop": lambda: rig.model.loop(before, ctx),
        "signals": lambda: rig.model.signals(last, before, ctx, rig.declared),
        "coda": lambda: rig.model.coda(last, ctx, store=True),
        "head": lambda: rig.model.head(coda, ctx),
    }
    counts = {}
    for name, call in calls.items():
        with torch.inference_mode(), NoHostReads(name) as mode:
            call()
        counts[name] = mode.count
    return counts
