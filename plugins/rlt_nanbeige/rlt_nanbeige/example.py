"""A small model of Nanbeige's kind, for checks with random weights. Imports no torch."""

from __future__ import annotations

from typing import Any


def small_config() -> dict[str, Any]:
    """config.json of a Nanbeige with 2 layers and 3 loops, spelt as the published one.

    Its heads are twice as wide as hidden_size / num_attention_heads, as the published ones are.
    """
    return {
        "architectures": ["NanbeigeForCausalLM"],
        "model_type": "nanbeige",
        "torch_dtype": "float32",
        "vocab_size": 259,
        "hidden_size": 32,
        "intermediate_size": 44,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "kv_channels": 16,
        "num_loops": 3,
        "loop_loss_weights": [],
        "skip_loop_final_norm": False,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "rope_theta": 70000000,
        "rope_scaling": None,
        "tie_word_embeddings": False,
    }
