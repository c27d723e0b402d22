"""What a decode row adds to a tick: by the bytes that it reads, and by its arithmetic."""

from __future__ import annotations

from rlt_core.kv.plan import KVPlan
from rlt_core.runtime.batch import I32

# All as shares of a tick without rows, 1.15 ms, measured on one H200 with Ouro-1.4B's shape
# (docs/performance.md). The first: what a row with hardly any KV adds, at batch 8 to 128.
_LEAST = 0.006
# KV is read so many times as fast as the weights, whose products are short and wait for each other.
_SPEED = 1.7
# The products of a row: up to so many rows they wait for memory, above it for the tensor cores.
_FEW, _FREE, _DENSE = 128, 0.0017, 0.004


class Traffic:
    """Compares the KV that a row reads in one loop with the weights; weight_bytes 0: never."""

    def __init__(self, kv: KVPlan, weight_bytes: int) -> None:
        self._weight_bytes = weight_bytes * _SPEED
        self._position_bytes = sum(
            2 * track.num_layers * track.num_kv_heads * track.head_dim * kv.element_bytes
            for track in kv.tracks
            if track.per_depth
        )

    def row_cost(self, lengths: I32) -> float:
        """Of a row of the mean length; lengths int32 [S], 0 for slots without a request."""
        used = lengths[lengths > 0] if self._weight_bytes else lengths[:0]
        if not len(used):
            return 0.0
        return _LEAST + float(used.mean()) * self._position_bytes / self._weight_bytes


def tick_cost(rows: int, live: int, row_cost: float) -> float:
    """A tick of so many rows, of which `live` take a loop: 1 for a tick without rows, and where
    nothing is known of what a row costs."""
    if not row_cost:
        return 1.0
    dense = _FREE * min(rows, _FEW) + _DENSE * max(rows - _FEW, 0)
    return 1 + dense + live * max(row_cost - _FREE, 0.0)
