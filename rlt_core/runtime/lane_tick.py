"""The fused tick of strategy `pipeline`: a slot has several rows, whose tokens were guessed."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from rlt_core.contract.lane_steps import LaneArrays, LaneSteps
from rlt_core.contract.steps import Drawn, LeavingRows, RunningRows
from rlt_core.runtime.checks import CheckingEmitter
from rlt_core.runtime.collect import Results
from rlt_core.runtime.context import Launch
from rlt_core.runtime.fused_tick import FusedTick, drawn_of
from rlt_core.runtime.pipeline import PipelineProgram
from rlt_core.runtime.sampling import Sampled
from rlt_core.runtime.slots import LEAVING
from rlt_core.runtime.tick_rows import TickTensors


class LaneTick(FusedTick):
    """FusedTick of a PipelineProgram.

    Guesses need a head as the rows that leave do, so both go through one, which reads its weights
    once. The check of a leaving row's token comes after it: a guess behind a wrong token is
    dropped. Where the coda keeps KV the guesses come after the leaving rows, as they read it.
    """

    def __init__(self, program: PipelineProgram, steps: LaneSteps, *, has_coda: bool) -> None:
        """has_coda: the model has layers after its loops."""
        super().__init__(program, steps)
        self.steps, self._has_coda = steps, has_coda
        self.checks: CheckingEmitter = program.checks
        lanes, options = program.lanes, program.slots.options
        self._chains = None if options is None else options.chains
        self._lanes = LaneArrays(
            base=lanes.base,
            num=lanes.num,
            token=lanes.token,
            position=lanes.position,
            depth=lanes.depth,
            guess=lanes.guess,
            ahead=lanes.ahead,
            trust=lanes.trust,
            unguessed=self._chains,
            draft=program.draft,
        )

    def _enter(self, t: TickTensors) -> RunningRows:
        return self.steps.enter(
            self._arrays,
            self._lanes,
            t.decode_slots,
            fan=t.fan,
            first=self._looped.first,
            parts=self._looped.parts,
            full=self.full,
        )

    def _settle(
        self, rows: RunningRows, says: Tensor | None, tick: Tensor, t: TickTensors
    ) -> tuple[Tensor, Tensor]:
        return self.steps.settle(
            self._arrays,
            self._lanes,
            t.decode_slots,
            rows,
            says,
            tick,
            fan=t.fan,
            full=self.full,
        )

    def _leave(self, t: TickTensors, tick: Tensor, counts: Tensor) -> Results:
        self._hand_on(t)
        guesses = self._lanes.draft > 0 and t.fan > 1
        least, places = self._number(t.least_acceptance), t.num_leave
        rows = self._choose(t, tick, least, places, guesses and not self._has_coda)
        at = self._coda_rows(rows, rows.position, t.coda_tiles, t.num_chunks)
        ctx = Launch(self.services, at, self.slots, num_rows=rows.count)
        logits = self.model.head(self.model.coda(self._state(rows), ctx), ctx)
        leaving, found = part_of(rows, 0, places), logits[:places]
        sampled, drawn, guessed = self._draw(rows, logits, places)
        ints, drafts = self.steps.advance(self._arrays, self._lanes, leaving, drawn, counts)
        if guessed is not None:
            self._note(part_of(rows, places, rows.slot.shape[0]), guessed)
        elif guesses:
            self._guess(t, tick, least)
        results = self._results(ints, sampled, found)
        results.drafts = drafts
        return results

    def _hand_on(self, t: TickTensors) -> None:
        """The next position reads the front's state at the slot's own home, as after a prompt."""
        if self._chains is None:
            return
        s, slot = self.slots, t.decode_slots
        front = self.checks.lanes.home(slot, s.position[slot])
        left = (s.phase[slot] == LEAVING)[:, None]
        s.read_state[slot] = torch.where(left, s.read_state[front], s.read_state[slot])

    def _choose(
        self, t: TickTensors, tick: Tensor, least: Tensor, places: int, guesses: bool
    ) -> LeavingRows:
        return self.steps.choose(
            self._arrays,
            self._lanes,
            t.decode_slots,
            tick,
            least,
            places=places,
            min_leave=self.min_leave,
            guesses=guesses,
        )

    def _state(self, rows: LeavingRows) -> Tensor:
        s = self.slots
        if s.read_state is s.state:
            return s.state.index_select(0, rows.home)
        return self.steps.read(s.state, s.read_state, self._arrays, rows)

    def _draw(
        self, rows: LeavingRows, logits: Tensor, places: int
    ) -> tuple[Sampled | None, Drawn, Drawn | None]:
        """Tokens of the rows that leave, and the guesses of those behind them, if any."""
        num, needs = rows.slot.shape[0], self.emitter.needs
        if num == places:
            return (*self._sample(rows, logits), None)
        if needs.full or needs.num_top:
            sampled, drawn = self._sample(part_of(rows, 0, places), logits[:places])
            return (
                sampled,
                drawn,
                self._draw_guesses(part_of(rows, places, num), logits[places:]),
            )
        whole = self._row_steps.sample(self._arrays, rows, logits)
        return None, some(whole, 0, places), some(whole, places, num)

    def _draw_guesses(self, rows: LeavingRows, logits: Tensor) -> Drawn:
        if not self.emitter.needs.full:
            return self._row_steps.sample(self._arrays, rows, logits)
        return drawn_of(self.checks.sample(logits, rows.slot, rows.position + 1, guess=True))

    def _guess(self, t: TickTensors, tick: Tensor, least: Tensor) -> None:
        """Guess after the leaving rows, whose coda has stored what this one reads."""
        rows = self._choose(t, tick, least, 0, True)
        assert t.guess_tiles is not None
        # As PipelineProgram: it stands in the front's place, which changes the guess alone.
        position = self.slots.position.index_select(0, rows.slot)
        at = self._coda_rows(rows, position, t.guess_tiles, t.num_chunks)
        ctx = Launch(self.services, at, self.slots, store=False, num_rows=rows.count)
        logits = self.model.head(self.model.coda(self._state(rows), ctx, store=False), ctx)
        self._note(rows, self._draw_guesses(rows, logits))

    def _note(self, rows: LeavingRows, drawn: Drawn) -> None:
        token = drawn.token
        if self.checks.replace is not None:
            token = self.checks.replace(token, rows.slot, rows.position + 1)
        self.steps.note(self._arrays, self._lanes, rows, token, drawn.bad)


def some(drawn: Drawn, start: int, end: int) -> Drawn:
    """These rows of it."""
    return Drawn(**{field.name: getattr(drawn, field.name)[start:end] for field in fields(Drawn)})


def part_of(rows: LeavingRows, start: int, end: int) -> LeavingRows:
    """These rows of it; the count is that of all."""
    parts = {f.name: getattr(rows, f.name)[start:end] for f in fields(LeavingRows)}
    return LeavingRows(**parts | {"count": rows.count})
