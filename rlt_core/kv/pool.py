"""Device side of the KV pool: one storage of equal pages, seen per track.

Attention reads whole pages and masks what a row may not see, so pages may hold anything: in debug
mode free pages hold NaN, and a read that is not masked shows at once.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlt_core.contract.steps import FilledTrack, FillPlanes
from rlt_core.kv.plan import SENTINEL_PAGE, KVPlan, TrackPlaces


class DevicePool:
    """storage [num_pages, page_elements]; page 0 is the sentinel, whose zeros
    idle rows write and masked reads find."""

    def __init__(
        self,
        plan: KVPlan,
        num_pages: int,
        device: torch.device | str,
        dtype: torch.dtype,
        debug: bool = False,
    ) -> None:
        if dtype.itemsize != plan.element_bytes:
            raise ValueError(f"the plan counts {plan.element_bytes} bytes an element, not {dtype}")
        self.plan, self.num_pages, self.debug = plan, num_pages, debug
        shape = (num_pages, plan.page_elements)
        self.storage = torch.zeros(shape, dtype=dtype, device=device)
        if debug:
            self.storage[SENTINEL_PAGE + 1 :] = float("nan")
        # One launch for all rows and layers, where a plugin has it (contract.steps.FillPlanes).
        self.filler: FillPlanes | None = None
        self._views = {track.name: self._make_view(track) for track in plan.tracks}
        self._filled = tuple(track for track in plan.tracks if track.per_depth)
        self._planes = {
            track.name: torch.arange(track.num_planes, device=device) for track in self._filled
        }
        self._parts = {
            track.name: torch.arange(track.parts, device=device) + track.first
            for track in self._filled
        }

    def view(self, track: str) -> Tensor:
        """[pages, unit_layers, 2 (k, v), page_size, G, d] of one track, sharing the storage."""
        return self._views[track]

    def poison(self, pages: Tensor) -> None:
        """Fill freed pages (int64 [N], never the sentinel) with NaN; nothing unless in debug."""
        if self.debug:
            self.storage[pages] = float("nan")

    def fill(
        self, tables: Tensor, slot: Tensor, position: Tensor, source: Tensor, targets: Tensor
    ) -> None:
        """Copy a position's k and v from plane `source` to its `targets`, in every per-depth
        track and layer, for many rows at once.

        tables int32 [S + 1, table_rows, pages_per_row] (the last slot all sentinel); slot,
        position, source int64 [R]; targets bool [R, planes]. A row without targets may hold any
        source and position. Shapes are static: what is not to be filled rewrites its source.
        """
        if self.filler is not None:
            for track in self._filled:
                self.filler(self.filled(track), tables, slot, position, source, targets)
            return
        size = self.plan.page_size
        index = position.div(size, rounding_mode="floor").clamp(0, tables.shape[2] - 1)
        offset = position.remainder(size)
        source = source.clamp(min=0)
        for track in self._filled:
            pool, rows = self._views[track.name], self._parts[track.name]
            planes = self._planes[track.name]
            from_row = (source.clamp(max=track.num_planes - 1) * track.parts)[:, None] + rows
            to_row = (planes * track.parts)[:, None] + rows
            from_page = tables[slot[:, None], from_row, index[:, None]].long()
            to_page = tables[slot[:, None, None], to_row, index[:, None, None]].long()
            wanted = targets[:, : track.num_planes, None]
            to_page = torch.where(wanted, to_page, from_page[:, None])
            # Separated index tensors put the rows first: [R, parts, unit_layers, 2, G, d].
            values = pool[from_page, :, :, offset[:, None]]
            pool[to_page, :, :, offset[:, None, None]] = values[:, None]

    def filled(self, track: TrackPlaces) -> FilledTrack:
        """A per-depth track as steps and `filler` take it."""
        return FilledTrack(
            pool=self._views[track.name],
            first=track.first,
            parts=track.parts,
            num_planes=track.num_planes,
        )

    def _make_view(self, track: TrackPlaces) -> Tensor:
        shape = (track.unit_layers, 2, self.plan.page_size, track.num_kv_heads, track.head_dim)
        return self.storage[:, : math.prod(shape)].view(self.num_pages, *shape)
