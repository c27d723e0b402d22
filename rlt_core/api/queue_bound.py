"""How many answers may be in work, and when to come again."""

from __future__ import annotations

import math
import time
from collections import deque

from rlt_core.contract.errors import BusyError, RequestError

NUM_REMEMBERED = 64
LONGEST_RETRY_S = 60


class QueueBound:
    """num_slots answers run, max_waiting more may wait."""

    def __init__(self, num_slots: int, max_waiting: int) -> None:
        self.limit = num_slots + max_waiting
        self._ends: deque[float] = deque(maxlen=NUM_REMEMBERED)

    def check_whole(self, num_answers: int) -> None:
        """RequestError where answers that come together, to several prompts, never fit."""
        if 0 < self.limit < num_answers:  # 0: no stage has served yet
            reason = f"{num_answers} answers (prompts times n); at most {self.limit} fit the queue"
            raise RequestError("prompt", reason)

    def check(self, num_open: int, num_more: int) -> None:
        """BusyError where more answers do not fit now, RequestError where they never do."""
        if num_more > self.limit:
            raise RequestError("n", f"{num_more} answers; at most {self.limit} fit the queue")
        if num_open + num_more > self.limit:
            raise BusyError(num_open, self.limit, self._retry_after(num_open + num_more))

    def ended(self) -> None:
        """A request ended."""
        self._ends.append(time.monotonic())

    def _retry_after(self, num_wanted: int) -> int:
        """Whole seconds until as many have ended as are too many, at the pace of the last ones."""
        if len(self._ends) < 2:
            return 1
        pace = (time.monotonic() - self._ends[0]) / len(self._ends)
        return min(LONGEST_RETRY_S, max(1, math.ceil(pace * (num_wanted - self.limit))))
