"""The texts of a tokenizer's special tokens, which chat templates write (`bos_token`, ...)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from rlt_core.api.tokenizer import from_transformers, read_json
from rlt_core.contract.errors import CheckpointError

CONFIG, LEGACY = "tokenizer_config.json", "special_tokens_map.json"
NAMES = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))


def read_special_tokens(folder: Path) -> dict[str, str | None]:
    """Name -> text as the folder's files say it; None where they say that there is none. Names
    that are absent were left to the tokenizer's class."""
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    found = {name: config[name] for name in NAMES if name in config}
    # The older file counts where the newer one is of the old form, as transformers has it.
    if "added_tokens_decoder" not in config and (folder / LEGACY).is_file():
        older = read_json(folder / LEGACY)
        found.update({name: older[name] for name in NAMES if name in older})
    return {name: _text(value) for name, value in found.items()}


def tokens_for(template: str, folder: Path) -> dict[str, str]:
    """The special tokens that a template may write. CheckpointError when it names one that no
    file defines and transformers cannot tell either: a start token must not vanish in silence."""
    found = read_special_tokens(folder)
    open_names = [n for n in NAMES if n not in found and re.search(rf"\b{n}\b", template)]
    if open_names:
        found = {**_of_class(folder, open_names), **found}
    return {name: text for name, text in found.items() if text is not None}


def _of_class(folder: Path, names: list[str]) -> Mapping[str, str]:
    try:
        known: Mapping[str, object] = from_transformers(folder).special_tokens_map
    except Exception as error:  # transformers raises whatever its tokenizer classes raise
        name = names[0]
        reason = f"the chat template writes {name}, and {CONFIG} does not say which token that is"
        fix = f'Fix: "{name}": "<text of the token>", or null for none, in {CONFIG}'
        raise CheckpointError(str(folder), reason, fix) from error
    return {name: text for name, text in known.items() if isinstance(text, str)}


def _text(value: object) -> str | None:
    """A token is written as its text, or as a table with "content"."""
    if isinstance(value, Mapping):
        value = value.get("content")
    return value if isinstance(value, str) else None
