"""What the host sends to captured ticks: named arrays that reach the device in one copy."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rlt_core.runtime.batch import I64

# Ticks in flight and one more: a host buffer is filled again when its tick has been collected.
_RING = 3


class Inbox:
    """int64 parts of one device buffer at fixed addresses, and host buffers that take turns.

    parts: name -> tensor of the shape asked for, on the device.
    """

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], device: torch.device) -> None:
        self._shapes = dict(shapes)
        self._sizes = [math.prod(shape) for shape in shapes.values()]
        total = sum(self._sizes)
        self._buffer = torch.zeros(total, dtype=torch.int64, device=device)
        self._ring = torch.zeros(
            (_RING, total), dtype=torch.int64, pin_memory=device.type == "cuda"
        )
        self._turn = 0
        self.parts = self._named(self._buffer)
        self._hosts = [
            {name: part.numpy() for name, part in self._named(host).items()} for host in self._ring
        ]

    def host(self) -> dict[str, I64]:
        """The next host buffer, by name; it holds what an earlier tick left there."""
        return self._hosts[self._turn]

    def send(self) -> None:
        """Copy it to the device, in stream order; the next one is another."""
        self._buffer.copy_(self._ring[self._turn], non_blocking=True)
        self._turn = (self._turn + 1) % _RING

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        parts = flat.split(self._sizes)
        shapes = self._shapes.items()
        return {name: part.view(shape) for (name, shape), part in zip(shapes, parts, strict=True)}
