"""Reasoning text, kept apart from the answer while both grow."""

from __future__ import annotations

OPEN, CLOSE = "<think>", "</think>"
_BEFORE, _INSIDE, _BEHIND, _ANSWER = range(4)


class ReasoningSplitter:
    """Cuts an assistant's text at its think block.

    inside: the prompt ended with the opening tag, so that the text begins as reasoning. Else a
    block is one that the text itself begins with, white space aside; a tag further on is text of
    the answer. What comes before the closing tag is reasoning, all of it when the tag never
    comes. White space at a tag belongs to neither side. The parts are the same however the text
    is cut into pieces; what may be the beginning of a tag is held back.
    """

    def __init__(self, *, inside: bool) -> None:
        self.opened = inside
        self._inside, self._state = inside, _BEFORE
        self._has_text, self._held = False, ""

    @property
    def closed(self) -> bool:
        """Whether all that comes now is answer."""
        return self._state in (_BEHIND, _ANSWER)

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, answer) that are certain now."""
        self._held += text
        reasoning = ""
        if self._state == _BEFORE:
            self._begin()
        if self._state == _INSIDE:
            reasoning = self._reason()
        return reasoning, self._answer()

    def flush(self) -> tuple[str, str]:
        """What was held, now that no more text comes."""
        held, self._held = self._held, ""
        if self._state == _BEHIND:
            return "", ""
        if self._state == _INSIDE or (self._state == _BEFORE and self._inside):
            return (held if self._has_text else held.lstrip()), ""
        return "", held

    def _begin(self) -> None:
        """Tells whether the text begins with an opening tag, as soon as that is certain. A model
        may repeat the tag that its prompt ended with."""
        text = self._held.lstrip()
        if text.startswith(OPEN):
            self.opened, self._state = True, _INSIDE
            self._held = text[len(OPEN) :]
        elif not OPEN.startswith(text):
            self._state = _INSIDE if self._inside else _ANSWER

    def _reason(self) -> str:
        if not self._has_text:
            self._held = self._held.lstrip()
            self._has_text = bool(self._held)
        before, tag, after = self._held.partition(CLOSE)
        if tag:
            self._state, self._held = _BEHIND, after
            return before.rstrip()
        certain = before[: len(before) - _num_begun(before)].rstrip()
        self._held = before[len(certain) :]
        return certain

    def _answer(self) -> str:
        if self._state == _BEHIND:
            self._held = self._held.lstrip()
            if self._held:
                self._state = _ANSWER
        if self._state != _ANSWER:
            return ""
        text, self._held = self._held, ""
        return text


def _num_begun(text: str) -> int:
    """How many characters at the end of a text may be the beginning of a closing tag."""
    lengths = range(min(len(CLOSE) - 1, len(text)), 0, -1)
    return next((n for n in lengths if CLOSE.startswith(text[-n:])), 0)
