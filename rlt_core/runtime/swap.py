"""Pages on their way between the pool and host memory, beside the ticks.

On a GPU copies run on a stream of their own, in the order in which they were asked for. The ticks'
stream waits for one only where it is about to use pages that are still on their way. On a CPU
a copy is done when it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rlt_core.contract.errors import CapacityError
from rlt_core.kv.pool import DevicePool
from rlt_core.runtime.batch import I32, I64, PageCopy, Resumed
from rlt_core.runtime.slots import Slots
from rlt_core.runtime.upload import Upload

_CHUNK = 16  # pages of one event: who waits for the first ones need not wait for all


@dataclass(slots=True)
class _Travelling:
    """Pages of the pool, and the event after which they are not touched any more."""

    pages: I32
    event: torch.cuda.Event


class SwapCopies:
    """The host memory for swapped pages (pinned on a GPU) and the copies in progress."""

    def __init__(self, pool: DevicePool, slots: Slots, num_pages: int) -> None:
        self._pool, self._slots, self._upload = pool, slots, Upload(slots.device)
        cuda = slots.device.type == "cuda"
        self._host = _host_pages(pool, num_pages, pin=cuda and num_pages > 0)
        self._stream = torch.cuda.Stream(slots.device) if cuda else None
        self._travelling: list[_Travelling] = []
        self._returning: list[tuple[Resumed, torch.cuda.Event | None]] = []

    @property
    def busy(self) -> bool:
        """Whether some copy may not be done yet."""
        return bool(self._travelling)

    def out(self, copy: PageCopy) -> None:
        """Copy pages to the host, behind the ticks that were submitted before."""
        self._copy(copy, self._pool.storage, self._host, copy.pages, copy.host)

    def back(self, resumed: Resumed) -> None:
        """Copy pages from the host; `arrive` says when the slot may go on."""
        copy = resumed.copy
        event = self._copy(copy, self._host, self._pool.storage, copy.host, copy.pages)
        self._returning.append((resumed, event))

    def guard(self, pages: I32) -> None:
        """The tick about to be submitted may write these pages of the pool."""
        left = [one for one in self._travelling if not one.event.query()]
        self._travelling = []
        for one in left:
            if np.isin(one.pages, pages).any():
                torch.cuda.current_stream().wait_event(one.event)
            else:
                self._travelling.append(one)

    def cleared(self, slots: I64) -> None:
        """Slots that lost their requests: what was on its way to them is not waited for."""
        if self._returning:
            self._returning = [one for one in self._returning if one[0].slot not in slots]

    def arrive(self) -> None:
        """Slots whose pages are there enter their next token in the tick about to be submitted."""
        arrived = [one for one in self._returning if one[1] is None or one[1].query()]
        self._returning = [one for one in self._returning if one not in arrived]
        if not arrived:
            return
        for _, event in arrived:
            if event is not None:
                torch.cuda.current_stream().wait_event(event)
        found = [(one.slot, one.token, one.position) for one, _ in arrived]
        self._slots.resume(*self._upload(np.array(found, np.int64).T).unbind())

    def _copy(
        self,
        copy: PageCopy,
        source: torch.Tensor,
        target: torch.Tensor,
        sources: I32 | I64,
        targets: I32 | I64,
    ) -> torch.cuda.Event | None:
        if self._stream is None:
            if len(sources):
                target[torch.from_numpy(targets).long()] = source[torch.from_numpy(sources).long()]
            return None
        event = None
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            for start in range(0, len(sources), _CHUNK):
                part = slice(start, start + _CHUNK)
                for first, second, num in _runs(sources[part], targets[part]):
                    rows = source[first : first + num]
                    target[second : second + num].copy_(rows, non_blocking=True)
                event = torch.cuda.Event()
                event.record()
                self._travelling.append(_Travelling(copy.pages[part], event))
        return event


def _host_pages(pool: DevicePool, num_pages: int, *, pin: bool) -> torch.Tensor:
    shape, dtype = (num_pages, pool.plan.page_elements), pool.storage.dtype
    try:
        return torch.empty(shape, dtype=dtype, pin_memory=pin)
    except RuntimeError as error:
        size = num_pages * pool.plan.page_bytes / 2**20
        raise CapacityError(
            f"the host has no {size:,.1f} MiB for preempted requests\nFix: a smaller --swap-memory"
        ) from error


def _runs(sources: I32 | I64, targets: I32 | I64) -> list[tuple[int, int, int]]:
    """(first source, first target, number) of pages that follow one another on both sides."""
    steps = (np.diff(sources) != 1) | (np.diff(targets) != 1)
    starts = np.concatenate(([0], steps.nonzero()[0] + 1, [len(sources)])).tolist()
    return [
        (int(sources[a]), int(targets[a]), b - a)
        for a, b in zip(starts[:-1], starts[1:], strict=True)
    ]
