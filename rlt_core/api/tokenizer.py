"""Text to token ids, and a token's bytes. The tokenizer library is imported on first use."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from rlt_core.api.pieces import PairPieces, Pieces, byte_pieces
from rlt_core.contract.errors import CheckpointError, OptionError

_OTHER_FILES = ("tokenizer.model", "vocab.json", "vocab.txt", "tiktoken.model")


class Tokenizer(Protocol):
    """What the API needs of a tokenizer. A third party may give an object of its own."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that carry no text of their own (<s>, </s>, ...)."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the special tokens the tokenizer adds."""
        ...

    def piece(self, previous: int | None, token: int) -> bytes:
        """The bytes that `token` adds to a text whose token before is `previous`; the bytes of
        one character may be spread over several tokens."""
        ...


class ChatTokenizer(Tokenizer, Protocol):
    """What a chat needs besides."""

    def encode_rendered(self, text: str) -> list[int]:
        """Token ids of a text that a chat template wrote: special tokens stand in it by their
        names, and none is added."""
        ...


class LibraryTokenizer:
    """A tokenizer of the `tokenizers` or `transformers` library, and the folder it came from."""

    def __init__(self, tokenizer: Any, folder: Path | None = None) -> None:
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self.given, self.folder = tokenizer, folder
        self._backend = tokenizer if backend is None else backend
        self.special_ids = _special_ids(tokenizer, self._backend)
        self._pieces: Pieces = byte_pieces(self._backend) or PairPieces(self._backend)

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt; UnicodeError or TypeError for text that is no Unicode text."""
        encoded = self.given.encode(text)
        return [int(token) for token in getattr(encoded, "ids", encoded)]

    def encode_rendered(self, text: str) -> list[int]:
        """Token ids of a text that holds its special tokens written out; none is added."""
        encoded = self.given.encode(text, add_special_tokens=False)
        return [int(token) for token in getattr(encoded, "ids", encoded)]

    def piece(self, previous: int | None, token: int) -> bytes:
        """The bytes that `token` adds after `previous`."""
        return self._pieces.piece(previous, token)


def load_tokenizer(path: str | Path) -> Tokenizer | None:
    """The tokenizer of a checkpoint folder, or None when it has none.

    tokenizer.json is read as it is; other kinds go through transformers, without remote code.
    CheckpointError when the files are damaged.
    """
    folder = Path(path)
    file = folder / "tokenizer.json" if folder.is_dir() else folder
    try:
        if file.is_file():
            return LibraryTokenizer(_from_file(file), file.parent)
        if any((folder / name).is_file() for name in _OTHER_FILES):
            return LibraryTokenizer(from_transformers(folder), folder)
    except Exception as error:  # the libraries raise bare Exception, OSError, ValueError, ...
        reason = f"the tokenizer cannot be read: {_first_line(error)}"
        fix = "give another with --tokenizer (tokenizer=), or token ids instead of text"
        raise CheckpointError(str(path), reason, fix) from error
    return None


def as_tokenizer(tokenizer: object) -> Tokenizer:
    """An object that fits Tokenizer as it is; a library's own is wrapped. OptionError for what is
    neither."""
    reads = callable(getattr(tokenizer, "encode", None))
    writes = ("piece", "decode")  # by the first one it is known as a Tokenizer
    if not (reads and any(callable(getattr(tokenizer, name, None)) for name in writes)):
        reason = (
            "it must be a folder, a tokenizer of the tokenizers or transformers library, "
            "or an object with encode, piece and special_ids"
        )
        raise OptionError("tokenizer", tokenizer, reason)
    if callable(getattr(tokenizer, "piece", None)):
        return cast(Tokenizer, tokenizer)
    return LibraryTokenizer(tokenizer)


def _from_file(file: Path) -> Any:
    from tokenizers import Tokenizer as FileTokenizer

    tokenizer = FileTokenizer.from_file(str(file))
    # Stored training settings; a prompt is never cut or padded in silence.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def from_transformers(folder: Path) -> Any:
    """The folder's tokenizer as transformers loads it, without remote code."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        str(folder), trust_remote_code=False, local_files_only=True
    )


def _special_ids(tokenizer: Any, backend: Any) -> frozenset[int]:
    ids = {int(token) for token in getattr(tokenizer, "all_special_ids", ())}
    added: dict[int, Any] = getattr(backend, "get_added_tokens_decoder", dict)()
    return frozenset(ids | {token for token, entry in added.items() if entry.special})


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; CheckpointError when it is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(str(path), f"is no readable JSON ({error})") from error
    if not isinstance(data, dict):
        raise CheckpointError(str(path), "is no JSON object")
    return data


def decode_all(tokenizer: Tokenizer, tokens: Sequence[int]) -> str:
    """The text of tokens on their own, incomplete characters replaced."""
    pairs = zip((None, *tokens), tokens, strict=False)
    return b"".join(tokenizer.piece(a, b) for a, b in pairs).decode("utf-8", "replace")


def why_unreadable(text: str, error: Exception) -> str:
    """What a tokenizer's error on this text means to who gave it."""
    try:
        text.encode()
    except UnicodeEncodeError as found:
        code = ord(text[found.start])
        # As Python writes the bytes of a command line or a file that are no UTF-8.
        byte = f" (byte 0x{code - 0xDC00:02x})" if 0xDC80 <= code < 0xDD00 else ""
        where = f"character {found.start} is the lone surrogate U+{code:04X}{byte}"
        return f"is not valid Unicode: {where}\nFix: give the text as UTF-8"
    return f"the tokenizer cannot read it ({error})"
