"""Makes the next masks of answers in a thread of its own, and sends them to the stage."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from rlt_core.api.collector import Collector
from rlt_core.api.constraint import Constraint, next_masks
from rlt_core.contract.errors import StageError
from rlt_core.runtime.batch import I32
from rlt_core.stage.messages import Abort, Masks, Request

if TYPE_CHECKING:
    from llguidance import LLExecutor

Grown = tuple[Collector, int]  # an answer, and the token that it grew by


class MaskMaker:
    """Answers that grew go in; one message for all that are waiting goes out.

    An answer that cannot go on gets a mask that lets nothing through, and the stage fails it; one
    whose grammar is at its end is aborted. What comes back is read with the constraint's word on it
    (api.router). send: takes a message from any thread.
    """

    def __init__(self, send: Callable[[Request], None]) -> None:
        self._send = send
        self._grown: deque[tuple[int, Constraint, int]] = deque()
        # Its thread begins with the first masked answer, and ends with this object.
        self._thread = ThreadPoolExecutor(1, "rlt-masks")
        self._executor: LLExecutor | None = None

    def put(self, grown: Sequence[Grown]) -> None:
        """Takes answers that grew by a token; returns at once."""
        for collector, token in grown:
            if collector.constraint is not None:
                request_id = collector.request.request_id
                self._grown.append((request_id, collector.constraint, token))
        if grown:
            self._thread.submit(self._work)

    def _work(self) -> None:
        """All that waits, those of one vocabulary together; a later call may find nothing left."""
        waiting = [self._grown.popleft() for _ in range(len(self._grown))]
        if not waiting:
            return
        words = self._words([(constraint, token) for _, constraint, token in waiting])
        complete = [constraint.complete for _, constraint, _ in waiting]
        ids = np.array([request_id for request_id, _, _ in waiting], np.int64)
        index = np.array([constraint.num_taken for _, constraint, _ in waiting], np.int64)
        goes_on = ~np.array(complete)
        with contextlib.suppress(StageError):  # its reader finds that the stage has ended
            if goes_on.any():
                sent = Masks(request_id=ids[goes_on], index=index[goes_on], words=words[goes_on])
                self._send(sent)
            if any(complete):
                self._send(Abort(request_ids=ids[~goes_on].tolist()))

    def _words(self, grown: Sequence[tuple[Constraint, int]]) -> I32:
        constraints = [constraint for constraint, _ in grown]
        try:
            for constraint, token in grown:
                constraint.take(token)
            return next_masks(constraints, self._parallel())
        except Exception as error:  # a user's tokenizer, or the library: nobody may wait for ever
            for constraint in constraints:
                constraint.error = constraint.error or f"its grammar cannot be followed ({error!r})"
            return next_masks(constraints)

    def _parallel(self) -> LLExecutor | None:
        if self._executor is None and (os.cpu_count() or 1) > 1:
            from llguidance import LLExecutor

            self._executor = LLExecutor()
        return self._executor
