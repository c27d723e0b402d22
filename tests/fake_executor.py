"""A device without tensors: the tick's rules in plain Python, every promise of the host checked.

States, keys and tokens are 64-bit hashes. A row's state after a loop mixes what it read from the
pool, so a wrong page, plane, depth or token changes every later token of the request; and every
read is checked to be of a page of the request's own that was written since it was given.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from rlt_core.contract.layouts import PlaneRule
from rlt_core.contract.specs import Entry
from rlt_core.kv.plan import CHUNK_KEYS, KVPlan
from rlt_core.runtime.batch import PromptRows, SlotParams, TickInput, TickOutput
from rlt_core.runtime.engine_config import EngineConfig
from tests.fake_pool import FakePool, mix

EMPTY, PROMPT, READY, RUN, LEAVING, DONE = range(6)


@dataclass(slots=True)
class _Row:
    """A row in its slot or place: what the device keeps of it between ticks."""

    slot: int
    token: int
    position: int
    depth: int = 0
    state: int = 0
    read_state: int = 0
    read_depth: int = 0
    left_at: int = 0


@dataclass(slots=True)
class _Slot:
    phase: int = EMPTY
    row: _Row = field(default_factory=lambda: _Row(-1, -1, 0))
    num_out: int = 0
    begun: int = 0  # forced positions whose cell has begun
    filled: int = 0  # and those that are done
    params: dict[str, int] = field(default_factory=dict)
    stop_ids: frozenset[int] = frozenset()
    trace: list[int] | None = None


@dataclass(frozen=True, slots=True)
class _Event:
    slot: int
    token: int
    depth: int
    finish: int


class FakeExecutor:
    """Fits schedule.engine.TickExecutor. `exits`: about one row in so many leaves a loop."""

    def __init__(
        self,
        config: EngineConfig,
        kv: KVPlan,
        *,
        entry: Entry = Entry.ON_LEAVE,
        full: bool = False,
        vocab_size: int = 97,
        exits: int = 3,
    ) -> None:
        self.config, self.kv, self.entry, self.full = config, kv, entry, full
        self.vocab_size, self.exits = vocab_size, exits
        self.slots = [_Slot() for _ in range(config.num_slots)]
        self.places: dict[int, _Row] = {}
        self.pool = FakePool(config, kv)
        self._results: deque[TickOutput] = deque()
        self._next_tick = 0
        self._page_limit = np.zeros(config.num_slots, np.int64)

    @property
    def num_in_flight(self) -> int:
        """Ticks submitted and not collected."""
        return len(self._results)

    def collect(self) -> TickOutput:
        """The oldest tick's results."""
        return self._results.popleft()

    def submit(self, tick: TickInput) -> None:
        """Run a tick; AssertionError when the host broke a promise."""
        assert tick.tick == self._next_tick, (tick.tick, self._next_tick)
        assert self.num_in_flight < self.config.ticks_in_flight
        self._next_tick += 1
        self._apply(tick)
        parked = self._enter(tick)
        rows = self._prompt_rows(tick.prompt)
        live = [slot.row for slot in self._listed(tick) if slot.phase == RUN]
        self._check_chunks(tick, [*live, *rows])
        low, high, ran, early = self._loop(live, rows, tick)
        events = self._leave(tick)
        prompt_events, scores = self._finish_cells(tick.prompt, rows)
        counts = np.array([ran, parked, low, high, early])
        self._results.append(_output(tick.tick, events + prompt_events, scores, counts))

    def _apply(self, tick: TickInput) -> None:
        for slot in tick.cleared.tolist():
            self.slots[slot] = _Slot()
            self.places = {p: row for p, row in self.places.items() if row.slot != slot}
        if tick.admitted is not None:
            self._admit(tick.admitted)
        self.pool.update(tick)
        for one in tick.resumed:
            slot = self.slots[one.slot]
            assert slot.phase == PROMPT, f"slot {one.slot} resumes in phase {slot.phase}"
            slot.phase, slot.row = READY, _Row(one.slot, one.token, one.position)
        self._page_limit = tick.page_limit.astype(np.int64)

    def _admit(self, new: SlotParams) -> None:
        for i, at in enumerate(new.slot.tolist()):
            slot = self.slots[at]
            assert slot.phase == EMPTY, f"slot {at} was given away while occupied"
            slot.phase, slot.num_out = PROMPT, len(new.output_tokens[i])
            slot.params = {name: int(getattr(new, name)[i]) for name in _PARAMS}
            slot.stop_ids = frozenset(new.stop_ids[i].tolist()) - {-1}
            slot.trace = None if new.trace is None else new.trace[i].tolist()

    def _listed(self, tick: TickInput) -> list[_Slot]:
        return [self.slots[slot] for slot in tick.decode_slots.tolist()]

    def _enter(self, tick: TickInput) -> int:
        busy = any(slot.phase in (RUN, LEAVING) for slot in self.slots)
        parked = 0
        for at, slot in zip(tick.decode_slots.tolist(), self._listed(tick), strict=True):
            assert slot.phase not in (EMPTY, PROMPT), f"slot {at} has no decode row"
            if slot.phase != READY:
                continue
            if slot.row.position >= self._page_limit[at]:
                parked += 1
            elif not (busy and self.entry is Entry.ALL_LEFT):
                slot.phase = RUN
                slot.row = _Row(at, slot.row.token, slot.row.position)
                slot.row.state = mix(slot.row.token, slot.row.position)
        return parked

    def _prompt_rows(self, prompt: PromptRows) -> list[_Row]:
        assert len(set(prompt.place.tolist())) == len(prompt), "a place is used twice"
        assert set(self.places) <= set(prompt.place.tolist()), "a cell in progress was left out"
        starts = prompt.cell_start.tolist()
        assert starts[0] == 0
        assert starts[-1] == len(prompt)
        for start, end in zip(starts[:-1], starts[1:], strict=True):
            self._check_cell(prompt, start, end)
        return [self._prompt_row(prompt, i) for i in range(len(prompt))]

    def _check_cell(self, prompt: PromptRows, start: int, end: int) -> None:
        assert end > start, "an empty cell"
        for name in ("slot", "depth", "last"):
            values = set(getattr(prompt, name)[start:end].tolist())
            assert len(values) == 1, f"a cell with {name} {values}"
        position = prompt.position[start:end].tolist()
        assert position == list(range(position[0], position[0] + end - start)), position
        slot = self.slots[int(prompt.slot[start])]
        if prompt.emit[end - 1]:
            # The policy decides the first output's read-out in mode full only.
            wanted = 0 if self.full else slot.params["loops"]
            assert prompt.exit_at[end - 1] == wanted, prompt.exit_at[start:end]
        assert slot.phase == PROMPT, f"a cell of slot {prompt.slot[start]} in phase {slot.phase}"
        if not slot.filled and not slot.begun:
            # Shared pages are read, and every read is checked to be of a written entry.
            assert position[0] % self.kv.page_size == 0, f"a first cell at {position[0]}"
            slot.filled = slot.begun = position[0]
        if int(prompt.depth[start]) == 1:
            assert slot.begun == position[0], f"cell at {position[0]}, {slot.begun} have begun"
            slot.begun = position[-1] + 1
        tables = self.kv.tables[slot.params["loops"] - 1]
        serial = tables.replay_is_serial if prompt.rule[start] else tables.prompt_order != "depth"
        assert end - start == 1 or not serial, "a serial cell with several rows"
        assert slot.filled == position[0] or not serial, "a serial cell before others are done"

    def _prompt_row(self, prompt: PromptRows, i: int) -> _Row:
        place, depth = int(prompt.place[i]), int(prompt.depth[i])
        slot, token, position = (int(a[i]) for a in (prompt.slot, prompt.token, prompt.position))
        if depth == 1:
            assert place not in self.places, f"place {place} is taken"
            self.places[place] = _Row(slot, token, position, state=mix(token, position))
        row = self.places[place]
        assert (row.slot, row.token, row.position) == (slot, token, position), "places were mixed"
        assert row.depth == depth - 1, f"depth {depth} after {row.depth}"
        return row

    def _check_chunks(self, tick: TickInput, rows: list[_Row]) -> None:
        longest = max((row.position + 1 for row in rows), default=0)
        assert longest <= tick.num_chunks * CHUNK_KEYS, f"{longest} keys, {tick.num_chunks} chunks"

    def _loop(
        self, live: list[_Row], rows: list[_Row], tick: TickInput
    ) -> tuple[int, int, int, int]:
        """One loop of all rows: first all write, then all read. (low, high, rows, early)."""
        prompt = tick.prompt
        rule = dict.fromkeys(map(id, live), 1) | {
            id(row): int(rule) for row, rule in zip(rows, prompt.rule, strict=True)
        }
        moving = live + [row for row in rows if self.full or not row.read_depth]
        for row in moving:
            row.depth += 1
            plane = self._rule(row, rule[id(row)]).write[row.depth - 1]
            self.pool.write(row.slot, row.position, plane, mix(row.state, row.depth, plane))
        for row in moving:
            planes = self._rule(row, rule[id(row)])
            read, write = planes.read[row.depth - 1], planes.write[row.depth - 1]
            row.state = mix(row.state, self.pool.read(row.slot, row.position, read, write))
        moved, decoding = set(map(id, moving)), set(map(id, live))
        for row in rows:
            if id(row) not in moved:
                row.depth += 1  # it stands still while its cell goes on
        exits = [0] * len(live) + prompt.exit_at.tolist()
        early = 0
        for row, forced in zip(live + rows, exits, strict=True):
            if id(row) in moved:
                decided = self._decide(row, forced, rule[id(row)])
                left_early = decided and row.read_depth < self._param(row, "loops")
                early += left_early and id(row) in decoding
        for row in live:
            if row.depth >= (self._param(row, "loops") if self.full else row.read_depth or 99):
                self.slots[row.slot].phase, row.left_at = LEAVING, tick.tick
        depths = [row.depth for row in moving]
        return min(depths, default=1 << 30), max(depths, default=0), len(moving), early

    def _decide(self, row: _Row, forced: int, rule: int) -> bool:
        if row.read_depth:
            return False
        leaves = row.depth >= forced if forced else self._policy(row)
        if not leaves and row.depth < self._param(row, "loops"):
            return False
        row.read_depth, row.read_state = row.depth, row.state
        if not self.full:
            planes = self._rule(row, rule)
            for plane in planes.fill[row.depth - 1]:
                source = planes.write[row.depth - 1]
                self.pool.fill(row.slot, row.position, source, plane)
        return True

    def _policy(self, row: _Row) -> bool:
        slot = self.slots[row.slot]
        if row.depth >= slot.params["max_loops"]:
            return True
        if row.depth < slot.params["min_loops"] or not slot.params["use_policy"]:
            return False
        if slot.trace is not None:
            return row.depth >= slot.trace[row.position - slot.params["prompt_len"] + 1]
        return mix(row.state, 77) % self.exits == 0

    def _leave(self, tick: TickInput) -> list[_Event]:
        waiting = [slot.row for slot in self._listed(tick) if slot.phase == LEAVING]
        waiting.sort(key=lambda row: row.left_at)
        leaving = waiting[: self.config.leave_places or None]
        return [self._emit(row, out) for row, out in self._coda(leaving)]

    def _finish_cells(
        self, prompt: PromptRows, rows: list[_Row]
    ) -> tuple[list[_Event], list[tuple[int, float]]]:
        done = [i for i in range(len(rows)) if prompt.last[i]]
        outs = self._coda([rows[i] for i in done])
        events, scores = [], []
        for i, (row, out) in zip(done, outs, strict=True):
            slot = self.slots[row.slot]
            assert slot.filled == row.position, f"{row.position} is done before {slot.filled}"
            slot.filled = row.position + 1
            known = int(prompt.known_next[i])
            if known >= 0:
                slot.phase, slot.row = READY, _Row(row.slot, known, row.position + 1)
            elif prompt.emit[i]:
                events.append(self._emit(row, out))
            if prompt.target[i] >= 0:
                score = mix(out, int(prompt.target[i])) % 1000 / 1000
                scores.append((row.read_depth, score))
            del self.places[int(prompt.place[i])]
        return events, scores

    def _coda(self, rows: list[_Row]) -> list[tuple[_Row, int]]:
        """Boundary tracks: all rows write, then all read."""
        for row in rows:
            assert row.read_depth, "a row reached the coda before it left"
            self.pool.write_boundary(row.slot, row.position, mix(row.read_state, 5))
        boundary = [self.pool.read_boundary(row.slot, row.position) for row in rows]
        return [(row, mix(row.read_state, kv)) for row, kv in zip(rows, boundary, strict=True)]

    def _emit(self, row: _Row, out: int) -> _Event:
        slot = self.slots[row.slot]
        token = mix(out, slot.params["seed"], row.position) % self.vocab_size
        slot.num_out += 1
        at = row.position + 1
        spent = slot.num_out >= slot.params["max_tokens"] or at + 1 >= slot.params["max_position"]
        finish = 1 if token in slot.stop_ids else 2 if spent else 0
        slot.phase = DONE if finish else READY
        slot.row = _Row(row.slot, token, at)
        return _Event(row.slot, token, row.read_depth, finish)

    def _param(self, row: _Row, name: str) -> int:
        return self.slots[row.slot].params[name]

    def _rule(self, row: _Row, rule: int) -> PlaneRule:
        tables = self.kv.tables[self._param(row, "loops") - 1]
        return tables.decode if rule else tables.prompt


_PARAMS = (
    "loops",
    "min_loops",
    "max_loops",
    "prompt_len",
    "max_tokens",
    "max_position",
    "use_policy",
    "seed",
)


def _output(
    tick: int,
    events: list[_Event],
    scores: list[tuple[int, float]],
    counts: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> TickOutput:
    num = len(events)

    def column(name: str) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        # Like the device: places without an event come too.
        return np.array([*(getattr(event, name) for event in events), -1], np.int64)

    zeros = np.zeros(num + 1, np.int64)  # rank, and the bits of a logprob of 0
    out = TickOutput(
        tick=tick,
        columns=np.stack(
            (
                column("slot"),
                column("token"),
                column("depth"),
                zeros,
                column("finish"),
                zeros,
            )
        ),
        counts=counts,
    )
    if scores:
        out.score_depth = np.array([depth for depth, _ in scores], np.int64)
        out.score_logprob = np.array([value for _, value in scores], np.float32)
        out.score_rank = np.zeros(len(scores), np.int64)
    return out
