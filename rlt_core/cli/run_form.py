"""The form that `rlt run` asks of its answers: --json-schema and --regex."""

from __future__ import annotations

from pathlib import Path

from rlt_core.api.structured import Structured
from rlt_core.contract.errors import OptionError, RequestError


def read_form(json_schema: str | None, regex: str | None) -> Structured | None:
    """The one that was asked for; OptionError for both, or for what cannot be read.

    json_schema: JSON text, or the name of a file that holds it.
    """
    if json_schema is not None and regex is not None:
        raise OptionError("--regex", regex, "--json-schema asks for another form")
    try:
        if regex is not None:
            return Structured(regex=regex)
        return None if json_schema is None else Structured(json_schema=_schema(json_schema))
    except RequestError as error:
        option = "--regex" if json_schema is None else "--json-schema"
        raise OptionError(option, json_schema or regex or "", error.reason) from error


def _schema(given: str) -> str:
    if given.lstrip().startswith(("{", "[", '"')) or given.strip() in ("true", "false", "null"):
        return given
    try:
        return Path(given).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = f"is neither JSON nor a file that can be read ({error})"
        raise OptionError("--json-schema", given, reason) from error
