"""Held-out problems with exact answers, one JSON object a line, beside a checkpoint."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rlt_core.contract.errors import CheckpointError

FILE_NAME = "heldout.jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A prompt, the text that answers it, the value inside that text, its grade of difficulty."""

    prompt: str
    answer: str
    value: str
    grade: int


def load_problems(folder: Path) -> list[Problem]:
    """All problems of a checkpoint folder, in the file's order; CheckpointError without one."""
    path = folder / FILE_NAME
    if not path.is_file():
        raise CheckpointError(str(folder), f"has no {FILE_NAME}, so there is nothing to evaluate")
    lines = path.read_text(encoding="utf-8").splitlines()
    return [Problem(**json.loads(line)) for line in lines if line.strip()]
