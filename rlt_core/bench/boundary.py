"""What a token needs once, in loops, and so what exits can save at most."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Milliseconds of a loop, and of the work that a token needs once."""

    loop_ms: float
    boundary_ms: float

    @classmethod
    def fit(cls, *, full_ms: float, one_ms: float, loops: int) -> Boundary:
        """From the milliseconds between tokens at `loops` loops and at one."""
        loop_ms = (full_ms - one_ms) / (loops - 1)
        return cls(loop_ms=loop_ms, boundary_ms=max(0.0, one_ms - loop_ms))

    @property
    def loops(self) -> float:
        """The boundary in loops."""
        return self.boundary_ms / self.loop_ms if self.loop_ms > 0 else 0.0

    def bound(self, loops: int, mean: float) -> float:
        """The speed-up over fixed depth that exits with this mean depth can give at most."""
        return (self.loops + loops) / (self.loops + mean)
