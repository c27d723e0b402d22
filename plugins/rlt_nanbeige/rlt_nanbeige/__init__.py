"""Nanbeige4.2 (looped) for rlt: declares the model; nothing here imports torch."""

from rlt_core.contract import ModelSpec, Word, hookimpl

__all__ = ["rlt_models"]


@hookimpl
def rlt_models() -> list[ModelSpec]:
    """Nanbeige4.2-3B, and anything of its architecture with a plain loop over all layers."""
    return [
        ModelSpec(
            id="nanbeige",
            summary="Nanbeige4.2: one stack of Llama layers, looped, with a norm after each loop",
            model_types=("nanbeige",),
            architectures=("NanbeigeForCausalLM",),
            reader="rlt_nanbeige.config:read_config",
            factory="rlt_nanbeige.model:Nanbeige",
            provides=frozenset(
                {
                    Word.STATE,
                    Word.LOGITS,
                    Word.ROW_COMPACTION,
                    Word.LOOPS_OVERRIDE,
                    Word.GRAPH_SAFE,
                }
            ),
            example="rlt_nanbeige.example:small_config",
        )
    ]
