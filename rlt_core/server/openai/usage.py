"""What a request used, counted while its answers grow."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel

from rlt_core.api.outputs import Increment


class PromptTokensDetails(BaseModel):
    """cached_tokens: prompt positions whose KV was found in the prefix cache."""

    cached_tokens: int


class CompletionTokensDetails(BaseModel):
    """reasoning_tokens: those of think blocks, their tags included."""

    reasoning_tokens: int


class Usage(BaseModel):
    """Tokens of a request, and the mean depth at which the generated ones were read."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    mean_depth: float
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


@dataclass(slots=True)
class UsageCounter:
    """Sums over the prompts and answers of one HTTP request."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    num_loops: int = 0

    def take(self, increment: Increment) -> None:
        """Counts what an answer gained."""
        self.completion_tokens += len(increment.token_ids)
        self.reasoning_tokens += increment.num_reasoning_tokens
        self.num_loops += sum(increment.exit_depths)

    def usage(self) -> Usage:
        """The sums so far."""
        count = self.completion_tokens
        return Usage(
            prompt_tokens=self.prompt_tokens,
            completion_tokens=count,
            total_tokens=self.prompt_tokens + count,
            mean_depth=self.num_loops / count if count else 0.0,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=self.cached_tokens),
            completion_tokens_details=CompletionTokensDetails(
                reasoning_tokens=self.reasoning_tokens
            ),
        )
