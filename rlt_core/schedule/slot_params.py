"""The device's view of newly admitted requests: SlotParams from Records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlt_core.contract.specs import ParamSpec
from rlt_core.runtime.batch import F32, I32, I64, NUM_BIAS, NUM_STOP_IDS, SlotParams
from rlt_core.schedule.options import ModelOptions
from rlt_core.schedule.record import Record
from rlt_core.schedule.request import EngineRequest

_UNUSED = (-1,) * NUM_STOP_IDS


class ParamBuilder:
    """Makes SlotParams for a policy's parameters and requests of up to max_len positions."""

    def __init__(self, params: Sequence[ParamSpec], max_len: int, options: ModelOptions) -> None:
        self._scalars = {p.name: _default(p) for p in params if p.kind != "depths"}
        self._has_trace = any(param.kind == "depths" for param in params)
        self._max_len, self._options = max_len, options

    def build(self, records: Sequence[Record]) -> SlotParams:
        """Records that have just got their slots, in the order of the arrays' entries."""
        ints, floats, prompts, outputs, has_bias = [], [], [], [], False
        for record in records:
            of_ints, of_floats = record.params
            of_ints[0, 0] = record.slot
            ints.append(of_ints)
            floats.append(of_floats)
            prompts.append(record.request.prompt)
            outputs.append(record.tokens)
            if record.request.logit_bias:
                has_bias = True
        alone = len(records) == 1
        made = SlotParams(
            ints=ints[0] if alone else np.concatenate(ints),
            floats=floats[0] if alone else np.concatenate(floats),
            params=self._params(records) if self._scalars else {},
            trace=self._traces(records) if self._has_trace else None,
            prompt_tokens=prompts,
            output_tokens=outputs,
        )
        if has_bias:
            made.bias_ids, made.bias_values = _bias(records)
        if self._options.declared:
            made.options = self._options.columns(records)
        return made

    def _params(self, records: Sequence[Record]) -> dict[str, F32]:
        return {name: self._scalar(name, records) for name in self._scalars}

    def _scalar(self, name: str, records: Sequence[Record]) -> F32:
        default = self._scalars[name]
        values = [record.request.exit_params.get(name, default) for record in records]
        return np.array(values, np.float32)

    def _traces(self, records: Sequence[Record]) -> I32:
        out = np.empty((len(records), self._max_len), np.int32)
        for row, record in zip(out, records, strict=True):
            trace = record.request.trace
            given = trace[: self._max_len] if trace is not None else ()
            row[: len(given)] = given
            row[len(given) :] = record.request.loops  # outputs past the record take all loops
        return out


def _default(param: ParamSpec) -> float:
    # A request under `fixed` has no value; the device never looks at it.
    return next((float(v) for v in (param.default, param.minimum) if v is not None), 0.0)


def param_rows(request: EngineRequest, max_position: int) -> tuple[I64, F32]:
    """A request's row of SlotParams.ints and of SlotParams.floats, each as an array of one row; its
    slot and trust are still to come."""
    r = request
    penalties = (r.repetition_penalty, r.presence_penalty, r.frequency_penalty)
    ints = (
        -1,
        r.seed,
        r.state_seed,
        r.loops,
        r.min_loops,
        r.max_loops,
        r.prompt_len if r.kind == "score" else len(r.prompt),
        r.max_tokens,
        max_position,
        r.top_k,
        r.num_logprobs if r.prompt_logprobs is None else max(r.num_logprobs, r.prompt_logprobs),
        r.use_policy,
        penalties != (1.0, 0.0, 0.0),
        r.mask is not None,
        *r.stop_ids,
        *_UNUSED[len(r.stop_ids) :],
    )
    floats = (r.temperature, r.top_p, r.min_p, *penalties, 1.0)
    return np.array((ints,), np.int64), np.array((floats,), np.float32)


def _bias(records: Sequence[Record]) -> tuple[I64, F32]:
    ids = np.full((len(records), NUM_BIAS), -1, np.int64)
    values = np.zeros((len(records), NUM_BIAS), np.float32)
    for i, record in enumerate(records):
        bias = record.request.logit_bias
        ids[i, : len(bias)] = list(bias)
        values[i, : len(bias)] = list(bias.values())
    return ids, values
