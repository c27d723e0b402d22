"""The tables of performance.md: what the lines of docs/records/performance-*.jsonl hold.

A line is what a benchmark of `rlt bench` prints with --json, or (bench "peer") what another engine
took for the same work on the same kind of GPU.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from docs.generate import code, table

RECORDS = Path(__file__).resolve().parent / "records"
Line = dict[str, Any]
MISSING = "Not recorded yet.\n"


def decode(folder: Path = RECORDS) -> str:
    """Fixed depth: a section per model, machine and setting."""
    lines = read(folder)
    peers = [line for line in lines if line["bench"] == "peer"]
    return _sections(lines, "decode", lambda found: _decode_table(found, peers))


def prefill(folder: Path = RECORDS) -> str:
    """Prompts that come at once, to their first tokens."""
    lines = read(folder)
    peers = [line for line in lines if line["bench"] == "peer"]
    return _sections(lines, "prefill", lambda found: _prefill_table(found, peers))


def depth(folder: Path = RECORDS) -> str:
    """Early exits against fixed depth and the bound."""
    return _sections(read(folder), "depth", _depth_table)


def no_exit(folder: Path = RECORDS) -> str:
    """Refill against cohort at full depth."""
    return _sections(read(folder), "no-exit", _no_exit_table)


def pipeline(folder: Path = RECORDS) -> str:
    """Tokens guessed ahead, against refill."""
    return _sections(read(folder), "pipeline", _pipeline_table)


def wavefront(folder: Path = RECORDS) -> str:
    """Long prompts among decoding requests, by prompt mode."""
    return _sections(read(folder), "wavefront", _wavefront_table)


def read(folder: Path) -> list[Line]:
    """Every line of every record of performance, files by name."""
    files = sorted(folder.glob("performance-*.jsonl"))
    texts = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.loads(text) for text in texts if text.strip()]


def _sections(lines: Sequence[Line], bench: str, tables: Any) -> str:
    """Lines made on the same machine with the same versions and parts stand in one table."""
    groups: dict[str, list[Line]] = {}
    for line in lines:
        if line["bench"] == bench:
            groups.setdefault(json.dumps(_head(line), sort_keys=True), []).append(line)
    if not groups:
        return MISSING
    return "\n".join(f"{_made(found)}\n{tables(found)}" for found in groups.values())


def _head(line: Line) -> list[object]:
    same = {key: value for key, value in line["settings"].items() if key not in ("repeat", "seed")}
    return [line["day"], line["machine"], line["versions"], same]


def _made(lines: Sequence[Line]) -> str:
    """Model, machine, versions, day, and the commands."""
    s, m = lines[0]["settings"], lines[0]["machine"]
    weights = "" if s["random_weights"] is None else " with random weights"
    gpu = f"{m['gpu']}, driver {m['driver']}" if "gpu" in m else f"{m['cpu']}, {m['cores']} cores"
    versions = ", ".join(f"{name} {version}" for name, version in lines[0]["versions"].items())
    strategy = f"strategy `{s['strategy']}`, " if "strategy" in s else ""
    kernels = code(sorted({str(op) for op in s["ops"].values()}))
    commands = "\n".join(dict.fromkeys(line["command"] for line in lines))
    switches = f"exact {_on(s['exact'])}, graphs {_on(s['graphs'])}"
    return (
        f"`{s['folder']}` ({s['model']}){weights}, {s['loops']} loops, {s['dtype']}, layout "
        f"`{s['kv_layout']}`, {strategy}{switches}, attention `{s['attention']}`, operators "
        f"{kernels}, pages of {s['page_size']}. {gpu}; {versions}; {lines[0]['day']}.\n\n"
        f"```sh\n{commands}\n```\n"
    )


def _decode_table(lines: Sequence[Line], peers: Sequence[Line]) -> str:
    mine = [peer for peer in peers if _comparable(peer, lines[0])]
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
        others = [_peer(peers, name, r["context"], r["batch"], "token_ms") for name in names]
        row = [str(r["context"]), str(r["batch"])]
        if "skipped" in r:
            yield [*row, _skipped(r), *others, *[""] * (5 + idle)]
            continue
        row += [_spread(r["token_ms"]), *others, f"{r['tokens_per_s']:,.0f}"]
        row += [f"{r['floor_ms']:.2f}", f"{r['ratio']:.2f}", _spread(r["prompt_s"])]
        row += [f"{r['host_share']:.0%}"]
        yield [*row, *([_percent(r.get("gpu_idle"))] if idle else [])]


def _prefill_table(lines: Sequence[Line], peers: Sequence[Line]) -> str:
    mine = [peer for peer in peers if _comparable(peer, lines[0])]
    names = list(dict.fromkeys(str(peer["engine"]) for peer in mine))
    head = ["prompts", "tokens", "rows of a tick", "seconds", *(f"{name}, s" for name in names)]
    head += ["tokens/s", "TFLOP of products", "TFLOP/s", "of the ceiling", "ticks"]
    return table(head, [_prefill_row(line["results"], mine, names) for line in lines])


def _prefill_row(r: Line, peers: Sequence[Line], names: Sequence[str]) -> list[str]:
    point = r["prompt_len"], r["prompts"]
    others = [_peer(peers, name, *point, "prompt_s", digits=3) for name in names]
    row = [str(r["prompts"]), str(r["prompt_len"])]
    if "skipped" in r:
        return [*row, _skipped(r), "", *others, *[""] * 5]
    return [
        *row,
        str(r["num_rows"]),
        _spread(r["seconds"], 3),
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
        return [*row, _skipped(r), *[""] * 9]
    return [
        *row,
        r["depths"],
        f"{r['mean_depth']:.2f}",
        f"{_spread(r['fixed_ms'])} ({r['fixed_by']})",
        _spread(r["cohort_ms"]),
        _spread(r["refill_ms"]),
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
        return [*row, _skipped(r), *[""] * 4]
    row += [_spread(r["cohort_ms"]), _spread(r["together_ms"]), f"{r['together_overhead']:+.1%}"]
    return [*row, _spread(r["spread_ms"]), f"{r['spread_overhead']:+.1%}"]


def _pipeline_table(lines: Sequence[Line]) -> str:
    head = ["context", "batch", "strategy", "draft depth", "acceptance asked", "acceptance"]
    head += ["ms a token", "ticks a token", "bound, ticks", "over refill", "wasted loops a token"]
    return table(head, [_pipeline_row(line["results"]) for line in lines])


def _pipeline_row(r: Line) -> list[str]:
    row = [str(r["context"]), str(r["batch"]), r["strategy"]]
    if "skipped" in r:
        return [*row, _skipped(r), *[""] * 7]
    asked = "its own" if r["asked"] is None else f"{r['asked']:.2f}"
    guessed = r["acceptance"] is not None
    return [
        *row,
        str(r["draft_depth"] or ""),
        asked if r["draft_depth"] else "",
        f"{r['acceptance']:.3f}" if guessed else "",
        _spread(r["token_ms"]),
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
        return ["", "", r["mode"], str(r["chunk_size"]), _skipped(r), *[""] * 7]
    return [
        str(r["decodes"]),
        f"{r['prompts']} x {r['prompt_len']}",
        r["mode"],
        str(r["chunk_size"]),
        str(r["budget"]),
        _spread(r["ttft_ms"]),
        f"{r['p50_ms']:.2f}",
        f"{r['p99_ms']:.2f}",
        f"{r['quiet_p99_ms']:.2f}",
        f"{r['p99_ratio']:.2f}",
        _spread(r["total_s"]),
        str(r["ticks"]),
    ]


def _comparable(peer: Line, line: Line) -> bool:
    """The same shape, dtype and kind of GPU."""
    keys = ("folder", "dtype")
    same = all(peer["settings"][key] == line["settings"][key] for key in keys)
    return same and peer["machine"].get("gpu") == line["machine"].get("gpu")


def _peer(
    peers: Sequence[Line], name: str, context: int, batch: int, value: str, digits: int = 2
) -> str:
    found = [
        f"{peer['results'][value]:.{digits}f}"
        for peer in peers
        if (peer["engine"], peer["results"]["context"], peer["results"]["batch"])
        == (name, context, batch)
    ]
    return found[0] if found else ""


def _skipped(r: Line) -> str:
    return f"does not fit: {str(r['skipped']).splitlines()[0]}"


def _spread(values: dict[str, float], digits: int = 2) -> str:
    low, mid, high = (f"{values[name]:.{digits}f}" for name in ("min", "median", "max"))
    return f"{mid} ({low} to {high})"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _on(value: bool) -> str:
    return "on" if value else "off"
