"""Checks of a model's weight table: the tensors that a checkpoint fills."""

from __future__ import annotations

import torch
from torch import Tensor

from rlt_core.testing.checks.check import check, expect
from rlt_core.testing.checks.graph import check_operator_count
from rlt_core.testing.checks.model import METHODS_HOLD
from rlt_core.testing.checks.promises import check_coda_without_store, check_start_keyed
from rlt_core.testing.checks.rig import Rig
from rlt_core.testing.checks.rows import check_rows_depths
from rlt_core.testing.checks.subjects import ModelSubject

_PARTS = (check_rows_depths, check_operator_count, check_coda_without_store, check_start_keyed)


@check("model", after=(*METHODS_HOLD, *_PARTS))
def check_weights_apart(model: ModelSubject) -> None:
    """Every name of the weight table has a tensor of its own: none lies over another.

    If this fails: give each checkpoint name its own slice of a packed tensor; a tied name belongs
    to tied_weights, not in the table twice.
    """
    table = model.build().weight_table()
    for number, tensor in enumerate(table.values(), 1):
        expect(isinstance(tensor, Tensor), "tensors in weight_table", type(tensor).__name__)
        tensor.fill_(number)
    for number, (name, tensor) in enumerate(table.items(), 1):
        alone = bool((tensor == number).all())
        other = list(table)[int(tensor.flatten()[-1]) - 1]
        expect(alone, f"{name} to lie apart from the others", f"filling {other} changes it")


@check("model", after=(check_weights_apart,))
def check_weights_all_read(model: ModelSubject) -> None:
    """Every weight reaches the logits or a signal: a tensor of NaN shows in one of them.

    If this fails: the tensor is loaded and never used. Leave it out of the table (and name it in
    ignored_weights), or use it.
    """
    rig = Rig(model.plan(), model.build())
    unread = []
    for name, tensor in rig.model.weight_table().items():
        kept = tensor.clone()
        tensor.fill_(torch.nan)
        unread += [] if _shows(rig) else [name]
        tensor.copy_(kept)
    expect(not unread, "every weight to reach the logits or a signal", ", ".join(unread[:8]))


@check("model", after=(check_weights_apart,))
def check_weight_names(model: ModelSubject) -> None:
    """Names tell the loader one thing: to fill, to ignore, or to compare with a tied one.

    If this fails: tied_weights maps a name that is not in the table to one that is;
    ignored_weights holds names that are in neither.
    """
    table = model.model.weight_table()
    tied, ignored = model.model.tied_weights(), model.model.ignored_weights()
    lost = sorted(target for target in tied.values() if target not in table)
    expect(not lost, "tied names to point into the table", ", ".join(lost))
    twice = sorted((set(ignored) & set(table)) | (set(ignored) & set(tied)))
    expect(not twice, "ignored names to be neither filled nor tied", ", ".join(twice))
    both = sorted(set(tied) & set(table))
    expect(not both, "tied names to stay out of the table", ", ".join(both))


def _shows(rig: Rig) -> bool:
    rows = rig.all[:3]
    before = state = rig.prelude(rows)
    for depth in range(1, min(rig.loops, 2) + 1):
        before, state = state, rig.loop(state, rows, depth)
    logits = rig.head(rig.coda(state, rows), rows)
    told = [logits, *rig.signals(state, before, rows).values()]
    return any(bool(value.isnan().any()) for value in told)
