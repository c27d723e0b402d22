"""Puts what new residents bring into the device's arrays."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rlt_core.runtime.batch import SlotParams
from rlt_core.runtime.slots import PROMPT, Slots


def admit(slots: Slots, new: SlotParams) -> None:
    """Put the parameters of new residents in place; they are in phase PROMPT."""
    at = slots.upload(new.slot)
    slots.phase.index_fill_(0, at, PROMPT)
    if slots.key_depth is not None:
        slots.key_depth.index_fill_(0, at, slots.config.max_depth)
    made = np.array([len(tokens) for tokens in new.output_tokens], np.int64)
    slots.num_out[at] = slots.upload(made)
    _admit_numbers(slots, new, at)
    if slots.options is not None and new.options is not None:
        slots.options.admit(new.options, at)
    for name, target in slots.scalar_params.items():
        target[at] = slots.upload(new.params[name])
    for target in slots.trace.values():
        if new.trace is not None:
            target[at, : new.trace.shape[1]] = slots.upload(new.trace).long()
    if slots.masks is not None or new.masked.any():
        slots.make_masks().admit(at, new)
    _admit_penalties(slots, new, at)
    _admit_bias(slots, new, at)


def _admit_numbers(slots: Slots, new: SlotParams, at: Tensor) -> None:
    """The columns of SlotParams, brought over in two copies."""
    whole = SlotParams(
        ints=slots.upload(new.ints),  # type: ignore[arg-type]  # columns of tensors alike
        floats=slots.upload(new.floats),  # type: ignore[arg-type]  # the same
        bias_ids=None,
        bias_values=None,
        params={},
        trace=None,
        prompt_tokens=[],
        output_tokens=[],
    )
    for name, target in (*slots.int_params.items(), *slots.float_params.items()):
        target[at] = getattr(whole, name)
    for name in ("use_policy", "seed", "state_seed", "stop_ids"):
        getattr(slots, name)[at] = getattr(whole, name)
    if slots.lanes is not None:
        slots.lanes.trust[at] = whole.trust


def _admit_penalties(slots: Slots, new: SlotParams, at: Tensor) -> None:
    if slots.counts is None and not new.uses_penalties.any():
        return
    counts, in_prompt = slots.make_counts()
    counts.index_fill_(0, at, 0)
    in_prompt.index_fill_(0, at, False)
    # Per admitted request, never per row of a tick.
    for i in new.uses_penalties.nonzero()[0]:
        slot = int(new.slot[i])
        in_prompt[slot].index_fill_(0, slots.upload(new.prompt_tokens[i]), True)
        made = slots.upload(new.output_tokens[i]).long()
        ones = torch.ones(len(made), dtype=torch.int32, device=slots.device)
        counts[slot].index_add_(0, made, ones)


def _admit_bias(slots: Slots, new: SlotParams, at: Tensor) -> None:
    if new.bias_ids is None and slots.bias_ids is None:
        return
    bias_ids, bias_values = slots.make_bias()
    bias_ids.index_fill_(0, at, -1)
    if new.bias_ids is not None and new.bias_values is not None:
        bias_ids[at] = slots.upload(new.bias_ids)
        bias_values[at] = slots.upload(new.bias_values)
