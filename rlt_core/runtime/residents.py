"""What the requests in the slots ask of sampling: decides the variant of the next tick."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlt_core.runtime.batch import B8, SlotParams, TickInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """full: some resident draws, penalises, biases or has masks; filters: some resident uses
    top-k, top-p or min-p (they sort the vocabulary); num_top: the most alternatives any resident
    asks for; masks: some resident draws under masks."""

    full: bool = False
    filters: bool = False
    num_top: int = 0
    masks: bool = False

    def covers(self, other: Needs) -> bool:
        """Whether a tick with these needs serves the other's as well."""
        return (
            self.full >= other.full
            and self.filters >= other.filters
            and self.num_top >= other.num_top
            and self.masks >= other.masks
        )


class Residents:
    """Per slot: what its request needs of the sampling program."""

    def __init__(self, num_slots: int) -> None:
        self._full = np.zeros(num_slots, bool)
        self._filters = np.zeros(num_slots, bool)
        self._num_top = np.zeros(num_slots, np.int64)
        self._masks = np.zeros(num_slots, bool)

    def update(self, tick: TickInput) -> Needs:
        """Follow the slots that this tick clears and fills; what they need together."""
        for array in (self._full, self._filters, self._num_top, self._masks):
            array[tick.cleared] = 0
        if tick.admitted is not None:
            new = tick.admitted
            self._full[new.slot] = _draws_or_changes(new)
            self._filters[new.slot] = (new.top_k > 0) | (new.top_p < 1) | (new.min_p > 0)
            self._num_top[new.slot] = np.maximum(new.num_logprobs, 0)
            self._masks[new.slot] = new.masked
        return Needs(
            full=bool(self._full.any()),
            filters=bool(self._filters.any()),
            num_top=int(self._num_top.max(initial=0)),
            masks=bool(self._masks.any()),
        )


def _draws_or_changes(new: SlotParams) -> B8:
    needs = (new.temperature > 0) | new.uses_penalties | new.masked
    if new.bias_ids is not None:
        needs = needs | (new.bias_ids >= 0).any(1)
    return np.asarray(needs)
