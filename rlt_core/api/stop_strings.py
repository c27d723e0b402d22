"""Stop strings across token borders."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Lets text through that can be part of no stop string, and cuts at the first that is whole.

    "First" is the one that ends first in the text (of several that end together the longest), so
    that the result is the same however the text is cut into tokens. A match that has begun is
    held back until it is whole or has become impossible.
    """

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        self._stops, self._include = tuple(stops), include
        self._held = ""
        self.matched: str | None = None

    def feed(self, text: str) -> str:
        """The text that is now certain; after a match nothing more comes."""
        if self.matched is not None:
            return ""
        text = self._held + text
        found = self._first_match(text)
        if found is not None:
            end, stop = found
            self.matched, self._held = stop, ""
            return text[:end] if self._include else text[: end - len(stop)]
        keep = self._num_held(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """What was held, now that no more text comes."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, text: str) -> tuple[int, str] | None:
        ends = [
            (start + len(stop), -len(stop), stop)
            for stop in self._stops
            if (start := text.find(stop)) >= 0
        ]
        if not ends:
            return None
        end, _, stop = min(ends)
        return end, stop

    def _num_held(self, text: str) -> int:
        """How many characters at the end of `text` are the longest beginning of a stop string."""
        return max((_num_begun(text, stop) for stop in self._stops), default=0)


def _num_begun(text: str, stop: str) -> int:
    start = text.find(stop[0], max(0, len(text) - len(stop) + 1))
    while start >= 0 and not stop.startswith(text[start:]):
        start = text.find(stop[0], start + 1)
    return len(text) - start if start >= 0 else 0
