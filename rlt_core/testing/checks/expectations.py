"""What a model's methods must give, in shapes, dtypes and calls of attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlt_core.contract.specs import TrackSpec
from rlt_core.testing.checks.check import expect
from rlt_core.testing.checks.recorder import Attended
from rlt_core.testing.checks.rig import NUM_ROWS, Rig


def expect_state(rig: Rig, what: str, value: Any) -> None:
    """One state a row, in the model's dtype. Raises CheckFailed."""
    shape = (NUM_ROWS, rig.plan.shape.state_width)
    expect_tensor(what, value, shape, getattr(torch, rig.plan.dtype))


def expect_tensor(what: str, value: Any, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """A tensor of this shape and dtype. Raises CheckFailed."""
    fits = isinstance(value, Tensor) and tuple(value.shape) == shape and value.dtype == dtype
    wanted = f"{what} to give {list(shape)} {str(dtype).removeprefix('torch.')}"
    expect(fits, wanted, told(value))


def told(value: Any) -> str:
    """Shape and dtype of what a method gave, or its type."""
    if not isinstance(value, Tensor):
        return type(value).__name__
    return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')}"


def expect_tracks(rig: Rig, where: str, calls: list[Attended], *, per_depth: bool) -> None:
    """Every layer of the tracks of one kind attends once, with heads as declared. Raises
    CheckFailed."""
    tracks = [track for track in rig.plan.shape.tracks if track.per_depth is per_depth]
    wanted = sorted((t.name, layer) for t in tracks for layer in range(t.num_layers))
    got = sorted((call.track, call.layer) for call in calls)
    shown = ", ".join(f"{track}.{layer}" for track, layer in got) or "none"
    names = ", ".join(f"{t.name}.0 to {t.name}.{t.num_layers - 1}" for t in tracks) or "no layer"
    expect(got == wanted, f"{where} to attend {names}, each once", shown)
    kinds = {track.name: track for track in tracks}
    for call in calls:
        _expect_heads(kinds[call.track], call)


def _expect_heads(track: TrackSpec, call: Attended) -> None:
    kv = (track.num_kv_heads, track.head_dim)
    where = f"attend on {call.track}.{call.layer}"
    expect(call.k == kv and call.v == kv, f"{where} with k and v [rows, {kv[0]}, {kv[1]}]", call.k)
    fits = call.q[-1] == track.head_dim and call.q[0] % track.num_kv_heads == 0
    expect(fits, f"{where} with q heads a multiple of {kv[0]}, each {kv[1]} wide", call.q)
