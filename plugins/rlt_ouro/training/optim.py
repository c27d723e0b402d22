"""Muon in float32, for the layers' matrices: momentum, made orthogonal before it is applied."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor


class Muon(torch.optim.Optimizer):
    """Every parameter is a matrix. `torch.optim.Muon` computes in bfloat16, slow on a CPU."""

    def __init__(self, params: Iterable[Tensor], lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                average: Tensor = state["momentum"].lerp_(gradient, 1 - group["momentum"])
                update = orthogonal(gradient.lerp(average, group["momentum"]))
                # The same root mean square for every shape, that of a usual AdamW step.
                parameter.sub_(update, alpha=group["lr"] * 0.2 * max(parameter.shape) ** 0.5)


def orthogonal(matrix: Tensor, steps: int = 5) -> Tensor:
    """The matrix with all singular values brought near 1, by a quintic Newton-Schulz iteration."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    x: Tensor = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if tall else x
