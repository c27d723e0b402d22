"""README's table of speed: rlt beside another engine, from the lines of performance.md."""

from __future__ import annotations

from pathlib import Path

from docs.generate import table
from docs.performance_lines import MISSING, RECORDS, Line, comparable, read

_EARLY = "gate"  # the distribution of exit depths that the table shows


def decode(folder: Path = RECORDS) -> str:
    """Milliseconds between tokens of requests that the other engine was measured with too."""
    lines = read(folder)
    peers = [line for line in lines if line["bench"] == "peer" and "token_ms" in line["results"]]
    engine = str(peers[-1]["engine"]) if peers else ""
    rows = [_row(peer, lines) for peer in peers if peer["engine"] == engine]
    rows = sorted((row for row in rows if row), key=lambda row: (-int(row[1]), int(row[0])))
    if not rows:
        return MISSING
    head = ["requests", "context", f"{engine}, ms", "rlt, ms", "rlt, early exits, ms", "loops"]
    return table(head, rows)


def _row(peer: Line, lines: list[Line]) -> list[str]:
    """Nothing where rlt has no line of the same place."""
    r = peer["results"]
    place = (r["context"], r["batch"])
    same = [line for line in lines if "skipped" not in line["results"] and _exact(line)]
    same = [line for line in same if comparable(peer, line)]
    full = [x["results"] for x in same if x["bench"] == "decode" and _place(x) == place]
    if not full:
        return []
    early = [x["results"] for x in same if _is_early(x) and _place(x) == place]
    return [
        str(r["batch"]),
        str(r["context"]),
        f"{r['token_ms']:.2f}",
        f"{full[-1]['token_ms']['median']:.2f}",
        f"{early[-1]['refill_ms']['median']:.2f}" if early else "",
        f"{early[-1]['mean_depth']:.1f}" if early else "",
    ]


def _place(line: Line) -> tuple[int, int]:
    r = line["results"]
    return r["context"], r.get("batch", r.get("width"))


def _exact(line: Line) -> bool:
    return line["settings"].get("exact") is True


def _is_early(line: Line) -> bool:
    return (line["bench"], line["results"].get("depths")) == ("depth", _EARLY)
