"""What a user gets back."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlt_core.contract.errors import RltError


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprob:
    """The log probability of one token before penalties, temperature and masks; its rank among
    all tokens, from 1; its text and its bytes (which may be a part of a character), or None
    without a tokenizer."""

    logprob: float
    rank: int
    decoded_token: str | None = None
    token_bytes: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of a request, and the loops its generated ones were read at.

    num_loops is the sum of the exit depths, mean_depth their mean (0.0 without a token).
    cached_tokens: those of the prompt whose KV was in the prefix cache when it began.
    """

    prompt_tokens: int
    completion_tokens: int
    num_loops: int
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Prompt and generated tokens."""
        return self.prompt_tokens + self.completion_tokens

    @property
    def mean_depth(self) -> float:
        """Mean exit depth of the generated tokens."""
        return self.num_loops / self.completion_tokens if self.completion_tokens else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafts:
    """What guessing tokens ahead came to: guesses that were checked against the true token, those
    of them that held, and the loops of rows that were dropped with the others."""

    checked: int = 0
    held: int = 0
    wasted_loops: int = 0

    @property
    def acceptance(self) -> float:
        """Share of the checked guesses that held; 0.0 where none was checked."""
        return self.held / self.checked if self.checked else 0.0


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One of the n answers of a request.

    exit_depths[i] is the depth, from 1, at which token i was read. text is None without a
    tokenizer. reasoning is what an answer of `LLM.chat` says in its think block, and is not part
    of text; None where there is no block; num_reasoning_tokens counts its tokens, the tags' too.
    finish_reason: "stop", "length", "abort" or "error";
    stop_reason: the stop string, or the id of `stop_token_ids`, that ended it (None for the
    model's own end and for others).
    logprobs (when asked): per token, id -> Logprob of that token and the alternatives. drafts: None
    unless the strategy guesses tokens ahead.
    """

    index: int
    text: str | None
    token_ids: list[int]
    exit_depths: list[int]
    seed: int
    finish_reason: str | None
    stop_reason: int | str | None = None
    reasoning: str | None = None
    num_reasoning_tokens: int = 0
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    drafts: Drafts | None = None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """One prompt's answers, in the order of the prompts.

    error is set, and outputs is empty, when this request was refused or failed. sampling holds
    the values really used; from_generation_config names those that the checkpoint gave.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    usage: Usage
    sampling: dict[str, float | int] = field(default_factory=dict)
    from_generation_config: tuple[str, ...] = ()
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    error: RltError | None = None
    finished: bool = True

    @property
    def exit_depths(self) -> list[int]:
        """Exit depths of the first answer."""
        return self.outputs[0].exit_depths if self.outputs else []


@dataclass(slots=True, kw_only=True)
class ScoreOutput:
    """A text as the model scores it: entry i is about token i given those before it.

    The first entry of logprobs, ranks and exit_depths is None: nothing stands before it.
    exit_depths[i] is the depth at which position i - 1 was read to score token i.
    """

    request_id: int
    token_ids: list[int]
    logprobs: list[float | None]
    ranks: list[int | None]
    exit_depths: list[int | None]
    alternatives: list[dict[int, Logprob] | None] | None = None

    @property
    def total_logprob(self) -> float:
        """Sum over all scored tokens."""
        return sum(value for value in self.logprobs if value is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """What a streamed answer gained: `text` and `reasoning` may be empty while bytes, a possible
    stop string or a possible tag are held back. The last one has a finish_reason.

    logprobs (when asked): one table for each of token_ids, as in CompletionOutput.
    num_reasoning_tokens: how many more tokens are known to belong to the think block."""

    index: int
    text: str
    token_ids: tuple[int, ...]
    exit_depths: tuple[int, ...]
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    reasoning: str = ""
    num_reasoning_tokens: int = 0
    logprobs: tuple[dict[int, Logprob], ...] | None = None
