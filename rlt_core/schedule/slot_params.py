"""The device's view of newly admitted requests: SlotParams from Records."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rlt_core.contract.specs import ParamSpec
from rlt_core.runtime.batch import F32, I32, I64, NUM_BIAS, NUM_STOP_IDS, SlotParams
from rlt_core.schedule.record import Record

_UNUSED = (-1,) * NUM_STOP_IDS


class ParamBuilder:
    """Makes SlotParams for a policy's parameters and requests of up to max_len positions."""

    def __init__(self, params: Sequence[ParamSpec], max_len: int) -> None:
        self._scalars = {p.name: _default(p) for p in params if p.kind != "depths"}
        self._has_trace = any(param.kind == "depths" for param in params)
        self._max_len = max_len

    def build(self, records: Sequence[Record]) -> SlotParams:
        """Records that have just got their slots, in the order of the arrays' entries."""
        # One array of each kind, a row a field: an admission is part of a tick's host work.
        wide = np.array([_ints(record) for record in records], np.int64).T
        ints = wide[3:11].astype(np.int32)
        floats = np.array([_floats(record) for record in records], np.float32).T
        flags = wide[11:13] != 0
        biased = any(record.request.logit_bias for record in records)
        bias_ids, bias_values = _bias(records) if biased else (None, None)
        return SlotParams(
            slot=wide[0],
            seed=wide[1],
            state_seed=wide[2],
            loops=ints[0],
            min_loops=ints[1],
            max_loops=ints[2],
            prompt_len=ints[3],
            max_tokens=ints[4],
            max_position=ints[5],
            top_k=ints[6],
            num_logprobs=ints[7],
            temperature=floats[0],
            top_p=floats[1],
            min_p=floats[2],
            repetition_penalty=floats[3],
            presence_penalty=floats[4],
            frequency_penalty=floats[5],
            use_policy=flags[0],
            uses_penalties=flags[1],
            stop_ids=wide[13:].T,
            bias_ids=bias_ids,
            bias_values=bias_values,
            params={name: self._scalar(name, records) for name in self._scalars},
            trace=self._traces(records) if self._has_trace else None,
            prompt_tokens=[record.request.prompt for record in records],
            output_tokens=[record.tokens.astype(np.int64) for record in records],
        )

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


def _ints(record: Record) -> tuple[int, ...]:
    r = record.request
    score = r.kind == "score"
    penalties = (r.repetition_penalty, r.presence_penalty, r.frequency_penalty)
    return (
        record.slot,
        r.seed,
        r.state_seed,
        r.loops,
        r.min_loops,
        r.max_loops,
        r.prompt_len if score else len(r.prompt),
        r.max_tokens,
        record.max_position,
        r.top_k,
        r.num_logprobs if r.prompt_logprobs is None else max(r.num_logprobs, r.prompt_logprobs),
        r.use_policy,
        penalties != (1.0, 0.0, 0.0),
        *r.stop_ids,
        *_UNUSED[len(r.stop_ids) :],
    )


def _floats(record: Record) -> tuple[float, ...]:
    r = record.request
    return (
        r.temperature,
        r.top_p,
        r.min_p,
        r.repetition_penalty,
        r.presence_penalty,
        r.frequency_penalty,
    )


def _bias(records: Sequence[Record]) -> tuple[I64, F32]:
    ids = np.full((len(records), NUM_BIAS), -1, np.int64)
    values = np.zeros((len(records), NUM_BIAS), np.float32)
    for i, record in enumerate(records):
        bias = record.request.logit_bias
        ids[i, : len(bias)] = list(bias)
        values[i, : len(bias)] = list(bias.values())
    return ids, values
