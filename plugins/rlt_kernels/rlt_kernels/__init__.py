"""GPU kernels for rlt: declares operators and attention; nothing here imports torch or triton."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlt_core.contract import AttentionSpec, OpSpec, Word, hookimpl
from rlt_kernels.flash_library import flash_spec
from rlt_kernels.native import native_extra

if TYPE_CHECKING:
    import typer

_DTYPES = ("bfloat16", "float16", "float32")
_CAPABILITY = (8, 0)
_PRIORITY = 10
# Operator -> the module that has it.
_OPS = {
    "embed": "embed",
    "linear": "products",
    "rms_norm": "norms",
    "add_rms_norm": "norms",
    "norm_add_norm": "norms",
    "add_norm": "norms",
    "silu_mul": "silu",
    "linear_silu_mul": "products",
}


@hookimpl
def rlt_attention_backends() -> list[AttentionSpec]:
    return [
        AttentionSpec(
            id="triton",
            summary="exact attention on a GPU: paged, split over programs, one chunk rule",
            factory="rlt_kernels.attention.backend:TritonAttention",
            devices=("cuda",),
            dtypes=_DTYPES,
            capability=_CAPABILITY,
            priority=_PRIORITY,
            provides=frozenset({Word.EXACT, Word.SPLIT_PLANES, Word.STORE_FALSE, Word.HIDDEN_KEYS}),
        ),
        flash_spec(),
    ]


@hookimpl
def rlt_ops() -> list[OpSpec]:
    counted = {op: frozenset({Word.NUM_ROWS}) for op, m in _OPS.items() if m == "products"}
    exact = [
        _op("triton", op, f"rlt_kernels.{module}:{op}", provides=counted.get(op, frozenset()))
        for op, module in _OPS.items()
    ]
    # Above the exact ones, so that they are taken wherever they may be.
    fastest = [
        _op("fastest", op, f"rlt_kernels.fastest:{op}", exact=False, rank=1, provides=words)
        for op, words in counted.items()
    ]
    # Exact, and built by whoever wants it: taken where it is there.
    native = _op(
        "native",
        "silu_mul",
        "rlt_kernels.native.silu:silu_mul",
        dtypes=("bfloat16", "float16"),
        rank=1,
        extra=native_extra(),
    )
    ticks = (
        _op("triton", "steps", "rlt_kernels.steps.mixed_steps:TritonMixedSteps"),
        _op("triton", "lane_steps", "rlt_kernels.steps.lane_steps:TritonLaneSteps"),
        _op("triton", "fill", "rlt_kernels.fill:fill"),
        _op("triton", "random_bits", "rlt_kernels.philox:random_bits"),
    )
    return [*exact, *fastest, *ticks, native]


def _op(
    maker: str,
    op: str,
    factory: str,
    *,
    exact: bool = True,
    rank: int = 0,
    dtypes: tuple[str, ...] = _DTYPES,
    **more: Any,
) -> OpSpec:
    """A candidate for a GPU. rank: how far above the usual ones it stands."""
    return OpSpec(
        id=f"{maker}.{op}",
        op=op,
        factory=factory,
        devices=("cuda",),
        dtypes=dtypes,
        exact=exact,
        capability=_CAPABILITY,
        priority=_PRIORITY + rank,
        **more,
    )


@hookimpl
def rlt_add_commands(app: typer.Typer) -> None:
    from rlt_kernels.commands import kernels

    app.command("kernels")(kernels)
