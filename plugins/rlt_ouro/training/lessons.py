"""Training batches whose problems grow deeper as the model learns."""

from __future__ import annotations

import random
from collections.abc import Collection

from training.data import GRADES, Batch, pack, training_problem

LEVEL_LOSS = 0.2


class Lessons:
    """Batches of problems up to a level, the highest grade they hold.

    Chains are learnt link by link: the level rises once values are known well enough. At level 0
    only the first loop counts, else it would be left to prepare what later loops look up.
    """

    def __init__(self, seed: int, batch: int, rejected: Collection[str]) -> None:
        """`rejected` holds the facts hashes of problems that must not be trained on."""
        self.level = GRADES[0]
        self._rng = random.Random(seed)
        self._batch = batch
        self._rejected = rejected
        self._average = 1.0
        self.finished = False

    def batch(self) -> Batch:
        problems = [
            training_problem(self._rng, self.level, self._rejected) for _ in range(self._batch)
        ]
        return pack(self._rng, problems)

    def report(self, value_losses: list[float]) -> None:
        """Take note of a batch's mean value loss after each loop."""
        loss = value_losses[-1] if self.level else value_losses[0]
        self._average += 0.1 * (loss - self._average)
        if self._average >= LEVEL_LOSS:
            return
        if self.level < GRADES[-1]:
            self.level += 1
            self._average = 1.0
        else:
            self.finished = True
