"""GPU kernels for rlt: declares operators and attention; nothing here imports torch or triton."""

from __future__ import annotations

from rlt_core.contract import AttentionSpec, Word, hookimpl


@hookimpl
def rlt_attention_backends() -> list[AttentionSpec]:
    return [
        AttentionSpec(
            id="triton",
            summary="exact attention on a GPU: paged, split over programs, one chunk rule",
            factory="rlt_kernels.attention.backend:TritonAttention",
            devices=("cuda",),
            dtypes=("bfloat16", "float16", "float32"),
            capability=(8, 0),
            priority=10,
            provides=frozenset(
                {Word.EXACT, Word.SPLIT_PLANES, Word.STORE_FALSE, Word.HIDDEN_KEYS}
            ),
        )
    ]
