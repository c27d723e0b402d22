"""A plot of times as a plain SVG file: for each, the share of values that were no longer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import numpy as np

from rlt_core.contract.errors import OptionError

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 56, 28, 44, 48
COLOURS = ("#2563eb", "#059669", "#d97706", "#9333ea")
_MOST_POINTS = 400


def write_plot(path: Path, title: str, series: Mapping[str, Sequence[float]]) -> None:
    """Writes the file; series: seconds by name, those without values left out. OptionError for
    another kind of file, or one that cannot be written."""
    if path.suffix != ".svg":
        raise OptionError("--plot", str(path), "plots are SVG files", "Fix: a name ending in .svg")
    try:
        path.write_text(plot(title, series), encoding="utf-8")
    except OSError as error:
        raise OptionError("--plot", str(path), str(error.strerror)) from error


def plot(title: str, series: Mapping[str, Sequence[float]]) -> str:
    """The SVG's text."""
    shown = {name: np.sort(np.asarray(values) * 1e3) for name, values in series.items() if values}
    ends = [max(1e-3, float(v)) for values in shown.values() for v in (values[0], values[-1])]
    low = math.floor(math.log10(min(ends, default=1.0)))
    high = max(low + 1, math.ceil(math.log10(max(ends, default=10.0))))
    span = WIDTH - LEFT - RIGHT

    def x(value: float) -> float:
        return LEFT + span * (math.log10(max(value, 10.0**low)) - low) / (high - low)

    def y(share: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="13">{escape(title)}</text>',
    ]
    for exponent in range(low, high + 1):
        at = x(10.0**exponent)
        parts.append(_line(at, y(0), at, y(1)))
        parts.append(_text(at, HEIGHT - BOTTOM + 18, f"{10.0**exponent:g}", "middle"))
    for share in (0.0, 0.5, 0.9, 0.99):
        parts.append(_line(LEFT, y(share), WIDTH - RIGHT, y(share)))
        # 99 stands above its line, else it would lie on 90's.
        parts.append(_text(LEFT - 6, y(share) + (0 if share == 0.99 else 4), f"{share:.0%}", "end"))
    parts.append(_text(LEFT + span / 2, HEIGHT - 10, "milliseconds", "middle"))
    for i, (name, values) in enumerate(shown.items()):
        colour = COLOURS[i % len(COLOURS)]
        picked = np.unique(np.linspace(0, len(values) - 1, _MOST_POINTS).astype(int))
        points = " ".join(f"{x(values[j]):.1f},{y((j + 1) / len(values)):.1f}" for j in picked)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
        )
        parts.append(_text(LEFT + 100 * i, 36, name.upper(), "start", colour))
    return "\n".join([*parts, "</svg>", ""])


def _line(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<path d="M{x1:.1f} {y1:.1f} L{x2:.1f} {y2:.1f}" stroke="#ddd"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#333") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'
