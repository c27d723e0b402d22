"""A prompt that is echoed with nothing generated behind it (max_tokens=0)."""

from __future__ import annotations

from dataclasses import dataclass

from rlt_core.api.outputs import Logprob
from rlt_core.api.prompts import Prompt
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import RequestError
from rlt_core.server.openai.serving import Serving


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPrompt:
    """Its text where it came as one, its tokens, and their logprobs where they were asked for."""

    text: str | None
    tokens: list[int]
    tables: list[dict[int, Logprob] | None] | None

    @classmethod
    async def of(cls, serving: Serving, prompt: Prompt, params: SamplingParams) -> ScoredPrompt:
        """Scores a prompt at full depth, as a prompt is read; RequestError, BusyError, ..."""
        engine = serving.engine
        text = prompt if isinstance(prompt, str) else None
        tokens = await engine.encode(text) if text is not None else _ids(prompt)
        tables: list[dict[int, Logprob] | None] | None = [None]
        if len(tokens) > 1:
            scored = await engine.score(
                {"prompt_token_ids": tokens},
                prompt_len=len(tokens),
                sampling_params=params,
                deadline=serving.deadline,
            )
            tables = scored.alternatives
        elif tokens[0] >= engine.report.vocab_size:
            raise RequestError("prompt", f"token id {tokens[0]} is outside the vocabulary")
        return cls(text=text, tokens=tokens, tables=None if params.logprobs is None else tables)


def _ids(prompt: Prompt) -> list[int]:
    found = prompt["prompt_token_ids"] if isinstance(prompt, dict) else None
    return list(found) if isinstance(found, list) else []
