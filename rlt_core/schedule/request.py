"""What the engine is asked (EngineRequest) and what it answers (Events). No text in here."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np

from rlt_core.runtime.batch import F32, I32, I64, bits_logprob
from rlt_core.runtime.table_file import TableFile

# Finish codes, the device's and the host's.
RUNNING, STOP, LENGTH, ERROR, ABORT = 0, 1, 2, 3, 4
_NO_INTS, _NO_FLOATS = np.zeros(0, np.int64), np.zeros(0, np.float32)
FINISH_REASONS = {STOP: "stop", LENGTH: "length", ERROR: "error", ABORT: "abort"}


@dataclass(slots=True, kw_only=True)
class EngineRequest:
    """One request in numbers. `request_id` is the client's own unique one.

    kind "generate": prompt, then sampling. kind "score": no sampling; the logprob of every token
    given the ones before, read at the depth the policy says. Positions before `prompt_len` of a
    scored text are prompt positions (all D loops); the others leave by the policy.
    loops, min_loops, max_loops are resolved (no None). exit_params: scalar policy parameters,
    resolved. trace: depths by output index, or None. top_k 0 is off; temperature 0 is greedy.
    options: the model's own, by name, `state_seed` excepted; those left out have their defaults.
    tables: files of the model's table options, which the stage reads when the request arrives.
    prompt_logprobs: None, or the number of alternatives wanted for every prompt token.
    priority: the smaller goes first, then the earlier arrival (as in vLLM).
    mask: the mask of the first output, int32 words as in runtime.mask_rows; None for a request
    without masks. Every further output waits for a mask of its own (stage.messages.Masks).
    """

    request_id: int
    prompt: I64
    kind: str = "generate"
    prompt_len: int = 0
    max_tokens: int = 16
    stop_ids: tuple[int, ...] = ()
    loops: int = 1
    min_loops: int = 1
    max_loops: int = 1
    use_policy: bool = True
    exit_params: dict[str, float] = field(default_factory=dict)
    trace: I32 | None = None
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int = 0
    state_seed: int = 0
    options: dict[str, bool | int | float] = field(default_factory=dict)
    tables: dict[str, TableFile] = field(default_factory=dict)
    num_logprobs: int = 0  # alternatives beside the chosen token; -1: not even the chosen one
    prompt_logprobs: int | None = None
    priority: int = 0
    mask: I32 | None = None


def _row(index: int) -> property:
    return property(lambda self: self.columns[index])


class Events(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one tick gave to clients, as arrays over N tokens.

    columns: int64 [6, N]: request_id, token, depth, rank, finish, logprob (bits of a float64).
    One entry is one generated token, in order within a request; finish is a code above
    (RUNNING while the request goes on). A request that ends without a token (abort, error) has
    an entry with token -1. Scored positions come in `score_*` arrays: position, logprob of the
    token at position + 1, rank, read-out depth; a score request ends with an entry of token -1
    and finish LENGTH. drafts: int64 [2, N] as in TickOutput, where tokens are guessed.
    errors: request id -> sentence, for finish ERROR.
    """

    tick: int
    columns: I64
    top_ids: I64 | None = None  # [N, k]
    top_logprobs: F32 | None = None
    score_request_id: I64 = _NO_INTS
    score_position: I64 = _NO_INTS
    score_logprob: F32 = _NO_FLOATS
    score_rank: I64 = _NO_INTS
    score_depth: I64 = _NO_INTS
    score_top_ids: I64 | None = None
    score_top_logprobs: F32 | None = None
    errors: dict[int, str] = {}
    # Of requests that begin: positions [M] that were in the prefix cache; 0 is left out.
    cached_request_id: I64 = _NO_INTS
    cached_positions: I64 = _NO_INTS
    drafts: I64 | None = None
    # Only when EngineConfig.keep_logits: float32 [N, V] and [scored rows, V].
    logits: F32 | None = None
    score_logits: F32 | None = None

    request_id = _row(0)
    token = _row(1)
    depth = _row(2)
    rank = _row(3)
    finish = _row(4)
    logprob = property(lambda self: bits_logprob(self.columns[5]))


@dataclass(slots=True)
class TickCounts:
    """What a run contained; the equality matrix prints it.

    decode_rows: outputs that decode rows gave; early_rows: decode rows whose depth was decided
    below D. max_wait_ticks: the most ticks between two advances (a cell, an output) of a request
    with a slot; max_queue_ticks: the most ticks that one waited for a slot, or got it back after.
    cache_queries, cache_hits: requests that got a slot, and those of them that began with cached
    pages; cached_positions: positions in these. cache_evictions: cached pages of positions that
    were forgotten for their memory. stood_aside: requests that waited for another's prompt.
    swaps: preemptions whose pages went to host memory.
    guesses_*, wasted_loops: as in api.outputs.Drafts.
    """

    ticks: int = 0
    mixed_depths: int = 0
    prompt_with_decode: int = 0
    split_prompts: int = 0
    parked_rows: int = 0
    preemptions: int = 0
    decode_rows: int = 0
    early_rows: int = 0
    slots_reused: int = 0
    guesses_checked: int = 0
    guesses_held: int = 0
    wasted_loops: int = 0
    aborts_waiting: int = 0
    aborts_prompt: int = 0
    aborts_decode: int = 0
    aborts_preempted: int = 0
    cache_queries: int = 0
    cache_hits: int = 0
    cached_positions: int = 0
    cache_evictions: int = 0
    stood_aside: int = 0
    swaps: int = 0
    max_wait_ticks: int = 0
    max_queue_ticks: int = 0
