"""The inputs of captured ticks with prompt rows beside the decode rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from rlt_core.runtime.batch import (
    EXIT_AT,
    FIRST_TICK,
    I64,
    KNOWN_NEXT,
    NUM_PROMPT_COLUMNS,
    PLACE,
    POSITION,
    RULE,
    SLOT,
    TARGET,
    TOKEN,
    EngineConfig,
    TickInput,
)
from rlt_core.runtime.decode_inputs import DecodeInputs
from rlt_core.runtime.slots import Slots
from rlt_core.runtime.tick_inputs import TickInputs
from rlt_core.runtime.tick_rows import TickTensors
from rlt_core.runtime.tiles import Tiles, single_tiles, tile_arrays

# Cells, and prompts that end, of one captured tick.
NUM_CELLS, NUM_ENDS = 64, 32


class MixedInputs(DecodeInputs):
    """Ticks of fewer than `prompt_rows` prompt rows: one is always padding. Padding comes last, and
    what an operator counts (OperatorSet.limited) leaves it out, so that it costs little.

    Replayed are ticks of plain prompts: what ends a prompt gives a token, and no coda layer has to
    run over the others' rows (has_coda). All rows ask the policy, those of a known depth in vain;
    where that costs a head for every row, no prompt row may ask. leaves: False for ticks of prompts
    alone in which none ends, which need neither coda nor head nor sampling.
    """

    def __init__(
        self,
        config: EngineConfig,
        slots: Slots,
        inputs: TickInputs,
        most: int,
        fan: int,
        *,
        prompt_rows: int,
        has_coda: bool,
        leaves: bool = True,
    ) -> None:
        self.prompt_rows, self._has_coda, self._lanes = prompt_rows, has_coda, inputs.lanes
        self._leaves = leaves
        self._all_ask = not inputs.peeks
        self._num_tiles = prompt_rows // inputs.lanes + NUM_CELLS
        super().__init__(config, slots, inputs, most, fan)

    def fits(self, tick: TickInput) -> bool:
        """Whether these ticks can be this one."""
        prompt = tick.prompt
        num_cells = len(prompt.cell_start) - 1
        if not 0 < len(prompt) < self.prompt_rows or num_cells > NUM_CELLS:
            return False
        last = prompt.last
        if not self._leaves and (len(tick.decode_slots) or last.any()):
            return False
        knows = (prompt.known_next[last] >= 0) | (prompt.target[last] >= 0)
        ends = np.count_nonzero(last & prompt.emit)
        return bool(
            self._may_be(tick)
            and (self._all_ask or (prompt.exit_at > 0).all())
            and not knows.any()
            and ends <= NUM_ENDS
            and not (self._has_coda and last.any())
        )

    def tensors(self, rows: int) -> TickTensors:
        """The tick of `rows` decode rows and prompt_rows prompt rows that reads the inbox."""
        made, parts = super().tensors(rows), self.inbox.parts
        columns, device = parts["columns"], parts["columns"].device
        none = torch.zeros(0, dtype=torch.int64, device=device)
        return replace(
            made,
            place=columns[PLACE],
            slot=columns[SLOT],
            token=columns[TOKEN],
            position=columns[POSITION],
            exit_at=columns[EXIT_AT],
            rule=columns[RULE],
            known_next=columns[KNOWN_NEXT],
            target=columns[TARGET],
            depth=parts["depth"],
            finish=parts["finish"],
            emit=torch.arange(NUM_ENDS, device=device),
            resume=none,
            score=none,
            asks=torch.arange(rows * self._fan + self.prompt_rows, device=device)
            if self._all_ask
            else made.asks,
            coda_tiles=single_tiles(made.num_leave + NUM_ENDS, device, self._lanes),
            has_prompt=True,
            enters=True,
            leaves=self._leaves,
        )

    def prepared(self, tensors: TickTensors) -> TickTensors:
        """With the tiles of the decode rows, which never change, and those of the cells."""
        alone, parts = tensors.tiles, self.inbox.parts
        rows = alone.num_single
        none = rows + self.prompt_rows  # made for these rows alone, they mark no row by `rows`
        tiles = Tiles(
            rows=torch.cat((torch.where(alone.rows == rows, none, alone.rows), parts["tile_rows"])),
            row_tile=torch.cat((alone.row_tile, parts["row_tile"])),
            row_lane=torch.cat((alone.row_lane, parts["row_lane"])),
            first=torch.cat((alone.first, parts["tile_first"])),
            length=torch.cat((alone.length, parts["tile_len"])),
            num_single=rows,
        )
        return replace(tensors, tiles=tiles, num_rows=parts["rows"].int())

    def _shapes(self, most: int) -> dict[str, tuple[int, ...]]:
        num, tiles = self.prompt_rows, self._num_tiles
        return {
            **super()._shapes(most),
            "rows": (1,),
            "columns": (NUM_PROMPT_COLUMNS, num),
            "depth": (num,),
            "finish": (NUM_ENDS,),
            "tile_rows": (tiles, self._lanes),
            "row_tile": (num,),
            "row_lane": (num,),
            "tile_first": (tiles,),
            "tile_len": (tiles,),
        }

    def _fill(self, host: dict[str, I64], tick: TickInput, rows: int) -> None:
        super()._fill(host, tick, rows)
        prompt, num = tick.prompt, len(tick.prompt)
        host["rows"][0] = rows * self._fan + num
        host["columns"][:, :num] = prompt.columns
        host["depth"][:num] = prompt.depth
        self._pad(host, num)
        ends = np.flatnonzero(prompt.last & prompt.emit)
        host["finish"][: len(ends)], host["finish"][len(ends) :] = ends, self.prompt_rows - 1
        alone = rows * self._fan
        none = alone + self.prompt_rows
        found = tile_arrays(alone, prompt.cell_start, self._lanes, none)
        tile_rows, row_tile, row_lane, first, length = (part[alone:] for part in found)
        tiles = len(tile_rows)
        host["tile_rows"][:tiles], host["tile_rows"][tiles:] = tile_rows, none
        host["tile_first"][:tiles], host["tile_first"][tiles:] = first, 0
        host["tile_len"][:tiles], host["tile_len"][tiles:] = length, 0
        host["row_tile"][:num], host["row_tile"][num:] = row_tile, alone
        host["row_lane"][:num], host["row_lane"][num:] = row_lane, 0

    def _pad(self, host: dict[str, I64], num: int) -> None:
        """Rows from `num` on belong to the sentinel slot, whose home is place -1."""
        columns = host["columns"]
        columns[:, num:] = 0
        columns[SLOT, num:], columns[PLACE, num:] = self._num_slots, -1
        columns[KNOWN_NEXT, num:] = columns[TARGET, num:] = -1
        columns[EXIT_AT, num:], columns[FIRST_TICK, num:] = 1, 0
        host["depth"][num:] = 1

    def _idle_rows(self, host: dict[str, I64], rows: int) -> None:
        self._pad(host, 0)
        host["rows"][0] = rows * self._fan
        host["finish"][:] = self.prompt_rows - 1
        host["tile_rows"][:] = rows * self._fan + self.prompt_rows
        for name in ("tile_first", "tile_len", "row_tile", "row_lane"):
            host[name][:] = 0
