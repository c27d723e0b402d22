"""The rows of a request that are in flight together, where a strategy guesses tokens ahead."""

from __future__ import annotations

import torch
from torch import Tensor


class Lanes:
    """`num` places a slot for rows at consecutive positions; position p has place p mod num.

    token, position, depth (loops taken), guess (its output as guessed; -1: none): int64 [homes],
    at the lanes' homes, which begin at `base`. ahead: int64 [slots + 1], rows in flight from the
    slot's own position on: that first one, the front, is known to be right, the others follow
    from guesses. trust: float32 [slots + 1], how often its recent guesses held. In mode full, rows
    whose output has been read go on behind the front.
    """

    def __init__(self, num: int, base: int, homes: int, num_slots: int, device: torch.device):
        def ints(size: int, fill: int = 0) -> Tensor:
            return torch.full((size,), fill, dtype=torch.int64, device=device)

        self.num, self.base = num, base
        self.token, self.position, self.depth = ints(homes), ints(homes), ints(homes)
        self.guess, self.ahead = ints(homes, -1), ints(num_slots + 1)
        self.trust = torch.ones(num_slots + 1, dtype=torch.float32, device=device)
        self._each = torch.arange(num, device=device)

    def home(self, slot: Tensor, position: Tensor) -> Tensor:
        """Homes of the rows at these positions, all int64 [R]."""
        return self.base + slot * self.num + position.remainder(self.num)

    def homes(self, slot: Tensor) -> Tensor:
        """All homes of these slots: int64 [R, num]."""
        return self.base + slot[:, None] * self.num + self._each

    def newest(self, slot: Tensor, front: Tensor) -> Tensor:
        """Home of the last row in flight; some home of the slot where there is none."""
        return self.home(slot, front + (self.ahead[slot] - 1).clamp(min=0))

    def in_flight(self, slot: Tensor, front: Tensor, homes: Tensor) -> Tensor:
        """Which of these lanes hold rows from the front on: homes int64 [R, n] -> bool [R, n]."""
        offset = self.position[homes] - front[:, None]
        return (offset >= 0) & (offset < self.ahead[slot][:, None])

    def clear(self, slot: Tensor) -> None:
        """Drop all rows of these slots."""
        self.ahead.index_fill_(0, slot, 0)
        self.depth.index_fill_(0, self.homes(slot).flatten(), 0)
