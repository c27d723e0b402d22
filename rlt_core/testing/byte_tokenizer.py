"""A tokenizer of single bytes, written as the files that transformers loads.

Ids 0 to 255 are the bytes, then <pad>, <bos> and <eos>. Nothing is added to a text.
"""

from __future__ import annotations

import json
from pathlib import Path

from rlt_core.testing.tiny import NUM_BYTES

SPECIAL = ("<pad>", "<bos>", "<eos>")


def write_byte_tokenizer(folder: Path) -> Path:
    """Write tokenizer.json and tokenizer_config.json; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"tokenizer.json": _tokenizer(), "tokenizer_config.json": _settings()}
    for name, content in files.items():
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (folder / name).write_text(text + "\n", encoding="utf-8")
    return folder


def byte_letters() -> list[str]:
    """The letter that stands for each byte in the vocabulary: printable Latin-1 bytes stand for
    themselves, the others take the code points from 256 on, ascending (GPT-2's table)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(NUM_BYTES, 2 * NUM_BYTES))
    return [chr(byte if byte in printable else next(others)) for byte in range(NUM_BYTES)]


def _tokenizer() -> dict[str, object]:
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False}
    vocab = {letter: byte for byte, letter in enumerate(byte_letters())}
    special = {name: NUM_BYTES + i for i, name in enumerate(SPECIAL)}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [_added(name, token) for name, token in special.items()],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": False},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "fuse_unk": False,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "byte_fallback": False,
            "vocab": {**vocab, **special},
            "merges": [],
        },
    }


def _added(name: str, token: int) -> dict[str, object]:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    return {"id": token, "content": name, **flags, "special": True}


def _settings() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{name.strip('<>')}_token": name for name in SPECIAL},
        "clean_up_tokenization_spaces": False,
    }
