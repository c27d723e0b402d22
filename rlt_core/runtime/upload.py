"""Arrays from the host to the device, without waiting for what the device is doing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Upload:
    """Copies arrays to one device, in stream order. Onto a GPU they go through pinned memory: a
    copy from ordinary memory would wait until the device is idle."""

    def __init__(self, device: torch.device) -> None:
        self.device, self._waits = device, device.type != "cuda"

    def __call__(self, array: object) -> Tensor:
        """One array, or anything that becomes one, of any dtype."""
        if self._waits:
            return torch.as_tensor(array, device=self.device)
        host = torch.from_numpy(np.ascontiguousarray(array))
        return host.pin_memory().to(self.device, non_blocking=True)

    def ints(self, arrays: Sequence[NDArray[np.int64]]) -> list[Tensor]:
        """Arrays of int64, in one copy."""
        if self._waits:
            return [torch.as_tensor(array, device=self.device) for array in arrays]
        sizes = [array.size for array in arrays]
        flat = torch.empty(sum(sizes), dtype=torch.int64, pin_memory=True)
        np.concatenate([array.reshape(-1) for array in arrays], out=flat.numpy())
        parts = flat.to(self.device, non_blocking=True).split(sizes)
        return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
