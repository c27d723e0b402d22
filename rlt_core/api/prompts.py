"""What a user may hand over as prompts, one form after another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlt_core.api.chat import Conversation
from rlt_core.api.requests import RequestBuilder
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.api.tokenizer import Tokenizer, why_unreadable
from rlt_core.api.turn import Turn
from rlt_core.contract.errors import RequestError
from rlt_core.runtime.batch import I64

Prompt = str | Mapping[str, object] | Conversation
_IDS = "prompt_token_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPrompt:
    """A prompt in numbers; `text` is None when it came as token ids, `turn` when it is no chat."""

    text: str | None
    tokens: I64
    turn: Turn | None = None


def read_prompt(prompt: object, builder: RequestBuilder, tokenizer: Tokenizer | None) -> ReadPrompt:
    """Text, {"prompt_token_ids": [...]} or a Conversation; RequestError for anything else."""
    if isinstance(prompt, str):
        return ReadPrompt(text=prompt, tokens=_encode(prompt, builder, tokenizer))
    if isinstance(prompt, Mapping):
        unknown = set(prompt) - {_IDS, "prompt"}
        if _IDS not in prompt or unknown:
            raise RequestError("prompt", f"a table must hold '{_IDS}' (it holds {sorted(prompt)})")
        text = prompt.get("prompt")
        tokens = builder.tokens(_IDS, prompt[_IDS])
        return ReadPrompt(text=text if isinstance(text, str) else None, tokens=tokens)
    if isinstance(prompt, Conversation):
        chat = prompt.rendered
        tokens = builder.tokens("messages", chat.tokens)
        return ReadPrompt(text=chat.text, tokens=tokens, turn=chat.turn)
    raise RequestError(
        "prompt",
        f"a prompt is text or {{'{_IDS}': [...]}}, not {type(prompt).__name__}",
    )


def as_list(prompts: object) -> tuple[list[object], bool]:
    """(prompts, whether it was a single one)."""
    if isinstance(prompts, (str, Mapping, Conversation)):
        return [prompts], True
    if isinstance(prompts, Sequence):
        return list(prompts), False
    raise TypeError(f"prompts must be text, a table or a list, not {type(prompts).__name__}")


def check_single(text: object) -> None:
    """RequestError for a list of texts where one is read."""
    if isinstance(text, (list, tuple)) and any(isinstance(t, (str, Mapping)) for t in text):
        reason = f"one text is scored at a time, and this is a list of {len(text)}"
        raise RequestError("text", f"{reason}\nFix: [llm.score(text) for text in texts]")


def spread_params(params: object, count: int) -> list[SamplingParams]:
    """One SamplingParams per prompt."""
    if params is None:
        return [SamplingParams()] * count
    if isinstance(params, SamplingParams):
        return [params] * count
    if not isinstance(params, Sequence) or not all(isinstance(p, SamplingParams) for p in params):
        raise TypeError("sampling_params must be SamplingParams or a list of them")
    if len(params) != count:
        raise ValueError(f"{len(params)} sampling_params for {count} prompts")
    return list(params)


def check_text_options(params: SamplingParams, tokenizer: Tokenizer | None) -> None:
    """RequestError when an option needs text and there is no tokenizer."""
    if params.stop and tokenizer is None:
        raise RequestError("stop", "stop strings need a tokenizer; use stop_token_ids")


def _encode(text: str, builder: RequestBuilder, tokenizer: Tokenizer | None) -> I64:
    if tokenizer is None:
        raise RequestError(
            "prompt",
            "this checkpoint has no tokenizer, so text cannot be read; "
            "give token ids (--prompt-token-ids, prompt_token_ids) or a tokenizer (--tokenizer)",
        )
    if not text:
        raise RequestError("prompt", "is empty; at least one token is needed")
    try:
        tokens = tokenizer.encode(text)
    except (UnicodeError, TypeError, ValueError) as error:
        raise RequestError("prompt", why_unreadable(text, error)) from error
    return builder.tokens("prompt", tokens)
