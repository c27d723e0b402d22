"""A request whose answer is read while it grows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rlt_core.api.batch import Batch
from rlt_core.api.collector import Collector
from rlt_core.api.dispatch import Dispatcher
from rlt_core.api.outputs import Increment, RequestOutput


class RequestStream:
    """Iterate for increments; afterwards (or at any time) `output` is the whole so far.

    The request is sent when the stream is made. `close`, or leaving the loop by an exception or
    a break and dropping the stream, aborts it; `stop` ends it with what has come.
    """

    def __init__(self, batch: Batch, dispatcher: Dispatcher) -> None:
        self._batch, self._dispatcher = batch, dispatcher
        self._stopping = False
        self._raise_error()
        dispatcher.submit(batch.collectors)
        self._increments = self._iterate()

    @property
    def output(self) -> RequestOutput:
        """The answers so far, as `generate` gives them."""
        (output,) = self._batch.outputs()
        output.finished = self._batch.done
        return output

    def __iter__(self) -> Iterator[Increment]:
        return self._increments

    def stop(self) -> None:
        """Ends the answers within a tenth of a second; their finish_reason is "abort". May be
        called from a signal handler or another thread."""
        self._stopping = True

    def close(self) -> None:
        """Aborts what is still running."""
        self._dispatcher.give_up(self._batch.collectors)

    def _iterate(self) -> Iterator[Increment]:
        collectors = self._batch.collectors
        try:
            while True:
                self._dispatcher.wait(
                    lambda: (
                        self._stopping or self._batch.done or any(c.has_news for c in collectors)
                    )
                )
                if self._stopping:
                    self._stop(collectors)
                self._raise_error()
                yield from (c.news() for c in collectors if c.has_news)
                if self._batch.done and not any(c.has_news for c in collectors):
                    return
        finally:
            self.close()

    def _stop(self, collectors: Sequence[Collector]) -> None:
        self._dispatcher.give_up(collectors)
        for collector in collectors:
            collector.stop()

    def _raise_error(self) -> None:
        error = self._batch.entries[0].error
        if error is not None:
            raise error
