"""The tick of strategy `pipeline`: consecutive tokens of a request at successive depths.

Once a row has taken `draft` loops its token is guessed, and the guess enters at depth 1 while the
row goes deeper. When the front row leaves, its true token is compared with the one that entered: if
they differ, what follows is dropped, and the true token enters. A guess is drawn with the random
number of its position, as the true token is, so that the two agree most often.

Why nothing changes but the time: a row runs at least a loop behind the one before it, so what it
reads of earlier positions is what they hold at its depth, or what their exit filled in. A row that
was dropped is overwritten before anyone reads it. Codas of a request run in position order, one
a tick, with final counts; guesses store nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlt_core.runtime.checks import CheckingEmitter
from rlt_core.runtime.context import Launch
from rlt_core.runtime.emit import Emitted
from rlt_core.runtime.rows import Rows
from rlt_core.runtime.slots import LEAVING, READY, RUN
from rlt_core.runtime.tick import TickProgram
from rlt_core.runtime.tick_rows import Batch, TickTensors

_EARLY = 4  # of Emitted.counts


class PipelineProgram(TickProgram):
    """TickProgram whose decode rows are the lanes of the listed slots. draft: loops after which a
    row's token is guessed; 0: none is, and only mode *full* has several rows of a request."""

    def __init__(self, *args: Any, checks: CheckingEmitter, draft: int, **kwargs: Any) -> None:
        kwargs["emitter"] = checks
        super().__init__(*args, **kwargs)
        self.checks, self.lanes, self.draft = checks, checks.lanes, draft

    def __call__(self, t: TickTensors) -> Emitted:
        """The tick, then the guesses that enter in the next one."""
        out = super().__call__(t)
        slot, num = out.slot.clamp(min=0)[: t.num_leave], t.num_leave
        loops = self.slots.int_params["loops"][slot]
        # Rows that were dropped left nothing: outputs are counted, not decisions.
        out.counts[_EARLY] = ((out.slot[:num] >= 0) & (out.depth[:num] < loops)).sum()
        if self.draft and t.fan > 1:
            self._guess(t)
        return out

    def _homes(self, t: TickTensors) -> Tensor:
        """Homes of the rows that this tick holds: all lanes, or each slot's front. int64 [R, n]."""
        slot = t.decode_slots
        if t.fan < self.lanes.num:
            return self.lanes.home(slot, self.slots.position[slot])[:, None]
        return self.lanes.homes(slot)

    def _entering(self, t: TickTensors) -> tuple[Tensor, Tensor]:
        """Which lanes' rows enter, bool [R * lanes], and which slots park, bool [R]."""
        s, lanes, slot = self.slots, self.lanes, t.decode_slots
        front, ahead = s.position[slot], lanes.ahead[slot]
        ready = s.phase[slot] == READY
        guess = lanes.guess[lanes.newest(slot, front)]
        follows = self._running(slot) & (guess >= 0) & self._may_follow(slot)
        if t.fan < lanes.num:
            follows = follows & False
        position = front + torch.where(ready, 0, ahead)
        has_page = position < s.page_limit[slot]
        enters = (ready | follows) & has_page
        at = lanes.home(torch.where(enters, slot, s.sentinel), position)
        # What does not enter goes to the sentinel's lanes, which run too.
        lanes.token[at] = torch.where(ready, s.token[slot], guess.clamp(min=0))
        lanes.position[at] = position
        # A number behind an index would be copied to the device, which a graph cannot hold.
        lanes.depth.index_fill_(0, at, 0)
        lanes.guess.index_fill_(0, at, -1)
        lanes.ahead[slot] = ahead + enters
        s.phase[slot] = torch.where(ready & enters, RUN, s.phase[slot])
        rows = self._homes(t) == at[:, None]
        return (rows & enters[:, None]).flatten(), (ready | follows) & ~has_page

    def _may_follow(self, slot: Tensor) -> Tensor:
        """Whether a row may follow the newest one, whose output must not be the last: bool [R]."""
        s, ahead = self.slots, self.lanes.ahead[slot]
        goes_on = s.num_out[slot] + ahead < s.int_params["max_tokens"][slot]
        fits = s.position[slot] + ahead + 1 < s.int_params["max_position"][slot]
        return (ahead > 0) & (ahead < self.lanes.num) & goes_on & fits

    def _running(self, slot: Tensor) -> Tensor:
        phase = self.slots.phase[slot]
        return (phase == RUN) | (phase == LEAVING)

    def _batch(self, t: TickTensors, enters: Tensor) -> Batch:
        s, lanes, slot = self.slots, self.lanes, t.decode_slots
        homes = self._homes(t)
        each = slot[:, None].expand_as(homes).flatten()
        home = homes.flatten()
        s.read_depth[home] = torch.where(enters, 0, s.read_depth[home])
        live = self._live(slot, homes).flatten()
        front = s.position[slot][:, None].expand_as(homes).flatten()
        ones = torch.ones_like(each)
        prompt = self._prompt_part(t)
        return Batch(
            home=torch.cat((home, prompt.home)),
            slot=torch.cat((each, prompt.slot)),
            # Rows that stand still are indexed too: old positions may be another request's.
            position=torch.cat((torch.where(live, lanes.position[home], front), prompt.position)),
            depth=torch.cat((torch.where(live, lanes.depth[home] + 1, 1), prompt.depth)),
            rule=torch.cat((ones, prompt.rule)),
            exit_at=torch.cat((ones * 0, prompt.exit_at)),
            live=torch.cat((live, prompt.live)),
            enters=torch.cat((enters, prompt.enters)),
        )

    def _live(self, slot: Tensor, homes: Tensor) -> Tensor:
        """Lanes whose rows take a loop: bool [R, lanes]."""
        s, lanes, front = self.slots, self.lanes, self.slots.position[slot]
        flying = lanes.in_flight(slot, front, homes) & self._running(slot)[:, None]
        if not self.full:
            return flying & (s.read_depth[homes] == 0)
        depth, loops = lanes.depth[homes], s.int_params["loops"][slot][:, None]
        goes_on = self._running(slot) | (s.phase[slot] == READY)
        read = (lanes.position[homes] < front[:, None]) & (depth > 0) & goes_on[:, None]
        return (flying | read) & (depth < loops)

    def _keep(
        self, t: TickTensors, batch: Batch, state: Tensor, decided: Tensor, done: Tensor
    ) -> None:
        s, lanes = self.slots, self.lanes
        num = self._num_rows(t)
        self._keep_states(batch, state, decided)
        home = batch.home[:num]
        lanes.depth[home] = torch.where(batch.live[:num], batch.depth[:num], lanes.depth[home])
        slot = t.decode_slots
        front = lanes.home(slot, s.position[slot])
        left = (s.phase[slot] == RUN) & (s.read_depth[front] > 0)
        s.phase[slot] = torch.where(left, LEAVING, s.phase[slot])
        s.left_at[slot] = torch.where(left, t.tick, s.left_at[slot])
        if s.options is not None and s.options.chains is not None:
            # The next position reads it at the slot's own home, as after a prompt.
            kept = torch.where(left[:, None], s.read_state[front], s.read_state[slot])
            s.read_state[slot] = kept

    def _tokens(self, t: TickTensors) -> Tensor:
        home = self._homes(t).flatten()
        return torch.cat((self.lanes.token[home], t.token))

    def _home(self, slot: Tensor) -> Tensor:
        return self.lanes.home(slot, self.slots.position[slot])

    def _num_rows(self, t: TickTensors) -> int:
        return t.decode_slots.shape[0] * t.fan

    def _guess(self, t: TickTensors) -> None:
        """Guess the output of each newest row that has none and has gone deep enough."""
        s, lanes, slot = self.slots, self.lanes, t.decode_slots
        front = s.position[slot]
        home = lanes.newest(slot, front)
        deep = (lanes.depth[home] >= self.draft) | (s.read_depth[home] > 0)
        wants = self._running(slot) & self._may_follow(slot) & deep & (lanes.guess[home] < 0)
        wants = wants & (lanes.trust[slot] * 1000 >= t.least_acceptance)
        if s.options is not None and s.options.chains is not None:
            wants = wants & ~s.options.chains[slot]
        decided = (s.read_depth[home] > 0)[:, None]
        state = torch.where(decided, s.read_state[home], s.state[home])
        none = torch.zeros_like(slot)
        assert t.guess_tiles is not None
        rows = Rows(
            slot=slot,
            # Earlier positions that are not committed have no coda KV yet: it stands in the
            # front's place, which changes the guess alone.
            position=front,
            depth=lanes.depth[home],
            write_plane=none,
            read_plane=none,
            live=wants,
            tiles=t.guess_tiles,
            num_chunks=t.num_chunks,
        )
        ctx = Launch(self.services, rows, s, store=False)
        logits = self.model.head(self.model.coda(state, ctx, store=False), ctx)
        position = front + lanes.ahead[slot]
        token = self.checks.guess(logits, slot, position)
        lanes.guess[home] = torch.where(wants, token, lanes.guess[home])
