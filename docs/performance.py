"""The tables of performance.md: what the lines of docs/records/performance-*.jsonl hold.

performance_lines.py reads them and puts those that belong together into a section.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from docs.generate import table
from docs.performance_lines import (
    RECORDS,
    Line,
    comparable,
    peer_value,
    percent,
    read,
    sections,
    skipped,
    spread,
)


def decode(folder: Path = RECORDS) -> str:
    """Fixed depth: a section per model, machine and setting."""
    lines = read(folder)
    peers = [line for line in lines if line["bench"] == "peer"]
    return sections(lines, "decode", lambda found: _decode_table(found, peers))


def prefill(folder: Path = RECORDS) -> str:
    """Prompts that come at once, to their first tokens."""
    lines = read(folder)
    peers = [line for line in lines if line["bench"] == "peer"]
    return sections(lines, "prefill", lambda found: _prefill_table(found, peers))


def depth(folder: Path = RECORDS) -> str:
    """Early exits against fixed depth and the bound."""
    return sections(read(folder), "depth", _depth_table)


def no_exit(folder: Path = RECORDS) -> str:
    """Refill against cohort at full depth."""
    return sections(read(folder), "no-exit", _no_exit_table)


def pipeline(folder: Path = RECORDS) -> str:
    """Tokens guessed ahead, against refill."""
    return sections(read(folder), "pipeline", _pipeline_table)


def wavefront(folder: Path = RECORDS) -> str:
    """Long prompts among decoding requests, by prompt mode."""
    return sections(read(folder), "wavefront", _wavefront_table)


def serve(folder: Path = RECORDS) -> str:
    """Requests that come as they like."""
    return sections(read(folder), "serve", _serve_table)


def _decode_table(lines: Sequence[Line], peers: Sequence[Line]) -> str:
    mine = [peer for peer in peers if comparable(peer, lines[0])]
    names = list(dict.fromkeys(str(peer["engine"]) for peer in mine))
    idle = any(line["results"].get("gpu_idle") is not None for line in lines)
    head = ["context", "batch", "ms between tokens", *(f"{name}, ms" for name in names)]
    head += ["tokens/s", "floor, ms", "times the floor", "prompts, s", "host at work"]
    return table([*head, *(["GPU idle"] if idle else [])], _decode_rows(lines, mine, names, idle))


def _decode_rows(
    lines: Sequence[Line], peers: Sequence[Line], names: Sequence[str], idle: bool
) -> Iterable[list[str]]:
    for line in lines:
        r = line["results"]
        others = [peer_value(peers, name, r["context"], r["batch"], "token_ms") for name in names]
        row = [str(r["context"]), str(r["batch"])]
        if "skipped" in r:
            yield [*row, skipped(r), *others, *[""] * (5 + idle)]
            continue
        row += [spread(r["token_ms"]), *others, f"{r['tokens_per_s']:,.0f}"]
        row += [f"{r['floor_ms']:.2f}", f"{r['ratio']:.2f}", spread(r["prompt_s"])]
        row += [f"{r['host_share']:.0%}"]
        yield [*row, *([percent(r.get("gpu_idle"))] if idle else [])]


def _prefill_table(lines: Sequence[Line], peers: Sequence[Line]) -> str:
    mine = [peer for peer in peers if comparable(peer, lines[0])]
    names = list(dict.fromkeys(str(peer["engine"]) for peer in mine))
    head = ["prompts", "tokens", "rows of a tick", "seconds", *(f"{name}, s" for name in names)]
    head += ["tokens/s", "TFLOP of products", "TFLOP/s", "of the ceiling", "ticks"]
    return table(head, [_prefill_row(line["results"], mine, names) for line in lines])


def _prefill_row(r: Line, peers: Sequence[Line], names: Sequence[str]) -> list[str]:
    point = r["prompt_len"], r["prompts"]
    others = [peer_value(peers, name, *point, "prompt_s", digits=3) for name in names]
    row = [str(r["prompts"]), str(r["prompt_len"])]
    if "skipped" in r:
        return [*row, skipped(r), "", *others, *[""] * 5]
    return [
        *row,
        str(r["num_rows"]),
        spread(r["seconds"], 3),
        *others,
        f"{r['tokens_per_s']:,.0f}",
        f"{r['product_operations'] / 1e12:.3g}",
        f"{r['operations_per_s'] / 1e12:.3g}",
        f"{r['share_of_ceiling']:.1%}",
        str(r["ticks"]),
    ]


def _depth_table(lines: Sequence[Line]) -> str:
    head = ["context", "width", "depths", "mean depth", "fixed, ms", "cohort, ms", "refill, ms"]
    head += ["boundary, loops", "bound", "refill over fixed", "of the bound", "cohort over fixed"]
    return table(head, [_depth_row(line["results"]) for line in lines])


def _depth_row(r: Line) -> list[str]:
    row = [str(r["context"]), str(r["width"])]
    if "skipped" in r:
        return [*row, skipped(r), *[""] * 9]
    return [
        *row,
        r["depths"],
        f"{r['mean_depth']:.2f}",
        f"{spread(r['fixed_ms'])} ({r['fixed_by']})",
        spread(r["cohort_ms"]),
        spread(r["refill_ms"]),
        f"{r['boundary_loops']:.2f}",
        f"{r['bound']:.3f}",
        f"{r['speedup']:.3f}",
        f"{r['share_of_bound']:.1%}",
        f"{r['cohort_speedup']:.3f}",
    ]


def _no_exit_table(lines: Sequence[Line]) -> str:
    head = [
        "context",
        "width",
        "cohort, ms",
        "refill in one phase, ms",
        "over",
        "refill spread, ms",
    ]
    return table([*head, "over"], [_no_exit_row(line["results"]) for line in lines])


def _no_exit_row(r: Line) -> list[str]:
    row = [str(r["context"]), str(r["width"])]
    if "skipped" in r:
        return [*row, skipped(r), *[""] * 4]
    row += [spread(r["cohort_ms"]), spread(r["together_ms"]), f"{r['together_overhead']:+.1%}"]
    return [*row, spread(r["spread_ms"]), f"{r['spread_overhead']:+.1%}"]


def _pipeline_table(lines: Sequence[Line]) -> str:
    head = ["context", "batch", "strategy", "draft depth", "acceptance asked", "acceptance"]
    head += ["ms a token", "ticks a token", "bound, ticks", "over refill", "wasted loops a token"]
    return table(head, [_pipeline_row(line["results"]) for line in lines])


def _pipeline_row(r: Line) -> list[str]:
    row = [str(r["context"]), str(r["batch"]), r["strategy"]]
    if "skipped" in r:
        return [*row, skipped(r), *[""] * 7]
    asked = "its own" if r["asked"] is None else f"{r['asked']:.2f}"
    guessed = r["acceptance"] is not None
    return [
        *row,
        str(r["draft_depth"] or ""),
        asked if r["draft_depth"] else "",
        f"{r['acceptance']:.3f}" if guessed else "",
        spread(r["token_ms"]),
        f"{r['token_ticks']:.3f}",
        f"{r['bound_ticks']:.3f}",
        f"{r['speedup']:.2f}",
        f"{r['wasted']:.2f}" if guessed else "",
    ]


def _wavefront_table(lines: Sequence[Line]) -> str:
    head = ["decoding", "prompts", "mode", "chunk", "rows of a tick", "TTFT, ms", "p50 ITL, ms"]
    head += ["p99 ITL, ms", "p99 without prompts, ms", "ratio", "total, s", "ticks"]
    return table(head, [_wavefront_row(line["results"]) for line in lines])


def _wavefront_row(r: Line) -> list[str]:
    if "skipped" in r:
        return ["", "", r["mode"], str(r["chunk_size"]), skipped(r), *[""] * 7]
    return [
        str(r["decodes"]),
        f"{r['prompts']} x {r['prompt_len']}",
        r["mode"],
        str(r["chunk_size"]),
        str(r["budget"]),
        spread(r["ttft_ms"]),
        f"{r['p50_ms']:.2f}",
        f"{r['p99_ms']:.2f}",
        f"{r['quiet_p99_ms']:.2f}",
        f"{r['p99_ratio']:.2f}",
        spread(r["total_s"]),
        str(r["ticks"]),
    ]


def _serve_table(lines: Sequence[Line]) -> str:
    head = [
        "lengths",
        "depths",
        "asked, a second",
        "requests",
        "mean depth",
        "TTFT, ms",
        "TPOT, ms",
    ]
    head += ["ITL, ms", "p99 by p50 ITL", "end to end, s", "tokens/s"]
    return table(head, [_serve_row(line["settings"], line["results"]) for line in lines])


def _serve_row(s: Line, r: Line) -> list[str]:
    itl = r["itl_ms"]
    return [
        s["lengths"],
        s["depths"] or "its own",
        f"{s['rate']:g}",
        f"{r['answered']} of {r['requests']}",
        "" if r["mean_depth"] is None else f"{r['mean_depth']:.2f}",
        _quantiles(r["ttft_ms"], 1),
        _quantiles(r["tpot_ms"], 2),
        _quantiles(itl, 2),
        f"{itl['p99'] / itl['p50']:.2f}",
        _quantiles({name: value / 1e3 for name, value in r["e2e_ms"].items()}, 2),
        f"{r['tokens_per_s']:,.0f}",
    ]


def _quantiles(values: dict[str, float], digits: int) -> str:
    return " / ".join(f"{values[name]:.{digits}f}" for name in ("p50", "p90", "p99"))
