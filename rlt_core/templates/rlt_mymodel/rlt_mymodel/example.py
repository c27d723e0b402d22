"""A small MyModel for checks with random weights. Imports no torch."""

from __future__ import annotations

from typing import Any


def small_config() -> dict[str, Any]:
    """config.json of a MyModel with 2 layers and 4 loops, for 256 bytes and 3 special tokens."""
    return {
        "architectures": ["MyModelForCausalLM"],
        "model_type": "mymodel",
        "torch_dtype": "float32",
        "vocab_size": 259,
        "eos_token_id": 258,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_loops": 4,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
    }
