"""How often the guesses of each slot held of late, as the host follows it from the outputs.

The device decides by its own count (runtime.checks); this one, some ticks behind, says how many
requests will guess at all, and so how many rows a slot a tick should have.
"""

from __future__ import annotations

import numpy as np

from rlt_core.contract.lane_steps import TRUST_NEWS, TRUST_REST
from rlt_core.runtime.batch import F32, I64

# A new request is expected to do as the last so many guesses of all requests did.
_RECENT = 256


class Trust:
    """value: float32 [S], 0 for slots without a request."""

    def __init__(self, num_slots: int) -> None:
        self.value: F32 = np.zeros(num_slots, np.float32)
        # As if one guess had been seen, and had held.
        self._share, self._seen = 1.0, 1

    def admit(self, slot: int) -> float:
        """What a request that gets this slot begins with."""
        self.value[slot] = self._share
        return self._share

    def follow(self, slots: I64, held: I64) -> None:
        """The outputs of these slots: held 1 where a guess was right, 0 where wrong, -1 without."""
        now, checked = self.value[slots], held >= 0
        step, aim = np.where(checked, TRUST_NEWS, TRUST_REST), np.where(checked, held, 1)
        self.value[slots] = now + step * (aim - now)
        num = int(checked.sum())
        if num:
            self._seen = min(self._seen + num, max(_RECENT, num))
            self._share += (int(held[checked].sum()) - num * self._share) / self._seen
