"""`rlt bench trace`: the ticks of a short load as a file for Perfetto (ui.perfetto.dev) or
chrome://tracing.

A stage is a process of the trace. Its first track has the ticks, from submission to the end of
their results' collection; below stand its slots, a track each, with a slice for every loop that a
row of the slot runs in a tick, coloured by depth; and a chart of rows by depth. The host sees a
row's depth when it leaves: an output read at depth e in tick t has run loop e - i in tick t - i.
Prompt cells say their depth in every tick.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

from rlt_core.contract.errors import OptionError
from rlt_core.runtime.batch import TickInput, TickOutput
from rlt_core.schedule.engine import TickExecutor

Event = dict[str, Any]
# Names that trace viewers know, from shallow to deep; Perfetto colours by a slice's name instead.
COLOURS = (
    "good",
    "thread_state_running",
    "thread_state_runnable",
    "rail_response",
    "rail_animation",
    "bad",
    "terrible",
)
TICKS, FIRST_SLOT = 0, 1


@dataclass(slots=True, kw_only=True)
class TickSpan:
    """One tick, in seconds of time.perf_counter. rows: (slot, depth, "prompt" or "decode") of
    every row that ran a loop, once its depth is known; a prompt's cell counts its rows."""

    tick: int
    submitted: float
    collected: float = 0.0
    num_decode: int = 0
    num_left: int = 0
    rows: list[tuple[int, int, str, int]] = field(default_factory=list)


class TracedExecutor:
    """Fits schedule.engine.TickExecutor; `spans` has every tick so far."""

    def __init__(self, inner: TickExecutor) -> None:
        self._inner = inner
        self.spans: dict[int, TickSpan] = {}
        self._flights: deque[TickSpan] = deque()

    @property
    def num_in_flight(self) -> int:
        """Ticks submitted and not collected."""
        return self._inner.num_in_flight

    def submit(self, tick: TickInput) -> None:
        """Launch a tick, and note when and with what."""
        span = TickSpan(tick=tick.tick, submitted=perf_counter(), num_decode=len(tick.decode_slots))
        prompt = tick.prompt
        cells = Counter(zip(prompt.slot.tolist(), prompt.depth.tolist(), strict=True))
        span.rows = [(slot, depth, "prompt", num) for (slot, depth), num in cells.items()]
        self._inner.submit(tick)
        self.spans[tick.tick] = span
        self._flights.append(span)

    def collect(self) -> TickOutput:
        """The oldest tick's results."""
        out = self._inner.collect()
        span = self._flights.popleft()
        span.collected = perf_counter()
        for slot, depth in zip(out.slot.tolist(), out.depth.tolist(), strict=True):
            if slot >= 0:
                self._left(span, slot, depth)
        return out

    def _left(self, span: TickSpan, slot: int, depth: int) -> None:
        """An output was read: its row ran a loop in each of the last `depth` ticks."""
        span.num_left += 1
        if any(one[0] == slot and one[2] == "prompt" for one in span.rows):
            return  # the prompt's own output
        for back in range(depth):
            earlier = self.spans.get(span.tick - back)
            if earlier is not None:
                earlier.rows.append((slot, depth - back, "decode", 1))


def write_trace(path: Path, spans: list[TickSpan], stage: str, num_slots: int) -> int:
    """Writes the file; how many events it has. OptionError where it cannot be written."""
    events = list(trace_events(spans, stage, num_slots))
    try:
        path.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}))
    except OSError as error:
        raise OptionError("FILE", str(path), str(error.strerror)) from error
    return len(events)


def trace_events(spans: list[TickSpan], stage: str, num_slots: int) -> Iterator[Event]:
    """Events of Chrome's trace format; times in microseconds from the first tick."""
    yield _name("process_name", TICKS, f"stage {stage}")
    yield _name("thread_name", TICKS, "ticks")
    for slot in range(num_slots):
        yield _name("thread_name", FIRST_SLOT + slot, f"slot {slot}")
    first, before = spans[0].submitted, 0.0
    for span in spans:
        # Two ticks are in flight, and run one after the other: slices of a track cannot overlap.
        start = max((span.submitted - first) * 1e6, before)
        before = end = max((span.collected - first) * 1e6, start)
        yield from _tick_events(span, start, end - start)


def _tick_events(span: TickSpan, start: float, length: float) -> Iterator[Event]:
    depths: dict[int, int] = defaultdict(int)
    for _, depth, _, num in span.rows:
        depths[depth] += num
    yield {
        **_slice(TICKS, f"tick {span.tick}", start, length),
        "args": {"rows": sum(depths.values()), "slots": span.num_decode, "left": span.num_left},
    }
    for slot, depth, kind, num in sorted(span.rows):
        yield {
            **_slice(FIRST_SLOT + slot, f"depth {depth}", start, length),
            "cname": COLOURS[min(depth, len(COLOURS)) - 1],
            "args": {"tick": span.tick, "rows": num, "kind": kind},
        }
    counts = {f"depth {depth}": depths[depth] for depth in sorted(depths)}
    yield {"ph": "C", "pid": 1, "name": "rows by depth", "ts": start, "args": counts}


def _slice(track: int, name: str, start: float, length: float) -> Event:
    return {"ph": "X", "pid": 1, "tid": track, "name": name, "ts": start, "dur": length}


def _name(kind: str, track: int, name: str) -> Event:
    return {"ph": "M", "pid": 1, "tid": track, "name": kind, "args": {"name": name}}
