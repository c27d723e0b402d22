"""Who goes first: the smaller priority number, but for what a request has waited.

A level of priority is worth AGE_TICKS ticks: a request is passed by requests of a smaller number
only while these came at most that much later for each level between them. So nobody waits for ever
behind a stream of more urgent ones. Priorities beyond MOST_LEVELS either way count as that one.
"""

from __future__ import annotations

AGE_TICKS = 1000
MOST_LEVELS = 32


def aged_priority(priority: int, arrival: int) -> int:
    """What requests are ordered by, smaller first; arrival: the tick of the request's arrival.

    Priority and age count together, and all requests age alike: the order of two never changes.
    """
    return max(-MOST_LEVELS, min(priority, MOST_LEVELS)) * AGE_TICKS + arrival
