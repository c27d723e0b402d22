"""A tick's results on their way from the device to the host's arrays."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlt_core.runtime.batch import F32, I64, NUM_EVENT_COLUMNS, TickOutput
from rlt_core.runtime.emit import ERROR, Emitted


@dataclass(slots=True, kw_only=True)
class Results:
    """What a tick gave, still on its device.

    ints: int64 [6 E + 5]: the columns of TickOutput, then its counts. The others as there; None
    where a tick has none.
    """

    ints: Tensor
    top_ids: Tensor | None = None
    top_logprobs: Tensor | None = None
    score_depth: Tensor | None = None
    score_logprob: Tensor | None = None
    score_rank: Tensor | None = None
    score_top_ids: Tensor | None = None
    score_top_logprobs: Tensor | None = None
    drafts: Tensor | None = None
    logits: Tensor | None = None
    score_logits: Tensor | None = None


def results_of(out: Emitted) -> Results:
    """What the host is told, in as few tensors as there can be."""
    token = torch.where(out.finish == ERROR, -1, out.sampled.token)
    logprob = out.sampled.logprob.double().view(torch.int64)
    columns = (out.slot, token, out.depth, out.sampled.rank, out.finish, logprob, out.counts)
    found = Results(
        ints=torch.cat(columns),
        top_ids=out.sampled.top_ids,
        top_logprobs=out.sampled.top_logprobs,
        drafts=out.drafts,
        logits=out.logits,
        score_logits=out.score_logits,
    )
    if out.scored is not None:
        found.score_depth = out.score_depth
        found.score_logprob, found.score_rank = out.scored.logprob, out.scored.rank
        found.score_top_ids = out.scored.top_ids
        found.score_top_logprobs = out.scored.top_logprobs
    return found


class Pending:
    """The results of one tick while they are copied; made when the tick has been submitted, so
    that the copy stands before the next tick in the device's stream."""

    def __init__(self, tick: int, results: Results) -> None:
        self.tick = tick
        self._host = {
            field.name: found.to("cpu", non_blocking=True)
            for field in fields(results)
            if (found := getattr(results, field.name)) is not None
        }
        self._done: torch.cuda.Event | None = None
        if results.ints.is_cuda:
            self._done = torch.cuda.Event()
            self._done.record()

    def wait(self) -> TickOutput:
        """The results, once the device has given them."""
        if self._done is not None:
            self._done.synchronize()
        host = dict(self._host)
        ints = _ints(host.pop("ints"))
        columns = ints[: len(ints) - NUM_COUNTS].reshape(NUM_EVENT_COLUMNS, -1)
        others: dict[str, Any] = {
            name: _floats(found) if found.is_floating_point() else _ints(found)
            for name, found in host.items()
        }
        return TickOutput(
            tick=self.tick, columns=columns, counts=ints[len(ints) - NUM_COUNTS :], **others
        )


NUM_COUNTS = 5


def _ints(tensor: Tensor) -> I64:
    return np.asarray(tensor.long().numpy())


def _floats(tensor: Tensor) -> F32:
    return np.asarray(tensor.float().numpy())
