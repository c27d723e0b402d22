"""Guesses that are right as often as a benchmark wants, in place of the model's own.

Random weights guess nothing right, and a benchmark needs every acceptance. The tokens that the
requests will give are known (a plain run wrote them down), so a table on the device says what is
guessed for each position: the right token with probability `acceptance`, else another. The model's
own guess is still computed, since its time is part of what is measured, and thrown away. Nothing is
read by the host and no shape depends on a value, so that ticks are captured as ever.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rlt_core.contract.errors import RltError
from rlt_core.runtime.batch import I64
from rlt_core.runtime.checks import CheckingEmitter
from rlt_core.runtime.executor import Executor


class Script:
    """One for an engine whose request i has the seed i and no stop ids; a request's place in the
    table is found by its seed, which greedy ones do not use otherwise."""

    def __init__(self, num_requests: int, num_positions: int) -> None:
        self._shape = num_requests, num_positions
        self._table: Tensor | None = None

    def install(self, executor: Executor) -> None:
        """Take over the guesses of an engine whose ticks are not captured yet. Raises RltError
        where its strategy guesses none."""
        checks, slots = executor.emitter, executor.slots
        if not isinstance(checks, CheckingEmitter):
            raise RltError("a strategy without guesses has none to replace")
        table = torch.zeros(self._shape, dtype=torch.int64, device=executor.device)
        most_request, most_position = (size - 1 for size in self._shape)

        def guess(own: Tensor, slot: Tensor, position: Tensor) -> Tensor:
            # The sentinel slot and those that are done may stand anywhere.
            request = slots.seed[slot].clamp(0, most_request)
            return table[request, position.clamp(0, most_position)]

        self._table = table
        checks.replace = guess

    def write(self, lines: Sequence[I64], acceptance: float, vocab_size: int, seed: int) -> None:
        """Guess so from the next tick on. lines: the tokens of each request by position. A position
        that is guessed right at one acceptance is so at every higher one."""
        if self._table is None:
            raise RltError("a script must be installed before it is written")
        rows = np.zeros(self._shape, np.int64)
        for i, line in enumerate(lines):
            right = np.random.default_rng((seed, i)).random(len(line)) < acceptance
            rows[i, : len(line)] = np.where(right, line, (line + 1) % vocab_size)
        self._table.copy_(torch.from_numpy(rows))
