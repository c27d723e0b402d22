"""Rows that want a scarce place get one, the longest-waiting first; static shapes throughout."""

from __future__ import annotations

import torch
from torch import Tensor


def compact(want: Tensor, since: Tensor, places: int) -> Tensor:
    """Row numbers int64 [places] of the rows that want a place, R where a place stays empty.

    want bool [R]; since int64 [R]: the tick a row began to wait. Oldest first, then by row.
    """
    rows = want.shape[0]
    if places >= rows:
        return torch.where(want, torch.arange(rows, device=want.device), rows)
    never = torch.iinfo(torch.int64).max
    order = torch.argsort(torch.where(want, since, never), stable=True)[:places]
    return torch.where(want[order], order, rows)


def pick(values: Tensor, index: Tensor, otherwise: int) -> Tensor:
    """values[index] int64 [places], `otherwise` where index is one past the end."""
    padded = torch.nn.functional.pad(values, (0, 1), value=otherwise)
    return padded[index]
