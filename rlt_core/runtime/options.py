"""A model's own options on the device: a value per slot, and the tables that requests brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlt_core.contract.errors import PluginError
from rlt_core.contract.specs import STATE_SEED, ParamSpec
from rlt_core.runtime.option_columns import MAX_TABLES, OptionColumns, TableUpload
from rlt_core.runtime.upload import Upload

# What the tables of an option may take before any request has brought one.
ROOM_BYTES = 1 << 30
DTYPES = {"float": torch.float32, "int": torch.int64, "flag": torch.bool}


class OptionSlots:
    """The options that a model declared, for S slots and the sentinel.

    values: [S + 1] per scalar, as LoopContext.option gives it; `state_seed` is that of Slots, not
    admitted here. chains bool [S + 1]: requests that read their predecessor's state; None
    for a model that cannot. A table option has one tensor [places, positions, columns], made
    when the first request brings one.
    """

    def __init__(
        self,
        specs: Sequence[ParamSpec],
        *,
        num_slots: int,
        max_len: int,
        widths: Mapping[str, int],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        def full(kind: torch.dtype, value: float) -> Tensor:
            return torch.full((num_slots + 1,), value, dtype=kind, device=device)

        self.values = {
            spec.name: full(DTYPES[spec.kind], spec.default or 0)
            for spec in specs
            if spec.kind in DTYPES
        }
        self.table_at = {s.name: full(torch.int64, -1) for s in specs if s.kind == "table"}
        chained = any(spec.chains for spec in specs)
        self.chains = full(torch.bool, False) if chained else None
        self._widths, self._max_len = dict(widths), max_len
        self._tables: dict[str, Tensor] = {}
        self._dtype, self._upload = dtype, Upload(device)
        self._fixed = False
        # How often a table's tensor gave way to another: graphs captured before read the old one.
        self.version = 0

    def bind_seed(self, state_seed: Tensor) -> None:
        """The slots' state seeds int64 [S + 1] are the option of that name."""
        if STATE_SEED in self.values:
            self.values[STATE_SEED] = state_seed

    def admit(self, new: OptionColumns, at: Tensor) -> None:
        """Put the options of new residents of the slots `at` in place."""
        for name, column in new.scalars.items():
            self.values[name][at] = self._upload(column)
        for name, column in new.tables.items():
            self.table_at[name][at] = self._upload(column)
        if self.chains is not None:
            self.chains[at] = self._upload(new.chains)
        for upload in new.uploads:
            self._put(upload)

    def make_room(self) -> None:
        """Make the tables' tensors at once, for graphs that are captured before any request: all
        places, or those that ROOM_BYTES hold."""
        self._fixed = True
        for name, width in self._widths.items():
            places = room_places(width, self._max_len, self._dtype.itemsize)
            self._tables[name] = self._empty(places, width)

    def value(self, name: str, slot: Tensor) -> Tensor:
        """A scalar of rows in slots int64 [R]: [R]."""
        if name not in self.values:
            raise _undeclared("option", name, self.values)
        return self.values[name][slot]

    def table(self, name: str, slot: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        """(values [R, columns], given bool [R]) of rows at positions int64 [R]."""
        if name not in self.table_at:
            raise _undeclared("table", name, self.table_at)
        place = self.table_at[name][slot]
        given = place >= 0
        if name not in self._tables:
            shape = (len(slot), self._widths[name])
            return torch.zeros(shape, dtype=self._dtype, device=slot.device), given
        # A finished slot's row stands one past the end.
        rows = self._tables[name][place.clamp(min=0), position.clamp(max=self._max_len - 1)]
        return torch.where(given[:, None], rows, 0), given

    def _put(self, upload: TableUpload) -> None:
        """Write a table; the tensor doubles when its places are used up."""
        gone = upload.alone and not self._fixed
        have = None if gone else self._tables.get(upload.name)
        num = 0 if have is None else len(have)
        if upload.index >= num:
            places = max(upload.index + 1, min(2 * num, MAX_TABLES))
            grown = self._empty(places, self._widths[upload.name])
            if have is not None:
                grown[:num] = have
            self._tables[upload.name] = grown
            self.version += 1
        values = self._upload(upload.values).to(self._dtype)
        self._tables[upload.name][upload.index, : len(values)] = values

    def _empty(self, places: int, width: int) -> Tensor:
        shape = (places, self._max_len, width)
        return torch.zeros(shape, dtype=self._dtype, device=self._upload.device)


def _undeclared(kind: str, name: str, known: Mapping[str, object]) -> PluginError:
    there = ", ".join(known) or "none"
    return PluginError("model", f"asked for the {kind} '{name}'; it declares {there}")


def room_places(width: int, max_len: int, item_bytes: int) -> int:
    """How many tables of an option OptionSlots.make_room makes room for."""
    return max(1, min(MAX_TABLES, ROOM_BYTES // (max_len * width * item_bytes)))
