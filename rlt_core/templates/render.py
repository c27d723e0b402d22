"""Copies the template package under another name."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from rlt_core.contract.errors import OptionError

_NAME = re.compile(r"[a-z][a-z0-9]*(?:[-_][a-z0-9]+)*")
_TEMPLATE = "mymodel"
_CLASS = "MyModel"
_SKIPPED = {"__pycache__"}


def write_plugin(name: str, parent: Path, *, taken: Collection[str] = ()) -> Path:
    """Write the package of a model plugin to parent/rlt-`name`; returns that folder.

    `name` is the plugin's and its model's: small letters, digits, single dashes or underscores; a
    leading "rlt-" is left out. Raises OptionError for another name, one that is `taken`, or when
    the folder is there.
    """
    name = _checked(name)
    if name in taken:
        reason = "is the name of an installed plugin or model; two of a name refuse each other"
        raise OptionError("NAME", name, reason)
    folder = parent / f"rlt-{name}"
    if os.path.exists(folder):
        reason = "is there already; nothing was written"
        raise OptionError("--dir", str(folder), reason, "Fix: another name, or another --dir")
    module = name.replace("-", "_")
    names = {
        f"rlt-{_TEMPLATE}": f"rlt-{name}",
        f"rlt_{_TEMPLATE}": f"rlt_{module}",
        _CLASS: "".join(part.capitalize() for part in module.split("_")),
        _TEMPLATE: name,
    }
    try:
        _copy(Path(__file__).parent / f"rlt_{_TEMPLATE}", folder, names)
    except OSError as error:
        reason = f"{folder} cannot be written: {error.strerror}"
        raise OptionError("--dir", str(parent), reason, "Fix: another --dir") from error
    return folder


def _checked(name: str) -> str:
    short = name.removeprefix("rlt-").removeprefix("rlt_")
    if not _NAME.fullmatch(short):
        rule = "small letters, digits, single dashes or underscores, a letter first"
        reason = f"is no name of a plugin: {rule}"
        near = re.sub(r"[^a-z0-9]+", "-", short.lower()).strip("-")
        fix = f"Fix: rlt plugin new {near}" if _NAME.fullmatch(near) else None
        raise OptionError("NAME", name, reason, fix)
    return short


def _copy(source: Path, target: Path, names: dict[str, str]) -> None:
    target.mkdir(parents=True)
    for entry in source.iterdir():
        to = target / _renamed(entry.name, names)
        if entry.is_file():
            to.write_text(_renamed(entry.read_text(encoding="utf-8"), names), encoding="utf-8")
        elif entry.name not in _SKIPPED:
            _copy(entry, to, names)


def _renamed(text: str, names: dict[str, str]) -> str:
    # One pass: a new name may hold an old one. Longer names come first in the dict.
    return re.sub("|".join(map(re.escape, names)), lambda found: names[found[0]], text)
