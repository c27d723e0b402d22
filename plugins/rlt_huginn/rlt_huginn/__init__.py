"""Huginn for rlt: declares the model and its options; nothing here imports torch."""

from rlt_core.contract import ModelSpec, ParamSpec, Word, hookimpl

__all__ = ["rlt_models"]


@hookimpl
def rlt_models() -> list[ModelSpec]:
    """Huginn-0125, and anything of its architecture."""
    return [
        ModelSpec(
            id="huginn",
            summary="Huginn: prelude, a core looped on a random latent, coda; no gate",
            model_types=("huginn_raven",),
            architectures=("RavenForCausalLM",),
            reader="rlt_huginn.config:read_config",
            factory="rlt_huginn.model:Huginn",
            provides=frozenset(
                {
                    Word.STATE,
                    Word.LOGITS,
                    Word.ROW_COMPACTION,
                    Word.LOOPS_OVERRIDE,
                    Word.KEYED_STATE,
                    Word.GRAPH_SAFE,
                }
            ),
            options=_OPTIONS,
            example="rlt_huginn.example:small_config",
        )
    ]


_OPTIONS = (
    ParamSpec(
        name="state_seed",
        kind="int",
        summary="seed of the random start latents, apart from the sampling seed",
        default=0,
        minimum=0,
    ),
    ParamSpec(
        name="state_scale",
        kind="float",
        summary="factor on the random start latents; 0 starts from zeros",
        default=1.0,
        minimum=0.0,
    ),
    ParamSpec(
        name="state_table",
        kind="table",
        summary="file with the start latent of every position, instead of random ones",
    ),
    ParamSpec(
        name="warm_start",
        kind="flag",
        summary="a generated token starts from the normed final latent of the token before it",
        default=False,
        chains=True,
    ),
)
