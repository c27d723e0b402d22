"""From what the host sends for one tick to the tensors of its program."""

from __future__ import annotations

import numpy as np
import torch

from rlt_core.runtime.batch import (
    EXIT_AT,
    FIRST_TICK,
    I64,
    KNOWN_NEXT,
    PLACE,
    POSITION,
    RULE,
    SLOT,
    TARGET,
    TOKEN,
    EngineConfig,
    PromptRows,
    TickInput,
)
from rlt_core.runtime.tick_rows import TickTensors
from rlt_core.runtime.tiles import make_tiles
from rlt_core.runtime.upload import Upload


class TickInputs:
    """Makes TickTensors. `chains`: the model reads predecessors; `peeks`: the policy reads logits;
    `lanes`: the rows of an attention tile; `fan`: the rows of a slot; `guesses`: tokens are;
    `narrows`: some ticks have one row a slot."""

    def __init__(
        self,
        config: EngineConfig,
        device: torch.device,
        *,
        chains: bool,
        peeks: bool,
        lanes: int,
        fan: int = 1,
        guesses: bool = False,
        narrows: bool = False,
    ) -> None:
        self._config, self._upload = config, Upload(device)
        self.chains, self.lanes, self.peeks = chains, lanes, peeks
        self.fan, self.guesses, self.narrows = fan, guesses, narrows

    def __call__(self, tick: TickInput) -> TickTensors:
        """The tensors of one tick."""
        fan = self.fan_of(tick)
        made = self.of(tick.tick, tick.decode_slots, tick.prompt, tick.num_chunks, fan)
        made.least_acceptance = tick.least_acceptance
        return made

    def fan_of(self, tick: TickInput) -> int:
        """Rows of each slot in a tick."""
        return 1 if self.narrows and tick.least_acceptance > 1000 else self.fan

    def of(
        self,
        number: int,
        slots: I64,
        prompt: PromptRows,
        num_chunks: int,
        fan: int | None = None,
        *,
        sentinel: bool = True,
    ) -> TickTensors:
        """The tensors of tick `number` for these decode slots and prompt rows. sentinel: a tick
        without decode rows has one of the sentinel slot."""
        fan = fan or self.fan
        # It keeps every launch non-empty, also in a tick of prompts alone.
        one = np.array([self._config.num_slots])
        decode = slots if len(slots) or not sentinel else one
        num_slots, num_decode = len(decode), len(decode) * fan
        finish = np.flatnonzero(prompt.last)
        known = prompt.known_next[finish] >= 0
        emits = prompt.emit[finish] & ~known
        num_leave = min(num_slots, self._config.leave_places or num_slots)
        asking = np.flatnonzero(prompt.exit_at == 0) + num_decode
        asks = np.concatenate((np.arange(num_decode), asking))
        columns, decode_slots, finishing, emit, resume, score, tail, asked = self._upload.ints(
            (
                prompt.columns,
                decode.astype(np.int64, copy=False),
                finish,
                np.flatnonzero(emits),
                finish[known],
                np.flatnonzero(prompt.target[finish] >= 0),
                _tails(prompt),
                asks,
            )
        )
        none, ints = np.zeros(1, np.int64), self._upload.ints
        return TickTensors(
            tick=number,
            decode_slots=decode_slots,
            place=columns[PLACE],
            slot=columns[SLOT],
            token=columns[TOKEN],
            position=columns[POSITION],
            depth=number + 1 - columns[FIRST_TICK],
            exit_at=columns[EXIT_AT],
            rule=columns[RULE],
            known_next=columns[KNOWN_NEXT],
            target=columns[TARGET],
            finish=finishing,
            emit=emit,
            resume=resume,
            score=score,
            tail=tail if self.chains else None,
            asks=asked,
            tiles=make_tiles(num_decode, prompt.cell_start, ints, self.lanes),
            coda_tiles=make_tiles(num_leave, _finishing_cells(prompt), ints, self.lanes),
            ask_tiles=make_tiles(len(asks), none, ints, self.lanes) if self.peeks else None,
            guess_tiles=make_tiles(num_slots, none, ints, self.lanes) if self.guesses else None,
            num_chunks=num_chunks,
            num_leave=num_leave,
            has_prompt=len(prompt) > 0,
            fan=fan,
            enters=len(slots) > 0 or bool((prompt.columns[FIRST_TICK] == number).any()),
            leaves=len(slots) > 0 or len(finish) > 0,
        )


def _tails(prompt: PromptRows) -> I64:
    """The last row of each cell that ends in this tick."""
    rows = prompt.cell_start[1:] - 1
    return rows[prompt.last[rows]] if len(rows) else rows


def _finishing_cells(prompt: PromptRows) -> I64:
    """Offsets of the cells that end in this tick, among their rows only."""
    lengths = np.diff(prompt.cell_start)
    ends = prompt.last[prompt.cell_start[:-1]] if len(lengths) else np.zeros(0, bool)
    return np.concatenate(([0], np.cumsum(lengths[ends]))).astype(np.int64)
