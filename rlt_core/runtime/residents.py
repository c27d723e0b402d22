"""What the requests in the slots ask of sampling: decides the variant of the next tick."""

from __future__ import annotations

import numpy as np

from rlt_core.runtime.batch import SlotParams, TickInput


class Residents:
    """Per slot: whether it needs the full sampling program, and how many alternatives."""

    def __init__(self, num_slots: int) -> None:
        self._needs_full = np.zeros(num_slots, bool)
        self._num_top = np.zeros(num_slots, np.int64)

    def update(self, tick: TickInput) -> None:
        """Follow the slots that this tick clears and fills."""
        self._needs_full[tick.cleared] = False
        self._num_top[tick.cleared] = 0
        if tick.admitted is not None:
            new = tick.admitted
            self._needs_full[new.slot] = _needs_full(new)
            self._num_top[new.slot] = np.maximum(new.num_logprobs, 0)

    @property
    def full_sampling(self) -> bool:
        """Whether any resident draws, filters, penalises or biases."""
        return bool(self._needs_full.any())

    @property
    def num_top(self) -> int:
        """The most alternatives any resident asks for."""
        return int(self._num_top.max(initial=0))


def _needs_full(new: SlotParams) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    needs = (new.temperature > 0) | new.uses_penalties
    if new.bias_ids is not None:
        needs = needs | (new.bias_ids >= 0).any(1)
    return np.asarray(needs)
