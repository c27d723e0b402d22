"""What a model sees of one launch (protocols.LoopContext), and how its rows meet the pool."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rlt_core.contract.errors import PluginError
from rlt_core.contract.protocols import (
    KVRows,
    Operators,
    PagedRows,
    RopeSpec,
)
from rlt_core.kv.plan import CHUNK_KEYS, TrackPlaces
from rlt_core.runtime.options import OptionSlots
from rlt_core.runtime.rope import Angles, RopeTable, prepare_qk
from rlt_core.runtime.rows import Rows
from rlt_core.runtime.services import Services
from rlt_core.runtime.slots import Slots


class Launch:
    """One launch's context. `store` False turns every attend into one that writes nothing;
    `chained` gives what the method `previous` answers in a prelude, where the model has it."""

    def __init__(
        self,
        services: Services,
        rows: Rows,
        slots: Slots,
        *,
        chained: tuple[Tensor, Tensor] | None = None,
        store: bool = True,
        num_rows: Tensor | None = None,
    ) -> None:
        """num_rows: int32 [1], when only the first so many rows matter."""
        self._services, self._rows, self._slots = services, rows, slots
        self._ops = services.ops if num_rows is None else services.ops.limited(num_rows)
        self._chained, self._store = chained, store
        self._places: dict[tuple[str, int], tuple[Tensor, Tensor]] = {}
        self._page_rows = rows.page_rows
        self._kept: dict[tuple[str, int], dict[str, object]] = {}
        self._hidden: Tensor | None = None
        self._lengths = rows.key_len
        self._at: tuple[Tensor, Tensor] | None = None
        self._angles: dict[RopeSpec, Angles] = {}

    @property
    def positions(self) -> Tensor:
        """int64 [R]."""
        return self._rows.position

    @property
    def depth(self) -> Tensor:
        """int64 [R], from 1; 0 in the prelude."""
        return self._rows.depth

    @property
    def ops(self) -> Operators:
        """The chosen operators."""
        return self._ops

    def attend(
        self,
        track: str,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rope: RopeSpec | None = None,
        qk_bias: Tensor | None = None,
        qk_norm: tuple[Tensor, Tensor, float] | None = None,
        store: bool = True,
    ) -> Tensor:
        """See contract.protocols.LoopContext.attend."""
        places = self._track(track)
        if not 0 <= layer < places.num_layers:
            raise PluginError(track, f"attend got layer {layer} of {places.num_layers}")
        table = None if rope is None else self._services.rope.get(rope)
        if self._services.paged is not None:
            q, k = prepare_qk(q, k, self._rows.position, qk_bias=qk_bias, qk_norm=qk_norm)
            paged = self._paged(places, layer, store=store and self._store)
            scale = 1.0 / math.sqrt(places.head_dim)
            turn = None if table is None else table.turn
            return self._services.paged.paged(q, k, v, paged, scale, turn)
        q, k = prepare_qk(
            q,
            k,
            self._rows.position,
            table=table,
            angles=None if table is None else self._angles_of(table),
            qk_bias=qk_bias,
            qk_norm=qk_norm,
        )
        part, unit = divmod(layer, places.unit_layers)
        write_page, tile_pages = self._pages(places, part)
        rows = KVRows(
            pool=self._services.pool.view(track),
            unit=unit,
            write_page=write_page,
            write_offset=self._page_places()[1],
            tile_pages=tile_pages,
            tile_rows=self._rows.tiles.rows,
            row_tile=self._rows.tiles.row_tile,
            row_lane=self._rows.tiles.row_lane,
            key_len=self._key_len(),
            store=store and self._store,
            hidden=self._hidden_keys() if places.per_depth else None,
            kept=self._kept.setdefault((track, part), {}),
        )
        return self._services.attention(q, k, v, rows, 1.0 / math.sqrt(places.head_dim))

    def random_bits(self, purpose: int, count: int) -> Tensor:
        """int64 [R, count] holding uint32, keyed by (state seed, position, purpose)."""
        seed = self._slots.state_seed[self._rows.slot]
        return self._services.random_bits(seed, self._rows.position, purpose, count)

    def option(self, name: str) -> Tensor:
        """A scalar option that the model declared, per row: [R]."""
        return self._options(name).value(name, self._rows.slot)

    def option_table(self, name: str) -> tuple[Tensor, Tensor]:
        """(values [R, width], given bool [R]): each row's own row of its request's table."""
        return self._options(name).table(name, self._rows.slot, self._rows.position)

    def previous(self) -> tuple[Tensor, Tensor]:
        """(state [R, W], given bool [R]) of the position before, in the prelude alone."""
        if self._chained is None:
            reason = "asked for previous() outside the prelude, or without an option that chains"
            raise PluginError("model", reason)
        state, given = self._chained
        return torch.where(given[:, None], state, 0), given

    def _options(self, name: str) -> OptionSlots:
        if self._slots.options is None:
            raise PluginError("model", f"asked for the option '{name}'; it declares none")
        return self._slots.options

    def _track(self, name: str) -> TrackPlaces:
        try:
            return self._services.tracks[name]
        except KeyError:
            known = ", ".join(self._services.tracks)
            raise PluginError(
                "model", f"attends on track '{name}', which it does not declare (it has {known})"
            ) from None

    def _hidden_keys(self) -> Tensor | None:
        """bool [T, chunks, 128]: positions that never wrote the plane a tile reads; None where
        the layout hides nothing."""
        depths, rows = self._slots.key_depth, self._rows
        if depths is not None and self._hidden is None:
            first = rows.tiles.first
            keys = depths[rows.slot[first], : rows.num_chunks * CHUNK_KEYS]
            hidden = keys <= rows.read_plane[first][:, None]
            self._hidden = hidden.view(-1, rows.num_chunks, CHUNK_KEYS)
        return self._hidden

    def _paged(self, track: TrackPlaces, layer: int, *, store: bool) -> PagedRows:
        """The rows of one `attend` for a backend that walks page tables."""
        part, unit = divmod(layer, track.unit_layers)
        tables, rows, hidden = self._slots.tables, self._rows, None
        if track.per_depth:
            hidden = self._hidden_keys()
        return PagedRows(
            pool=self._services.pool.view(track.name),
            unit=unit,
            pages=tables.view(-1, tables.shape[2]),
            page_row=self._page_row(track, part),
            key_len=self._key_len(),
            num_single=rows.tiles.num_single,
            tile_first=rows.tiles.first[rows.tiles.num_single :],
            tile_len=rows.tiles.length[rows.tiles.num_single :],
            tile_rows=rows.tiles.rows.shape[1],
            store=store,
            hidden=None if hidden is None else hidden.flatten(1),
            hidden_row=rows.tiles.row_tile,
            kept=self._kept.setdefault((track.name, part), {}),
        )

    def _page_row(self, track: TrackPlaces, part: int) -> Tensor:
        """Each row's page table of a track's part, as its row among all tables: int64 [R]."""
        key = (track.name, part)
        if key not in self._page_rows:
            base = self._rows.slot * self._slots.tables.shape[1] + (track.first + part)
            if track.per_depth:
                base = base + self._rows.read_plane * track.parts
            self._page_rows[key] = base
        return self._page_rows[key]

    def _key_len(self) -> Tensor:
        """int64 [R + 1]: positions that a row may see; 0 where it does nothing."""
        if self._lengths is None:
            seen = torch.where(self._rows.live, self._rows.position + 1, 0)
            self._lengths = torch.nn.functional.pad(seen, (0, 1))
        return self._lengths

    def _angles_of(self, table: RopeTable) -> Angles:
        """What the table has at the rows' positions."""
        if table.spec not in self._angles:
            self._angles[table.spec] = table.at(self._rows.position)
        return self._angles[table.spec]

    def _page_places(self) -> tuple[Tensor, Tensor]:
        """Where the rows' positions lie: (entry of a page table, place in the page), int64 [R]."""
        if self._at is None:
            size, position = self._services.kv.page_size, self._rows.position
            # A finished slot may stand one past its last page: it writes nothing, but is indexed.
            index = position.div(size, rounding_mode="floor")
            most = self._slots.tables.shape[2] - 1
            self._at = (index.clamp(max=most), position.remainder(size))
        return self._at

    def _pages(self, track: TrackPlaces, part: int) -> tuple[Tensor, Tensor]:
        """(write page [R], pages of each tile [T, chunks, pages a chunk]) of one track part."""
        key = (track.name, part)
        if key not in self._places:
            self._places[key] = self._find_pages(track, part)
        return self._places[key]

    def _find_pages(self, track: TrackPlaces, part: int) -> tuple[Tensor, Tensor]:
        rows, first = self._rows, self._rows.tiles.first
        per_chunk = CHUNK_KEYS // self._services.kv.page_size
        base = track.first + part
        if track.per_depth:
            write_row = base + rows.write_plane * track.parts
            read_row = (base + rows.read_plane * track.parts)[first]
        else:
            write_row = torch.full_like(rows.slot, base)
            read_row = write_row[first]
        tables = self._slots.tables
        page = tables[rows.slot, write_row, self._page_places()[0]].long()
        pages = tables[rows.slot[first], read_row][:, : rows.num_chunks * per_chunk].long()
        return (
            torch.where(rows.live, page, 0),
            pages.view(-1, rows.num_chunks, per_chunk),
        )
