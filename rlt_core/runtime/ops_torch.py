"""Reference operators in plain torch; a row's bits depend on no neighbour, place or row count.

What was measured on CPUs (torch 2.13, AVX2 and AVX-512) and is held by tests/test_ops.py: float32
products change with the number of rows below 16 and with one output column, and not when rows are
padded to a multiple of 16; bfloat16 products change with one row on a CPU that has their
arithmetic, with odd numbers and two on one that has AVX-512 alone, and not with multiples of 4;
`torch.sigmoid` and `silu` change with an element's place (vector body or tail), `exp`, division and
reductions over the last dimension do not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

ROW_MULTIPLE, BFLOAT16_MULTIPLE = 16, 4
# Below it, float32 products of bfloat16 values are the faster way on a CPU without bfloat16
# arithmetic; above it, casting the weight costs more than the product at a few rows. The choice
# may look at the weight alone: a look at the rows would make a row's bits depend on them.
NATIVE_BFLOAT16_ELEMENTS = 1 << 20


def embed(tokens: Tensor, weight: Tensor) -> Tensor:
    """tokens int64 [R], weight [V, W] -> [R, W]."""
    return F.embedding(tokens, weight)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [R, in], weight [out, in], bias [out] -> [R, out] in x's dtype, rounded once."""
    if x.device.type != "cpu":
        return F.linear(x, weight, bias)
    if x.dtype == torch.float32:
        return _padded_linear(x, weight, bias, ROW_MULTIPLE)
    if weight.numel() >= NATIVE_BFLOAT16_ELEMENTS:
        return _padded_linear(x, weight, bias, BFLOAT16_MULTIPLE)
    wide_bias = None if bias is None else bias.float()
    return _padded_linear(x.float(), weight.float(), wide_bias, ROW_MULTIPLE).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x [..., W] / sqrt(mean(x^2) + eps) in float32, cast back, times weight [W]."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (normed if wide is x else normed.to(x.dtype)) * weight


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(rms_norm(x + residual), x + residual), both [R, W]."""
    total = x + residual
    return rms_norm(total, weight, eps), total


def norm_add_norm(
    sub: Tensor, residual: Tensor, w_post: Tensor, w_next: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """h = residual + rms_norm(sub, w_post); (rms_norm(h, w_next), h), both [R, W]."""
    total = residual + rms_norm(sub, w_post, eps)
    return rms_norm(total, w_next, eps), total


def add_norm(sub: Tensor, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """rms_norm(sub + residual, weight) [R, W]."""
    return rms_norm(sub + residual, weight, eps)


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [R, 2F] (gate first) -> silu(gate), rounded to the dtype, times up: [R, F]."""
    gate, up = gate_up.chunk(2, dim=-1)
    wide = gate.float()
    return (wide / (torch.exp(-wide) + 1)).to(gate_up.dtype) * up


def linear_silu_mul(x: Tensor, weight: Tensor) -> Tensor:
    """silu_mul(linear(x, weight)): x [R, in], weight [2F, in] (gate first) -> [R, F]."""
    return silu_mul(linear(x, weight))


def stable_sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x)) in float32, any shape."""
    return 1 / (torch.exp(-x.float()) + 1)


def _padded_linear(x: Tensor, weight: Tensor, bias: Tensor | None, multiple: int) -> Tensor:
    # pad and narrow always run: the operator count must not depend on the number of rows
    rows = x.shape[0]
    padded = torch.constant_pad_nd(x, (0, 0, 0, -rows % multiple))
    return F.linear(padded, weight, bias).narrow(0, 0, rows)
