"""A check for schemathesis: what the schema allows is served, or refused for a reason that no
schema can say. SCHEMATHESIS_HOOKS names this module."""

from __future__ import annotations

from typing import Any

import schemathesis
from schemathesis import GenerationMode

# Refused although each field is right by itself: fields that exclude or need one another, names
# and grammars inside a text, what the model is asked for does not have.
_TOGETHER = (
    "best_of",
    "echo",
    "max_tokens",
    "min_loops",
    "max_loops",
    "loops",
    "top_logprobs",
    "stream_options",
    "structured",
    "structured_outputs",
    "response_format",
    "tool_choice",
    "tools",
    "messages",
    "add_generation_prompt",
    "add_special_tokens",
    "continue_final_message",
    "chat_template_kwargs",
    "reasoning_effort",
    "prompt",
    "trace",
    "exit_params",
    "exit_threshold",
    "stop_token_ids",
    "logit_bias",
    "seed",  # the tool rounds the largest seed up to a double
)


def refusals_say_why(ctx: Any, response: Any, case: Any) -> None:
    """A 400 to a request that the schema allows names a field of _TOGETHER, or an option by a name
    of the request's own (exit_params, extra)."""
    mode = case.meta.generation.mode if case.meta is not None else None
    if mode != GenerationMode.POSITIVE or response.status_code != 400:
        return
    problem = response.json()["error"]
    param = problem["param"]
    if param is None:
        raise AssertionError(f"a refusal that names no field: {problem['message']}")
    body = case.body if isinstance(case.body, dict) else {}
    own = {f"{part}.{name}" for part in ("exit_params", "extra") for name in body.get(part) or ()}
    first = param.partition(".")[0].partition("[")[0]
    if first not in _TOGETHER and param not in own:
        raise AssertionError(f"the schema allows what is refused: {problem['message']}")


schemathesis.check(refusals_say_why)
