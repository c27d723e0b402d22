"""GPU kernels for rlt: declares operators and attention; nothing here imports torch or triton."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    return (
        [
            OpSpec(
                id=f"triton.{op}",
                op=op,
                factory=f"rlt_kernels.{module}:{op}",
                devices=("cuda",),
                dtypes=_DTYPES,
                exact=True,
                capability=_CAPABILITY,
                priority=_PRIORITY,
                provides=frozenset({Word.NUM_ROWS} if module == "products" else ()),
            )
            for op, module in _OPS.items()
        ]
        + [
            # Above the exact ones, so that they are taken wherever they may be.
            OpSpec(
                id=f"fastest.{op}",
                op=op,
                factory=f"rlt_kernels.fastest:{op}",
                devices=("cuda",),
                dtypes=_DTYPES,
                exact=False,
                capability=_CAPABILITY,
                priority=_PRIORITY + 1,
                provides=frozenset({Word.NUM_ROWS}),
            )
            for op in ("linear", "linear_silu_mul")
        ]
        + [
            OpSpec(
                id="triton.steps",
                op="steps",
                factory="rlt_kernels.steps.steps:TritonSteps",
                devices=("cuda",),
                dtypes=_DTYPES,
                exact=True,
                capability=_CAPABILITY,
                priority=_PRIORITY,
            ),
            OpSpec(
                id="triton.fill",
                op="fill",
                factory="rlt_kernels.fill:fill",
                devices=("cuda",),
                dtypes=_DTYPES,
                exact=True,
                capability=_CAPABILITY,
                priority=_PRIORITY,
            ),
            # Exact, and built by whoever wants it: taken where it is there.
            OpSpec(
                id="native.silu_mul",
                op="silu_mul",
                factory="rlt_kernels.native.silu:silu_mul",
                devices=("cuda",),
                dtypes=("bfloat16", "float16"),
                exact=True,
                capability=_CAPABILITY,
                extra=native_extra(),
                priority=_PRIORITY + 1,
            ),
        ]
    )


@hookimpl
def rlt_add_commands(app: typer.Typer) -> None:
    from rlt_kernels.commands import kernels

    app.command("kernels")(kernels)
