"""From what the host sends for one tick to the tensors of its program."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

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
    PromptRows,
    TickInput,
)
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.runtime.tick_rows import TickTensors
from rlt_core.runtime.tiles import Tiles, make_tiles
from rlt_core.runtime.upload import Upload

_MOST_KEPT = 64


class TickInputs:
    """Makes TickTensors. `chains`: the model reads predecessors; `peeks`: the policy reads logits;
    `lanes`: the rows of an attention tile; `fan`: the rows of a slot; `guesses`: tokens are;
    `narrows`: some ticks have one row a slot; `walks`: attention walks page tables itself, and
    finds the rows of a tile by its first one."""

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
        walks: bool = False,
    ) -> None:
        self._config, self._upload = config, Upload(device)
        self.chains, self.lanes, self.peeks = chains, lanes, peeks
        self.fan, self.guesses, self.narrows, self.walks = fan, guesses, narrows, walks
        # By number of rows. Nobody changes them.
        self._single: dict[int, Tiles] = {}
        self._no_rows: dict[int, _PromptTensors] = {}

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
        num_leave = min(num_slots, self._config.leave_places or num_slots)
        (decode_slots,) = self._upload.ints((decode.astype(np.int64, copy=False),))
        rows = self._rows(prompt, num_decode)
        columns, finishing = rows.columns, np.flatnonzero(prompt.last)
        none = np.zeros(1, np.int64)
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
            finish=rows.finish,
            emit=rows.emit,
            resume=rows.resume,
            score=rows.score,
            tail=rows.tail if self.chains else None,
            asks=rows.asks,
            tiles=self._tiles(num_decode, prompt.cell_start),
            coda_tiles=self._tiles(num_leave, _finishing_cells(prompt)),
            ask_tiles=self._tiles(len(rows.asks), none) if self.peeks else None,
            guess_tiles=self._tiles(num_slots, none) if self.guesses else None,
            num_chunks=num_chunks,
            num_leave=num_leave,
            has_prompt=len(prompt) > 0,
            fan=fan,
            enters=len(slots) > 0 or bool((prompt.columns[FIRST_TICK] == number).any()),
            leaves=len(slots) > 0 or len(finishing) > 0,
        )

    def _rows(self, prompt: PromptRows, num_decode: int) -> _PromptTensors:
        """The prompt rows of a tick; those of a tick without any are kept, as most have none."""
        if len(prompt):
            return self._make_rows(prompt, num_decode)
        return _kept(self._no_rows, num_decode, lambda: self._make_rows(prompt, num_decode))

    def _make_rows(self, prompt: PromptRows, num_decode: int) -> _PromptTensors:
        finish = np.flatnonzero(prompt.last)
        known = prompt.known_next[finish] >= 0
        asking = np.flatnonzero(prompt.exit_at == 0) + num_decode
        made = (
            prompt.columns,
            finish,
            np.flatnonzero(prompt.emit[finish] & ~known),
            finish[known],
            np.flatnonzero(prompt.target[finish] >= 0),
            _tails(prompt),
            np.concatenate((np.arange(num_decode), asking)),
        )
        return _PromptTensors(*self._upload.ints(made))

    def _tiles(self, num_single: int, cell_start: I64) -> Tiles:
        """The tiles of one launch; those of rows alone are kept."""

        def made() -> Tiles:
            return make_tiles(num_single, cell_start, self._upload.ints, self.lanes)

        return made() if len(cell_start) > 1 else _kept(self._single, num_single, made)


class _PromptTensors(NamedTuple):
    """What TickTensors has of the prompt rows; columns int64 [PromptRows.columns, N]."""

    columns: Tensor
    finish: Tensor
    emit: Tensor
    resume: Tensor
    score: Tensor
    tail: Tensor
    asks: Tensor


T = TypeVar("T")


def _kept(found: dict[int, T], key: int, make: Callable[[], T]) -> T:
    """What was made for that number; no more than _MOST_KEPT of them."""
    if key not in found:
        if len(found) >= _MOST_KEPT:
            found.clear()
        found[key] = make()
    return found[key]


def _tails(prompt: PromptRows) -> I64:
    """The last row of each cell that ends in this tick."""
    rows = prompt.cell_start[1:] - 1
    return rows[prompt.last[rows]] if len(rows) else rows


def _finishing_cells(prompt: PromptRows) -> I64:
    """Offsets of the cells that end in this tick, among their rows only."""
    lengths = np.diff(prompt.cell_start)
    ends = prompt.last[prompt.cell_start[:-1]] if len(lengths) else np.zeros(0, bool)
    return np.concatenate(([0], np.cumsum(lengths[ends]))).astype(np.int64)
