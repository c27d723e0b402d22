"""The end of a tick under strategy `pipeline`: true tokens against those that entered ahead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rlt_core.contract.lane_steps import TRUST_NEWS, TRUST_REST
from rlt_core.runtime.emit import RUNNING, Emitter
from rlt_core.runtime.lanes import Lanes
from rlt_core.runtime.slots import DONE, READY, RUN


class CheckingEmitter(Emitter):
    """Emitter that goes on with the row behind the front where its token was guessed right.

    drafts: int64 [2, E] of the last tick's events: 1 where the guess held, 0 where it did not, -1
    where none had entered; and the loops of the rows that were dropped.
    """

    def __init__(self, *args: Any, lanes: Lanes, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lanes = lanes
        # For benchmarks and tests: (guesses int64 [R], slots [R], positions [R]) -> guesses.
        self.replace: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None

    def guess(self, logits: Tensor, slot: Tensor, position: Tensor) -> Tensor:
        """Tokens for logits float32 [R, V] of slots [R] at positions [R], drawn without penalties
        and masks; -1 where a stop id or no token was drawn."""
        sampled = self.sample(logits, slot, position, guess=True)
        token = sampled.token
        if self.replace is not None:
            token = self.replace(token, slot, position)
        stops = (self.slots.stop_ids[slot] == token[:, None]).any(1)
        return torch.where(stops | sampled.bad, -1, token)

    def _phase(self, slot: Tensor, position: Tensor, token: Tensor, finish: Tensor) -> Tensor:
        lanes = self.lanes
        ahead = lanes.ahead[slot]
        checked = ahead > 1
        entered = lanes.token[lanes.home(slot, position)]
        holds = checked & (entered == token) & (finish == RUNNING)
        homes = lanes.homes(slot)
        later = lanes.position[homes] >= position[:, None]
        behind = lanes.in_flight(slot, position - 1, homes) & later
        loops = torch.where(behind, lanes.depth[homes], 0).sum(1)
        self.drafts = torch.stack(
            (torch.where(checked, holds.long(), -1), torch.where(holds, 0, loops))
        )
        lanes.ahead[slot] = torch.where(holds, ahead - 1, 0)
        # Without guesses trust comes back slowly, so that they are tried again.
        trust, step = lanes.trust[slot], torch.where(checked, TRUST_NEWS, TRUST_REST)
        lanes.trust[slot] = trust + step * (torch.where(checked, holds.float(), 1.0) - trust)
        return torch.where(finish == RUNNING, torch.where(holds, RUN, READY), DONE)
