"""The inputs of captured ticks with prompt rows beside the decode rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from rlt_core.runtime.batch import EXIT_AT, I64, PLACE, POSITION, RULE, SLOT, TOKEN, TickInput
from rlt_core.runtime.decode_inputs import DecodeInputs
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.runtime.slots import Slots
from rlt_core.runtime.tick_inputs import TickInputs
from rlt_core.runtime.tick_rows import TickTensors
from rlt_core.runtime.tiles import Tiles, single_tiles, tile_arrays

# Cells, and prompts that end, of one captured tick.
NUM_CELLS, NUM_ENDS = 64, 32
# What such a tick reads of PromptRows.columns, the first of them.
NUM_COLUMNS = 1 + max(PLACE, SLOT, TOKEN, POSITION, EXIT_AT, RULE)


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
        self._walks = inputs.walks
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
            known_next=none,
            target=none,
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
            plain=True,
            tiles=self._tiles(rows * self._fan),
            # The lower half of an int64, where bytes go from low to high as they do on every GPU.
            num_rows=parts["rows"].view(torch.int32)[:1],
        )

    def _tiles(self, alone: int) -> Tiles:
        """Of that many decode rows and of the cells, as the host sends them: a tick makes
        nothing of them."""
        parts, tiles = self.inbox.parts, alone + self._num_tiles
        # What nobody reads is not sent; its shape counts.
        none = torch.zeros(1, 1, dtype=torch.int64, device=parts["columns"].device)
        rows = alone + self.prompt_rows
        return Tiles(
            rows=none.expand(tiles, self._lanes) if self._walks else parts["tile_rows"][:tiles],
            row_tile=parts["row_tile"][:rows],
            row_lane=none[0].expand(rows) if self._walks else parts["row_lane"][:rows],
            first=parts["tile_first"][:tiles],
            length=parts["tile_len"][:tiles],
            num_single=alone,
        )

    def _shapes(self, most: int) -> dict[str, tuple[int, ...]]:
        num, alone = self.prompt_rows, most * self._fan
        tiles, rows = alone + self._num_tiles, alone + num
        places = {"tile_rows": (tiles, self._lanes), "row_lane": (rows,)}
        return {
            **super()._shapes(most),
            "rows": (1,),
            "columns": (NUM_COLUMNS, num),
            "depth": (num,),
            "finish": (NUM_ENDS,),
            **({} if self._walks else places),
            "row_tile": (rows,),
            "tile_first": (tiles,),
            "tile_len": (tiles,),
        }

    def _fill(self, host: dict[str, I64], tick: TickInput, rows: int) -> None:
        super()._fill(host, tick, rows)
        prompt, num = tick.prompt, len(tick.prompt)
        host["rows"][0] = rows * self._fan + num
        host["columns"][:, :num] = prompt.columns[:NUM_COLUMNS]
        host["depth"][:num] = prompt.depth
        self._pad(host, num)
        ends = np.flatnonzero(prompt.last & prompt.emit)
        host["finish"][: len(ends)], host["finish"][len(ends) :] = ends, self.prompt_rows - 1
        self._put_tiles(host, rows * self._fan, prompt.cell_start)

    def _put_tiles(self, host: dict[str, I64], alone: int, cell_start: I64) -> None:
        """The tiles of that many decode rows and of the cells; padding is in the first behind the
        decode rows, which has no row of it."""
        none = alone + self.prompt_rows
        found = tile_arrays(alone, cell_start, self._lanes, none)
        names = ("tile_rows", "row_tile", "row_lane", "tile_first", "tile_len")
        for name, made, padding in zip(names, found, (none, alone, 0, 0, 0), strict=True):
            if name in host:
                host[name][: len(made)], host[name][len(made) :] = made, padding

    def _pad(self, host: dict[str, I64], num: int) -> None:
        """Rows from `num` on belong to the sentinel slot, whose home is place -1."""
        columns = host["columns"]
        columns[:, num:] = 0
        columns[SLOT, num:], columns[PLACE, num:] = self._num_slots, -1
        columns[EXIT_AT, num:] = 1
        host["depth"][num:] = 1

    def _idle_rows(self, host: dict[str, I64], rows: int) -> None:
        self._pad(host, 0)
        host["rows"][0] = rows * self._fan
        host["finish"][:] = self.prompt_rows - 1
        self._put_tiles(host, rows * self._fan, np.zeros(1, np.int64))
