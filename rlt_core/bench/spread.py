"""The same measurement several times: what is reported is the median, with its neighbours."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """The least, the median and the most of several repeats."""

    min: float
    median: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Of one value or more."""
        found = list(values)
        return cls(min=min(found), median=statistics.median(found), max=max(found))

    def as_dict(self) -> dict[str, float]:
        """For JSON."""
        return asdict(self)
