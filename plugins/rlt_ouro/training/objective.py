"""What the two stages minimise, over the answers' tokens only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from training.data import NO_TARGET, Batch
from training.model import Ouro
from training.tokenizer import DIGITS, IDS

ENTROPY_WEIGHT = 0.05
# Part of the weight that every loop gets whatever the gate says. Without it the gate gives loop 1
# up at once, and loop 1 never learns the answers that need no chain.
SHARED_WEIGHT = 0.3
EASY_WEIGHT = 0.2
GATE_SHARPNESS, GATE_MARGIN = 50.0, 0.005


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Every answer token of a batch: cross-entropies `losses` and `gate_logits`, float32
    [loops, tokens], and whether it is a value (`hard`, bool [tokens]) or an easy token."""

    losses: Tensor
    gate_logits: Tensor
    hard: Tensor

    def value_losses(self) -> list[float]:
        """Mean loss of the values after each loop."""
        means: list[float] = self.losses[:, self.hard].mean(1).tolist()
        return means

    def weighted(self, each: Tensor) -> Tensor:
        """Mean of `each` [tokens], easy tokens weighing less than values."""
        return each[self.hard].mean() + EASY_WEIGHT * each[~self.hard].mean()


def read_answers(model: Ouro, batch: Batch) -> Answers:
    """Run every loop and read it at each position that predicts an answer's token."""
    wanted = batch.targets != NO_TARGET
    states = model.states(batch.tokens, batch.positions, batch.mask())
    readout = model.read(torch.stack([state[wanted] for state in states]))
    targets = batch.targets[wanted]
    repeated = targets.expand(readout.gate_logits.shape)
    losses = F.cross_entropy(
        readout.logits.flatten(0, 1), repeated.flatten(), reduction="none"
    ).view(repeated.shape)
    hard = (targets >= IDS[DIGITS[0]]) & (targets <= IDS[DIGITS[-1]])
    return Answers(losses=losses, gate_logits=readout.gate_logits, hard=hard)


def exit_distribution(gate_logits: Tensor) -> Tensor:
    """Chance [loops, tokens] to leave after each loop; the last takes what remains."""
    stay = torch.cumprod(torch.sigmoid(-gate_logits[:-1]), 0)
    certain = torch.ones_like(gate_logits[:1])
    leave = torch.cat([torch.sigmoid(gate_logits[:-1]), certain])
    return torch.cat([certain, stay]) * leave


def expected_loss(answers: Answers) -> Tensor:
    """Stage 1: the expected loss over the exit distribution, less that distribution's entropy."""
    chances = exit_distribution(answers.gate_logits)
    entropy = -(chances * (chances + 1e-9).log()).sum(0)
    equal = torch.full_like(chances, 1 / len(chances))
    expected = (chances.lerp(equal, SHARED_WEIGHT) * answers.losses).sum(0)
    return answers.weighted(expected - ENTROPY_WEIGHT * entropy)


def gate_loss(answers: Answers) -> Tensor:
    """Stage 2: binary cross-entropy of "go on" against "some later loop still lowers the loss"."""
    losses = answers.losses
    best_later = losses.flip(0).cummin(0).values.flip(0)[1:]
    gain = (losses[:-1] - best_later).clamp(min=0)
    go_on = torch.sigmoid(GATE_SHARPNESS * (gain - GATE_MARGIN)).detach()
    continues = -answers.gate_logits[:-1]
    each = F.binary_cross_entropy_with_logits(continues, go_on, reduction="none")
    return answers.weighted(each.mean(0))
