"""Row-wise mathematics of the policies: a row's bits depend on no neighbour, place or row count.

`Tensor.sum` over a wide row takes another order when a single row is split over threads (measured:
49152 columns, two threads), and on a GPU with the number of rows. So sums are halves added to
halves, element by element: one order for each width, on every device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def row_sum(x: Tensor) -> Tensor:
    """x [R, N], N at least 1 -> [R]."""
    while x.shape[-1] > 1:
        if x.shape[-1] % 2:
            x = torch.constant_pad_nd(x, (0, 1))
        half = x.shape[-1] // 2
        x = x[:, :half] + x[:, half:]
    return x[:, 0]


def row_norm(x: Tensor) -> Tensor:
    """The Euclidean norm of x [R, N] -> [R]."""
    return row_sum(x * x).sqrt()


def log_probs(logits: Tensor) -> Tensor:
    """Natural log of softmax(logits), float32 [R, V]; -inf where a logit is."""
    shifted = logits.float() - logits.float().amax(-1, keepdim=True)
    return shifted - row_sum(shifted.exp()).log()[:, None]


def divergence(before: Tensor, now: Tensor) -> Tensor:
    """Kullback-Leibler divergence of log-probabilities [R, V]: sum of p (log p - log q) -> [R].

    A token without probability before counts nothing, whatever it has now.
    """
    p = before.exp()
    return row_sum(torch.where(p == 0, 0.0, p * (before - now)))


def uniform(vocab_size: int) -> float:
    """The log-probability of every token when all are alike."""
    return -math.log(vocab_size)
