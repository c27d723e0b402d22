"""The ranges of this very engine in the OpenAPI: its vocabulary, its depths, its names."""

from __future__ import annotations

import copy
from typing import Any

from rlt_core.server.context import ServerContext

_TOKENS = ("prompt", "stop_token_ids", "tokens")
_LENGTHS = ("max_tokens", "max_completion_tokens")
_DEPTHS = ("loops", "min_loops", "max_loops")


def with_served_ranges(openapi: dict[str, Any], context: ServerContext) -> dict[str, Any]:
    """A copy whose requests say what this server takes; unchanged until the engine is known."""
    report = context.llm.known_report
    if report is None:
        return openapi
    found = copy.deepcopy(openapi)
    policies = sorted({report.exit_policy, "fixed"})
    for name, schema in found["components"]["schemas"].items():
        if not name.endswith("Request"):
            continue
        for field, value in schema["properties"].items():
            if field in _TOKENS:
                _narrow(value, "integer", maximum=report.vocab_size - 1)
            elif field in _DEPTHS:
                _narrow(value, "integer", maximum=report.max_depth)
            elif field in _LENGTHS and context.settings.max_tokens is not None:
                _narrow(value, "integer", maximum=context.settings.max_tokens)
            elif field == "model":
                _narrow(value, "string", enum=list(context.names))
            elif field == "exit_policy":
                _narrow(value, "string", enum=policies)
    return found


def _narrow(schema: dict[str, Any], kind: str, **limits: Any) -> None:
    """Sets limits on every schema of a type inside another."""
    if schema.get("type") == kind:
        schema.update(limits)
    for inner in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        _narrow(inner, kind, **limits)
    if isinstance(schema.get("items"), dict):
        _narrow(schema["items"], kind, **limits)
