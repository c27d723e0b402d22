"""The demo's vocabulary, in plain Python, and the tokenizer files made from it.

Spaces belong to the connecting tokens (" has ", " + ", ". ") and to the name that opens an
answer (" Flo"), so decoding is plain concatenation and loses nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

NAMES = tuple("Ann Bob Cy Dan Eve Flo Gus Hal Ida Jo Kim Leo Mia Ned Oli Pam".split())
DIGITS = tuple("0123456789")
EOS, UNK = "<eos>", "<unk>"
HAS, PLUS, NEXT, ASK, STOP = " has ", " + ", ". ", "?", "."

VOCABULARY: tuple[str, ...] = (
    EOS,
    UNK,
    *NAMES,
    *(" " + name for name in NAMES),
    *DIGITS,
    HAS,
    PLUS,
    NEXT,
    ASK,
    STOP,
)
IDS: dict[str, int] = {token: number for number, token in enumerate(VOCABULARY)}
EOS_ID = IDS[EOS]

# One rule for training (here) and for tokenizer.json: connectors first, longest first.
PATTERN = r" has | \+ |\. | ?[A-Za-z]+|[0-9]|[.?]"


def encode(text: str) -> list[int]:
    """Token ids of a text; what the vocabulary lacks becomes <unk>, one a piece."""
    pieces: list[str] = []
    end = 0
    for match in re.finditer(PATTERN, text):
        pieces += [text[end : match.start()]] if match.start() > end else []
        pieces.append(match.group())
        end = match.end()
    pieces += [text[end:]] if end < len(text) else []
    return [IDS.get(piece, IDS[UNK]) for piece in pieces]


def decode(token_ids: Iterable[int]) -> str:
    """Text of token ids, end-of-sequence tokens left out."""
    return "".join(VOCABULARY[number] for number in token_ids if number != EOS_ID)


def write_tokenizer(folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, as transformers' AutoTokenizer reads them."""
    for name, content in (
        ("tokenizer.json", _tokenizer_json()),
        ("tokenizer_config.json", _tokenizer_config()),
    ):
        (folder / name).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _tokenizer_json() -> dict[str, object]:
    special = [
        {
            "id": IDS[token],
            "content": token,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token in (EOS, UNK)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": {"Regex": PATTERN},
            "behavior": "Isolated",
            "invert": False,
        },
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": IDS, "unk_token": UNK},
    }


def _tokenizer_config() -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "unk_token": UNK,
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
