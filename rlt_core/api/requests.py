"""From SamplingParams to an EngineRequest in numbers: every range that needs the model."""

from __future__ import annotations

import reprlib
import secrets
from collections.abc import Iterable, Mapping

import numpy as np

from rlt_core.api.constraints import Constraints
from rlt_core.api.defaults import GenerationDefaults
from rlt_core.api.depths import DepthReader
from rlt_core.api.model_options import OptionReader
from rlt_core.api.sampling_params import MAX_STOP_IDS, SamplingParams
from rlt_core.contract.errors import LengthError, RequestError
from rlt_core.runtime.batch import I64
from rlt_core.runtime.philox_ints import sibling_seed
from rlt_core.schedule.request import EngineRequest
from rlt_core.stage.messages import StageReport

SEED_BITS = 53  # a drawn seed survives a JSON reader that keeps numbers as doubles


def draw_seed() -> int:
    """The seed of a request that names none."""
    return secrets.randbits(SEED_BITS)


class RequestBuilder:
    """Checks requests against what a stage serves and writes them in numbers."""

    def __init__(self, report: StageReport, defaults: GenerationDefaults) -> None:
        self._report, self._defaults = report, defaults
        self._depths, self._options = DepthReader(report), OptionReader(report)
        self.constraints = Constraints(report.vocab_size)
        self._eos = tuple(dict.fromkeys((*report.eos_token_ids, *defaults.eos_token_ids)))

    def generate(
        self,
        prompt: I64,
        params: SamplingParams,
        request_ids: Iterable[int],
        *,
        turn_end_ids: tuple[int, ...] | None = None,
    ) -> list[EngineRequest]:
        """The n requests of one prompt; RequestError naming what is out of range.

        turn_end_ids: what ends a turn of a chat besides the model's own end; None for no chat.
        """
        if len(prompt) + 1 > self._report.max_len:
            raise self._too_long("prompt", len(prompt), " and at least 1 output")
        max_tokens = params.max_tokens or self._report.max_len
        depths = self._depths.read(params, max_tokens)
        num_positions = min(len(prompt) + max_tokens, self._report.max_len)
        own = self._options.read(params.extra, num_positions)
        stop_ids = self._stop_ids(params, turn_end_ids or ())
        if turn_end_ids is not None and not (stop_ids or params.stop or params.ignore_eos):
            raise RequestError("stop_token_ids", _ENDLESS)
        self._check_bias(params.logit_bias or {})
        seed = draw_seed() if params.seed is None else params.seed
        sampling = self.sampling(params)
        return [
            EngineRequest(
                request_id=request_id,
                prompt=prompt,
                prompt_len=len(prompt),
                max_tokens=max_tokens,
                stop_ids=stop_ids,
                loops=depths.loops,
                min_loops=depths.min_loops,
                max_loops=depths.max_loops,
                use_policy=depths.use_policy,
                exit_params=depths.exit_params,
                trace=depths.trace,
                temperature=float(sampling["temperature"]),
                top_p=float(sampling["top_p"]),
                top_k=int(sampling["top_k"]),
                min_p=float(sampling["min_p"]),
                repetition_penalty=float(sampling["repetition_penalty"]),
                presence_penalty=float(params.presence_penalty),
                frequency_penalty=float(params.frequency_penalty),
                logit_bias=dict(params.logit_bias or {}),
                seed=sibling_seed(seed, index),
                priority=params.priority,
                state_seed=own.state_seed,
                options=own.options,
                tables=own.tables,
                num_logprobs=-1 if params.logprobs is None else params.logprobs,
                # The prompt is the same for all siblings; the first one reads it.
                prompt_logprobs=params.prompt_logprobs if index == 0 else None,
            )
            for index, request_id in zip(range(params.n), request_ids, strict=False)
        ]

    def score(
        self, tokens: I64, prompt_len: int, params: SamplingParams, request_id: int
    ) -> EngineRequest:
        """The request that scores a text; positions before `prompt_len` run all loops."""
        if len(tokens) > self._report.max_len:
            raise self._too_long("token_ids", len(tokens))
        if len(tokens) < 2:
            raise RequestError("token_ids", "a text of one token has nothing to score")
        if not 0 <= prompt_len <= len(tokens):
            raise RequestError("prompt_len", f"{prompt_len} is not 0 to {len(tokens)}")
        depths = self._depths.read(params, len(tokens))
        own = self._options.read(params.extra, len(tokens))
        return EngineRequest(
            request_id=request_id,
            prompt=tokens,
            kind="score",
            prompt_len=prompt_len,
            loops=depths.loops,
            min_loops=depths.min_loops,
            max_loops=depths.max_loops,
            use_policy=depths.use_policy,
            exit_params=depths.exit_params,
            trace=depths.trace,
            state_seed=own.state_seed,
            options=own.options,
            tables=own.tables,
            num_logprobs=-1 if params.logprobs is None else params.logprobs,
        )

    def tokens(self, name: str, ids: object) -> I64:
        """A checked prompt: a sequence of ids inside the vocabulary, at least one."""
        vocab = self._report.vocab_size
        if isinstance(ids, np.ndarray):
            ids = ids.tolist()
        if not isinstance(ids, (list, tuple, range)):
            raise RequestError(name, f"{type(ids).__name__} is not a list of token ids")
        if not ids:
            raise RequestError(name, "is empty; at least one token is needed")
        for token in ids:
            if isinstance(token, bool) or not isinstance(token, int):
                raise RequestError(name, f"{reprlib.repr(token)} is not a token id")
            if not 0 <= token < vocab:
                raise RequestError(
                    name, f"token id {token} is outside the vocabulary (0 to {vocab - 1})"
                )
        return np.asarray(ids, np.int64)

    def sampling(self, params: SamplingParams) -> dict[str, float | int]:
        """The sampling values that are used, defaults of the checkpoint included."""
        used: dict[str, float | int] = {}
        for name, neutral in _NEUTRAL.items():
            given = getattr(params, name)
            used[name] = self._defaults.values.get(name, neutral) if given is None else given
        used["top_k"] = max(0, int(used["top_k"]))
        return used

    def from_checkpoint(self, params: SamplingParams) -> tuple[str, ...]:
        """Names of the sampling values that generation_config.json gave."""
        return tuple(n for n in self._defaults.values if getattr(params, n) is None)

    def _stop_ids(self, params: SamplingParams, turn_end_ids: tuple[int, ...]) -> tuple[int, ...]:
        for token in params.stop_token_ids:
            if token >= self._report.vocab_size:
                raise RequestError(
                    "stop_token_ids",
                    f"token id {token} is outside the vocabulary "
                    f"(0 to {self._report.vocab_size - 1})",
                )
        eos = (
            ()
            if params.ignore_eos
            else (*self._eos, *(t for t in turn_end_ids if t < self._report.vocab_size))
        )
        ids = tuple(dict.fromkeys((*eos, *params.stop_token_ids)))
        if len(ids) > MAX_STOP_IDS:
            raise RequestError(
                "stop_token_ids",
                f"{len(ids)} ids with the model's own {len(eos)}; at most {MAX_STOP_IDS} fit",
            )
        return ids

    def _check_bias(self, bias: Mapping[int, float]) -> None:
        vocab = self._report.vocab_size
        for token in bias:
            if token >= vocab:
                raise RequestError(
                    "logit_bias", f"token id {token} is outside the vocabulary (0 to {vocab - 1})"
                )

    def _too_long(self, field: str, length: int, more: str = "") -> LengthError:
        report = self._report
        reason = (
            f"{length} tokens{more} are too long: a request may have {report.max_len} "
            f"(max_model_len; the pool holds {report.token_capacity})"
        )
        return LengthError(field, reason, length)


_ENDLESS = (
    "no file of the checkpoint names an end-of-text token, so that no turn would end\n"
    "Fix: give stop_token_ids or stop (--stop-token-ids, --stop), or ignore_eos"
)
_NEUTRAL: dict[str, float | int] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
