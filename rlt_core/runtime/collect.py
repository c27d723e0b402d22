"""A tick's results from the device to the host's arrays."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlt_core.runtime.batch import F32, I64, TickOutput
from rlt_core.runtime.emit import ERROR, Emitted


def to_host(tick: int, out: Emitted) -> TickOutput:
    """Copies what a TickInput's tick emitted; waits for the device."""
    token = torch.where(out.finish == ERROR, -1, out.sampled.token)
    logprob = out.sampled.logprob.double().view(torch.int64)
    columns = (out.slot, token, out.depth, out.sampled.rank, out.finish, logprob)
    host = TickOutput(
        tick=tick,
        columns=_ints(torch.stack(columns)),
        top_ids=_ints(out.sampled.top_ids),
        top_logprobs=_floats(out.sampled.top_logprobs),
        logits=None if out.logits is None else _floats(out.logits),
        score_logits=None if out.score_logits is None else _floats(out.score_logits),
        counts=_ints(out.counts),
    )
    if out.scored is not None and out.score_depth is not None:
        host.score_depth = _ints(out.score_depth)
        host.score_logprob = _floats(out.scored.logprob)
        host.score_rank = _ints(out.scored.rank)
        host.score_top_ids = _ints(out.scored.top_ids)
        host.score_top_logprobs = _floats(out.scored.top_logprobs)
    return host


def _ints(tensor: Tensor) -> I64:
    return np.asarray(tensor.long().cpu().numpy())


def _floats(tensor: Tensor) -> F32:
    return np.asarray(tensor.float().cpu().numpy())
