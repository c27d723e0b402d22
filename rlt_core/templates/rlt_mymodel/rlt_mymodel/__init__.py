"""MyModel for rlt: declares the model. Imports no torch: `rlt plugins` must start quickly."""

from rlt_core.contract import ModelSpec, Word, hookimpl

__all__ = ["rlt_models"]


@hookimpl
def rlt_models() -> list[ModelSpec]:
    """The models of this package."""
    return [
        ModelSpec(
            id="mymodel",
            summary="MyModel: a stack of layers, looped",
            # As they stand in the config.json of its checkpoints.
            model_types=("mymodel",),
            architectures=("MyModelForCausalLM",),
            reader="rlt_mymodel.config:read_config",
            factory="rlt_mymodel.model:MyModel",
            example="rlt_mymodel.example:small_config",
            # Each word is a promise that `rlt check` tests; see docs/hooks.md of rlt.
            provides=frozenset(
                {
                    Word.STATE,
                    Word.LOGITS,
                    Word.ROW_COMPACTION,
                    Word.LOOPS_OVERRIDE,
                    Word.GRAPH_SAFE,
                }
            ),
        )
    ]
