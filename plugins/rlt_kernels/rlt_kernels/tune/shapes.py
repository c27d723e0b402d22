"""The products of the models that rlt serves, as (operator, results a row, inner size)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

# Head rows are those that leave in a tick; scoring a prompt is the only larger use.
HEAD_ROWS = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """n: results a row; k: inner size; most_rows: the largest row count worth tuning."""

    name: str
    op: Literal["linear", "linear_silu_mul"]
    n: int
    k: int
    most_rows: int = 1 << 20


def _linear(name: str, n: int, k: int, most_rows: int = 1 << 20) -> Shape:
    return Shape(name=name, op="linear", n=n, k=k, most_rows=most_rows)


def _block(*, width: int, qkv: int, heads_width: int, inner: int, vocab: int) -> tuple[Shape, ...]:
    """A layer's four products and the head."""
    return (
        _linear("qkv", qkv, width),
        _linear("o", width, heads_width),
        Shape(name="gate_up", op="linear_silu_mul", n=inner, k=width),
        _linear("down", width, inner),
        _linear("head", vocab, width, HEAD_ROWS),
    )


MODELS: dict[str, tuple[Shape, ...]] = {
    # Ouro-2.6B has the same shapes in twice the layers.
    "ouro": _block(width=2048, qkv=6144, heads_width=2048, inner=5632, vocab=49152),
    "nanbeige": _block(width=3072, qkv=8192, heads_width=6144, inner=10752, vocab=166144),
    "huginn": (
        *_block(width=5280, qkv=15840, heads_width=5280, inner=17920, vocab=65536),
        _linear("adapter", 5280, 10560),
    ),
}
