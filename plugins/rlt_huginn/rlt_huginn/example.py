"""A small model of Huginn's kind, for checks with random weights. Imports no torch."""

from __future__ import annotations

from typing import Any


def small_config() -> dict[str, Any]:
    """config.json of a Huginn with 1 + 2 + 1 blocks and 4 loops, spelt as the published one."""
    return {
        "architectures": ["RavenForCausalLM"],
        "model_type": "huginn_raven",
        "torch_dtype": "float32",
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "n_embd": 30,
        "intermediate_size": 44,
        "vocab_size": 259,
        "block_size": 256,
        "n_layers_in_prelude": 1,
        "n_layers_in_recurrent_block": 2,
        "n_layers_in_coda": 1,
        "mean_recurrence": 4,
        "tie_embeddings": True,
        "bias": False,
        "qk_bias": True,
        "norm_eps": 1e-6,
        "architecture_class_name": "RecurrentGPT",
        "block_class_name": "SandwichBlock",
        "norm_class_name": "RMSNorm_llama",
        "mlp_class_name": "GatedMLP",
        "nonlin_name": "SiLU",
        "injection_type": "linear",
        "state_init": "like-init",
    }
