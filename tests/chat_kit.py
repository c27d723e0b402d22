"""Folders with a byte tokenizer, special tokens and a chat template, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, processors

from rlt_core.testing.byte_tokenizer import write_byte_tokenizer

TEMPLATES = Path(__file__).parent / "templates"
NAMES = tuple(sorted(file.stem for file in TEMPLATES.glob("*.jinja")))
MARKS = ("<|im_start|>", "<|im_end|>", "<|begin_header|>", "<|end_header|>", "<|end_turn|>")
THINK = ("<think>", "</think>")
BOS, EOS = 257, 258


def template(name: str) -> str:
    """The text of tests/templates/NAME.jinja."""
    return (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")


def chat_folder(folder: Path, text: str | None = None, **settings: Any) -> Path:
    """A tokenizer's folder. Its plain `encode` puts <bos> before a text, as many do. text: the
    chat template, as chat_template.jinja. settings: further fields of tokenizer_config.json;
    a think tag is a special token where `think_is_special` says so."""
    think_is_special = settings.pop("think_is_special", False)
    write_byte_tokenizer(folder)
    file = str(folder / "tokenizer.json")
    made = Tokenizer.from_file(file)
    made.add_special_tokens([AddedToken(mark, special=True) for mark in MARKS])
    tags = [AddedToken(tag, special=think_is_special) for tag in THINK]
    (made.add_special_tokens if think_is_special else made.add_tokens)(tags)
    made.post_processor = processors.TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", BOS)]
    )
    made.save(file)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **settings}))
    if text is not None:
        (folder / "chat_template.jinja").write_text(text, encoding="utf-8")
    return folder


def token_id(folder: Path, text: str) -> int:
    """The id of a special token."""
    found = Tokenizer.from_file(str(folder / "tokenizer.json")).token_to_id(text)
    assert isinstance(found, int)
    return found


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def assistant(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **fields}
