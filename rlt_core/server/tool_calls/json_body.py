"""A call written as a JSON object: {"name": "f", "arguments": {...}}."""

from __future__ import annotations

import json

_ARGUMENTS = ("arguments", "parameters")
_KEY, _COLON, _VALUE = range(3)


class JsonBody:
    """Reads the object character by character, and gives the arguments' own text on as it comes.

    A tag outside of a string is no JSON and ends it. Arguments that come before the name wait for
    it; arguments written as a JSON string are unpacked at its end; none at all are {}.
    """

    def __init__(self) -> None:
        self.name: str | None = None
        self._state, self._depth = _KEY, 0
        self._in_string, self._escaped = False, False
        self._key, self._value = "", ""
        self._num_read = 0  # characters of the arguments' value that are certain
        self._ready, self._has_arguments = "", False

    def feed(self, text: str) -> tuple[str, str | None]:
        """(arguments that are certain now, the rest behind the object or None)."""
        for place, char in enumerate(text):
            if self._in_string:
                self._inside(char)
            elif char == "<":
                self._end_value()
                return self._finish(), text[place:]
            elif self._depth == 0:
                self._depth = int(char == "{")
            elif self._outside(char):
                return self._finish(), text[place + 1 :]
        self._read_on()
        return self._given(), None

    def _inside(self, char: str) -> None:
        self._take(char)
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            if self._state == _KEY:
                self._state = _COLON

    def _outside(self, char: str) -> bool:
        """A character outside of strings; True for the brace that ends the object."""
        if self._depth == 1 and char in ",}":
            self._end_value()
            return char == "}"
        if self._state == _COLON and char == ":":
            self._state = _VALUE
        elif char == '"' or self._state == _VALUE:
            self._in_string = char == '"'
            self._take(char)
            self._depth += (char in "{[") - (char in "}]")
        return False

    def _take(self, char: str) -> None:
        if self._state == _KEY:
            self._key += char
        elif self._state == _VALUE:
            self._value += char

    def _read_on(self) -> None:
        """Gives on what a JSON object as arguments has gained."""
        if self._names_arguments() and self._value.lstrip().startswith("{"):
            value = self._value.strip()
            self._ready += value[self._num_read :]
            self._num_read = len(value)

    def _end_value(self) -> None:
        if self._names_arguments():
            self._read_on()
            if not self._num_read:
                self._ready = _unpacked(self._value)
            self._has_arguments = True
        elif self._state == _VALUE and _loaded(self._key) == "name":
            name = _loaded(self._value)
            self.name = self.name or (name if isinstance(name, str) and name else None)
        self._state, self._key, self._value = _KEY, "", ""

    def _names_arguments(self) -> bool:
        is_first = self._state == _VALUE and not self._has_arguments
        return is_first and _loaded(self._key) in _ARGUMENTS

    def _finish(self) -> str:
        if self.name is not None and not self._has_arguments:
            self._ready = "{}"
        return self._given()

    def _given(self) -> str:
        if self.name is None:
            return ""
        ready, self._ready = self._ready, ""
        return ready


def _loaded(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _unpacked(value: str) -> str:
    """Arguments that are no object: a JSON string holds their text, null stands for none."""
    found = _loaded(value)
    return found if isinstance(found, str) else value.strip() if found is not None else "{}"
