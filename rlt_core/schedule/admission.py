"""Which requests can run at all, and what each needs: a request becomes a Record or is refused."""

from __future__ import annotations

import numpy as np

from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import RequestError
from rlt_core.kv.accounting import page_rows
from rlt_core.kv.plan import KVPlan
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.batch import I64, NUM_BIAS, NUM_STOP_IDS
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.schedule.options import ModelOptions
from rlt_core.schedule.record import Record
from rlt_core.schedule.request import EngineRequest
from rlt_core.schedule.slot_params import param_rows


class Intake:
    """Checks requests against what the stage can ever hold."""

    def __init__(self, plan: Plan, config: EngineConfig, kv: KVPlan, options: ModelOptions) -> None:
        self._plan, self._config, self._kv, self._options = plan, config, kv, options
        depths = range(1, config.max_depth + 1)
        self._prompt_rows = [len(page_rows(kv, loops, "prompt")) for loops in depths]
        self._kept_rows = [len(page_rows(kv, loops, "decode")) for loops in depths]
        self._most_loops = min(config.max_depth, kv.max_depth)
        self._any_loops = Word.LOOPS_OVERRIDE in plan.model.provides
        self._needs_trace = any(param.kind == "depths" for param in plan.policy.params)
        self._required = [
            param.name
            for param in plan.policy.params
            if param.kind != "depths" and param.default is None
        ]

    def record(self, request: EngineRequest, serial: int) -> Record:
        """The record of a request that can run; RequestError for one that never can."""
        self._check_kind(request)
        self._check_loops(request)
        self._check_prompt(request)
        self._check_exit(request)
        _check_sampling(request, self._config.max_logprobs)
        self._options.check(request)
        loops = request.loops - 1
        max_position = self._max_position(request)
        return Record(
            request=request,
            serial=serial,
            rank=(request.priority, serial),
            max_position=max_position,
            need=_need(request, max_position),
            pages_prompt=self._prompt_rows[loops],
            pages_kept=self._kept_rows[loops],
            params=param_rows(request, max_position),
            chains=self._options.chained(request) is not None,
            tables=self._tables(request),
        )

    def _tables(self, request: EngineRequest) -> dict[str, int] | None:
        if not request.tables:
            return None
        outputs = request.max_tokens if request.kind == "generate" else 0
        num_rows = min(len(request.prompt) + outputs, self._config.max_len)
        return self._options.tables.take(request.tables, num_rows)

    def _check_kind(self, request: EngineRequest) -> None:
        if request.kind not in ("generate", "score"):
            raise RequestError("kind", f"'{request.kind}' is neither 'generate' nor 'score'")
        if request.kind == "generate" and request.max_tokens < 1:
            raise RequestError("max_tokens", f"{request.max_tokens} is below 1")
        if request.kind == "score" and not 0 <= request.prompt_len <= len(request.prompt):
            reason = f"{request.prompt_len} is not within the {len(request.prompt)} tokens"
            raise RequestError("prompt_len", reason)

    def _check_loops(self, request: EngineRequest) -> None:
        if not 1 <= request.loops <= self._most_loops:
            reason = f"{request.loops} is not within 1 to {self._most_loops}"
            raise RequestError("loops", reason)
        own = self._plan.shape.loops
        if request.loops != own and not self._any_loops:
            raise RequestError("loops", f"{request.loops}; this model always takes {own}")
        if not 1 <= request.min_loops <= request.loops:
            reason = f"{request.min_loops} is not within 1 to {request.loops} (loops)"
            raise RequestError("min_loops", reason)
        if not request.min_loops <= request.max_loops <= request.loops:
            low, high = request.min_loops, request.loops
            reason = f"{request.max_loops} is not within {low} (min_loops) to {high} (loops)"
            raise RequestError("max_loops", reason)

    def _check_prompt(self, request: EngineRequest) -> None:
        prompt = request.prompt
        if not len(prompt):
            raise RequestError("prompt", "it is empty")
        vocab = self._plan.shape.vocab_size
        low, high = _extremes(prompt)
        if low < 0 or high >= vocab:
            bad = low if low < 0 else high
            raise RequestError("prompt", f"token id {bad} is not within 0 to {vocab - 1}")
        # A generating request has at least one output.
        length = len(prompt) + (request.kind == "generate")
        if length > self._config.max_len:
            outputs = " and at least 1 output" if request.kind == "generate" else ""
            raise RequestError(
                "prompt",
                f"{len(prompt)} tokens{outputs}; a request may have {self._config.max_len}",
            )
        self._check_room(request)

    def _check_room(self, request: EngineRequest) -> None:
        """The request alone must fit the pool."""
        score, loops = request.kind == "score", request.loops - 1
        length = request.prompt_len if score else len(request.prompt)
        room = self._positions(self._prompt_rows[loops])
        if length > room:
            reason = f"{length} prompt tokens at {request.loops} loops; the whole pool holds {room}"
            raise RequestError("prompt", reason)
        room = self._positions(self._kept_rows[loops])
        if score and len(request.prompt) - 1 > room:
            reason = f"{len(request.prompt)} tokens to score; the whole pool holds {room + 1}"
            raise RequestError("prompt", reason)

    def _check_exit(self, request: EngineRequest) -> None:
        if not request.use_policy:
            return
        policy = self._plan.policy.id
        for name in self._required:
            if name not in request.exit_params:
                raise RequestError(name, f"exit policy '{policy}' needs a value")
        for name, value in request.exit_params.items():
            if not np.isfinite(value):
                raise RequestError(name, f"{value} is no finite number")
        if self._needs_trace:
            _check_trace(request, policy)

    def _max_position(self, request: EngineRequest) -> int:
        """The last output needs no page, so a request may be one longer than the pool."""
        room = self._positions(self._kept_rows[request.loops - 1])
        return min(self._config.max_len, room + 1)

    def _positions(self, rows: int) -> int:
        return (self._config.num_pages - 1) // rows * self._config.page_size


def _extremes(tokens: I64) -> tuple[int, int]:
    # A reduction costs as much as a hundred list entries.
    if len(tokens) > 200:
        return int(tokens.min()), int(tokens.max())
    listed = tokens.tolist()
    return min(listed), max(listed)


def _need(request: EngineRequest, max_position: int) -> int:
    if request.kind == "score":
        return max(len(request.prompt) - 1, 1)
    # The last output never enters, whether max_tokens or the length limit ends the request.
    return min(len(request.prompt) + request.max_tokens, max_position) - 1


def _check_trace(request: EngineRequest, policy: str) -> None:
    trace = request.trace
    if trace is None:
        raise RequestError("trace", f"exit policy '{policy}' needs one depth per output")
    if len(trace) and not (trace.min() >= 1 and trace.max() <= request.loops):
        raise RequestError("trace", f"depths must be within 1 to {request.loops} (loops)")


def _check_sampling(request: EngineRequest, max_logprobs: int) -> None:
    if len(request.stop_ids) > NUM_STOP_IDS:
        reason = f"{len(request.stop_ids)} given; at most {NUM_STOP_IDS} are possible"
        raise RequestError("stop_ids", reason)
    if len(request.logit_bias) > NUM_BIAS:
        reason = f"{len(request.logit_bias)} entries given; at most {NUM_BIAS} are possible"
        raise RequestError("logit_bias", reason)
    for name, value in (
        ("num_logprobs", request.num_logprobs),
        ("prompt_logprobs", request.prompt_logprobs or 0),
    ):
        if value > max_logprobs:
            raise RequestError(name, f"{value} is above the engine's {max_logprobs}")
    for name, seed in (("seed", request.seed), ("state_seed", request.state_seed)):
        if not -(1 << 63) <= seed < 1 << 63:
            raise RequestError(name, f"{seed} does not fit 64 bits")
