"""Greedy generation in plain torch, with an explicit cache and both exit modes.

Exit mode `skip`: the first token is read at full depth, and a position that left at depth e shows
its depth-min(d, e) keys and values to later readers at depth d. Mode `full`: every loop runs
everywhere, only the read-out leaves early.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from training.model import KeyValue, Ouro
from training.tokenizer import EOS_ID

MAX_TOKENS = 8
Planes = list[list[KeyValue]]  # of every loop, of every layer


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """When a row is read: after `fixed` loops, at recorded `depths`, or by a gate `threshold`."""

    fixed: int | None = None
    threshold: float | None = None
    depths: Tensor | None = None  # int64 [problems, MAX_TOKENS]
    skip: bool = True


@torch.no_grad()
def generate(
    model: Ouro, prompts: Tensor, rule: Rule, recorded: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Tokens and exit depths [rows, MAX_TOKENS] of prompts of one length, int64 [rows, tokens].

    Past a row's end-of-sequence token stand -1 and 0. `recorded` depths take the gate's place.
    """
    states, cache = _run(model, prompts, 0, None)
    tokens, depths = [], []
    for step in range(MAX_TOKENS):
        readout = model.read(states[:, :, -1])
        if step == 0 and rule.skip and rule.fixed is None:
            depth = torch.full((len(prompts),), model.loops)
        elif recorded is not None:
            depth = recorded[:, step].clamp(min=1)
        else:
            depth = exit_depths(readout.gate_logits, rule)
        rows = torch.arange(len(prompts))
        tokens.append(readout.logits[depth - 1, rows].argmax(-1))
        depths.append(depth)
        if step > 0 and rule.skip:
            cache = _fill(cache, depth)
        if step < MAX_TOKENS - 1:
            states, new = _run(model, tokens[-1][:, None], prompts.shape[1] + step, cache)
            cache = _join(cache, new)
    return _cut(torch.stack(tokens, 1), torch.stack(depths, 1))


def _run(model: Ouro, tokens: Tensor, start: int, cache: Planes | None) -> tuple[Tensor, Planes]:
    """All loops over new tokens: states [loops, batch, tokens, hidden] and their planes."""
    positions = torch.arange(start, start + tokens.shape[1]).expand(tokens.shape)
    h, rope = model.enter(tokens, positions)
    states, planes = [], []
    for loop in range(model.loops):
        h, own = model.loop(h, rope, None, None if cache is None else cache[loop])
        states.append(h)
        planes.append(own)
    return torch.stack(states), planes


def _join(cache: Planes, new: Planes) -> Planes:
    return [
        [
            (torch.cat([k, new_k], 2), torch.cat([v, new_v], 2))
            for (k, v), (new_k, new_v) in zip(old_layers, new_layers, strict=True)
        ]
        for old_layers, new_layers in zip(cache, new, strict=True)
    ]


def _fill(cache: Planes, depth: Tensor) -> Planes:
    """The newest position's planes past its exit take the values of its exit plane."""
    filled = []
    for loop, layers in enumerate(cache):
        source = torch.clamp(depth - 1, max=loop)
        filled.append([_with_newest(cache, layer, source) for layer in range(len(layers))])
    return [
        [
            (torch.cat([k[:, :, :-1], new_k], 2), torch.cat([v[:, :, :-1], new_v], 2))
            for (k, v), (new_k, new_v) in zip(old_layers, new_layers, strict=True)
        ]
        for old_layers, new_layers in zip(cache, filled, strict=True)
    ]


def _with_newest(cache: Planes, layer: int, source: Tensor) -> KeyValue:
    """Keys and values of the newest position, each row from its own plane `source`."""
    rows = torch.arange(len(source))
    keys = torch.stack([planes[layer][0][:, :, -1:] for planes in cache])
    values = torch.stack([planes[layer][1][:, :, -1:] for planes in cache])
    return keys[source, rows], values[source, rows]


def exit_depths(gate_logits: Tensor, rule: Rule) -> Tensor:
    """Depth, counted from 1, at which each row of gate logits [loops, rows] is read."""
    loops, rows = gate_logits.shape
    if rule.fixed is not None or rule.threshold is None:
        return torch.full((rows,), rule.fixed or loops)
    cdf = 1 - torch.cumprod(torch.sigmoid(-gate_logits), 0)
    reached = cdf >= rule.threshold
    reached[-1] = True
    return reached.int().argmax(0) + 1


def _cut(tokens: Tensor, depths: Tensor) -> tuple[Tensor, Tensor]:
    """Drop what follows the first end-of-sequence token."""
    ended = (tokens == EOS_ID).int().cumsum(1) - (tokens == EOS_ID).int() > 0
    return tokens.masked_fill(ended, -1), depths.masked_fill(ended, 0)
