"""How often the guesses of each slot held of late, as the host follows it from the outputs.

The device decides by its own count (runtime.checks); this one, some ticks behind, says how many
requests will guess at all, and so how many rows a slot a tick should have.
"""

from __future__ import annotations

import numpy as np

from rlt_core.runtime.batch import F32, I64

# What one check, and one token without any, changes (as in runtime.checks).
NEWS, REST = 0.1, 0.02


class Trust:
    """value: float32 [S], 0 for slots without a request."""

    def __init__(self, num_slots: int) -> None:
        self.value: F32 = np.zeros(num_slots, np.float32)

    def follow(self, slots: I64, held: I64) -> None:
        """The outputs of these slots: held 1 where a guess was right, 0 where wrong, -1 without."""
        now, checked = self.value[slots], held >= 0
        self.value[slots] = now + np.where(checked, NEWS, REST) * (np.where(checked, held, 1) - now)
