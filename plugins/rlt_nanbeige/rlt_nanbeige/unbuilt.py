"""Options of the authors' code that no released weights use: refused by name when on.

The released file already holds the next models' features. Each would change the mathematics, and
nobody has weights to test them with.
"""

from __future__ import annotations

from rlt_core.contract.config import ConfigReader

_OFF = (False, None)

# field -> the values that leave it off
UNBUILT: dict[str, tuple[object, ...]] = {
    # hyper-connections: several residual streams
    "enable_hyper_connection": _OFF,
    "enable_mhc": _OFF,
    "enable_h_res_identity": _OFF,
    "mhc_identity_nohresparam": _OFF,
    "mhc_diff_for_loop": _OFF,
    "mhc_double_stream_position_for_loop": (None,),
    # n-gram embeddings, added to the tokens' or inside layers
    "emb_neighbor_num": (None,),
    "emb_split_num": (None,),
    "emb_tp_num": (None,),
    "ngram_vocab_size_ratio": (None,),
    "ngram_embedding_hidden_size": (None,),
    "ngram_layer_downproject_size": (None,),
    "ngram_mod_force_prime": _OFF,
    "ngram_compressed_tokenizer": _OFF,
    "ngram_insert_all_layers": _OFF,
    "skip_ngram_for_input": _OFF,
    "insert_ngram_layer_idx": ([], None),
    # depth attention: a layer also reads earlier layers' keys
    "enable_depth_attention": _OFF,
    "depth_attention_stride": (None,),
    # a looped middle between layers that run once
    "enable_double_loop_split": _OFF,
    "loop_middle_layers": (None,),
    "loop_share_kv": _OFF,
    # products in slices, which round otherwise
    "pretraining_tp": (1, None),
}

# Sizes within the options above, which the authors' class writes out though nothing reads them
# while those are off; field -> the class's own value.
UNREAD: dict[str, object] = {
    "num_residual_streams": 4,
    "mhc_sinkhorn_iterations": 20,
    "mhc_init_gating_factor": 0.01,
    "ngram_fused_mode": "average",
    "depth_attention_recent_window": 0,
    "depth_attention_static_anchor_once": True,
}


def refuse_unbuilt(reader: ConfigReader) -> None:
    """Raise ConfigError, with the field's name, for an option that is on."""
    for field, off in UNBUILT.items():
        reader.constant(field, *off, default=off[0])
    for field, value in UNREAD.items():
        reader.constant(field, value, None, default=value)
