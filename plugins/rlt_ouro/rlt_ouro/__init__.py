"""Ouro for rlt: declares the model; nothing here imports torch."""

from rlt_core.contract import ModelSpec, Word, hookimpl

__all__ = ["rlt_models"]


@hookimpl
def rlt_models() -> list[ModelSpec]:
    """Ouro-1.4B, 2.6B, both Thinking checkpoints, and anything of their architecture."""
    return [
        ModelSpec(
            id="ouro",
            summary="Ouro: one stack of layers with sandwich norms, looped, with an exit gate",
            model_types=("ouro",),
            architectures=("OuroForCausalLM",),
            reader="rlt_ouro.config:read_config",
            factory="rlt_ouro.model:Ouro",
            provides=frozenset(
                {
                    Word.GATE,
                    Word.STATE,
                    Word.LOGITS,
                    Word.ROW_COMPACTION,
                    Word.LOOPS_OVERRIDE,
                    Word.GRAPH_SAFE,
                }
            ),
            demo="rlt_ouro/demo",
            example="rlt_ouro.config:example",
        )
    ]
