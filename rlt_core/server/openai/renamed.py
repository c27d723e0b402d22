"""Errors of the engine, naming fields as a route does."""

from __future__ import annotations

from collections.abc import Mapping

from rlt_core.contract.errors import LengthError, RequestError

# What the engine calls a prompt.
PROMPT_NAMES = ("prompt", "prompt_token_ids", "token_ids")


class Renamed:
    """Inside, errors name fields as the route does."""

    def __init__(self, names: Mapping[str, str]) -> None:
        self._names = names

    @classmethod
    def prompt(cls, name: str) -> Renamed:
        """The prompt alone."""
        return cls(dict.fromkeys(PROMPT_NAMES, name))

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RequestError) and error.field in self._names:
            name = self._names[error.field]
            if isinstance(error, LengthError):
                raise LengthError(name, error.reason, error.num_tokens) from error
            raise RequestError(name, error.reason) from error
