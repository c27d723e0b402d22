"""Captured ticks: one for each padded number of decode and prompt rows and variant of sampling.

What the host decides reaches them through an inbox; ticks that none of them can be run eagerly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from rlt_core.runtime.batch import TickInput
from rlt_core.runtime.collect import Results
from rlt_core.runtime.decode_inputs import DecodeInputs
from rlt_core.runtime.emit import Emitter
from rlt_core.runtime.engine_config import EngineConfig
from rlt_core.runtime.mixed_inputs import MixedInputs
from rlt_core.runtime.replay import Replay, shared_pool
from rlt_core.runtime.residents import Needs
from rlt_core.runtime.slots import Slots
from rlt_core.runtime.tick_inputs import TickInputs
from rlt_core.runtime.tick_rows import TickTensors

# Prompt rows of captured ticks, and the decode rows beside them: their padding stands in front of
# the prompt rows, and products run over it.
PROMPT_ROWS = (64, 256, 1024, 2048, 4096, 8192)
MIXED_ROWS = (16, 32, 64, 128)


class TickGraphs:
    """The captured ticks of one stage; capture() must have run before a tick."""

    def __init__(
        self,
        run: Callable[[TickTensors], Results],
        apply: Callable[[Tensor, Tensor, Tensor], None],
        slots: Slots,
        emitter: Emitter,
        config: EngineConfig,
        inputs: TickInputs,
        *,
        has_coda: bool,
        variants: Sequence[Needs],
    ) -> None:
        """run: one tick, whose sampling follows emitter.needs. apply: page limits int64 [S], flat
        entries of the page tables int64 [N] and the pages that go there. has_coda: the model has
        layers after its loops. variants: kinds of sampling that are captured, the last of which
        covers the most."""
        self._run, self._apply, self._slots, self._emitter = run, apply, slots, emitter
        self._variants = variants
        rows = row_counts(config.num_slots)
        self._kinds: list[tuple[DecodeInputs, Sequence[int], Sequence[Needs]]] = []
        beside = [*(r for r in MIXED_ROWS if r < rows[-1]), rows[-1]]
        # Prompts alone: sixteen rows of padding in front of 2048 would be a row tile more.
        alone = [] if inputs.guesses or inputs.peeks else [0]
        for fan in {inputs.fan: None, (1 if inputs.narrows else inputs.fan): None}:
            sizes = (config, slots, inputs, rows[-1], fan)
            self._kinds.append((DecodeInputs(*sizes), rows, self._variants))
            for num in () if inputs.chains else prompt_counts(config.num_places):
                # one more, which is always padding
                mixed = partial(MixedInputs, *sizes, prompt_rows=num + 1, has_coda=has_coda)
                if alone:
                    self._kinds.append((mixed(leaves=False), alone, self._variants[-1:]))
                self._kinds.append((mixed(), [*alone, *beside], self._variants))
        self._replays: dict[tuple[int, int, Needs], Replay] = {}
        self._version = 0

    def capture(self, progress: Callable[[int, int], None] = lambda done, of: None) -> None:
        """Capture every tick, the largest first; progress(done, of) after each."""
        self._slots.make_room()
        self._version, pool = self._slots.version, shared_pool(self._slots.device)
        todo = [
            (kind, rows, needs)
            for kind in reversed(range(len(self._kinds)))
            for rows in reversed(self._kinds[kind][1])
            for needs in self._kinds[kind][2]
        ]
        for done, (kind, rows, needs) in enumerate(todo):
            inputs = self._kinds[kind][0]
            inputs.idle(rows)
            self._emitter.needs = needs
            tick = partial(self._tick, inputs, inputs.tensors(rows), needs)
            self._replays[kind, rows, needs] = Replay(tick, self._slots.device, pool)
            progress(done + 1, len(todo))

    def run(self, tick: TickInput, needs: Needs) -> Results | None:
        """Replay a tick, table changes and all; None when no captured one can be it."""
        if self._slots.version != self._version:
            return None  # more tables at once than room was made for: slower until the next start
        for kind, (inputs, counts, variants) in enumerate(self._kinds):
            if inputs.fits(tick):
                variant = next((v for v in variants if v.covers(needs)), None)
                if variant is None:
                    return None
                rows = next(rows for rows in counts if rows >= len(tick.decode_slots))
                inputs.fill(tick, rows)
                return self._replays[kind, rows, variant]()
        return None

    def _tick(self, inputs: DecodeInputs, tensors: TickTensors, needs: Needs) -> Results:
        parts = inputs.inbox.parts
        self._emitter.needs = needs
        self._apply(parts["limits"], parts["at"], parts["page"])
        return self._run(tensors)


def row_counts(most: int) -> list[int]:
    """The padded row counts for up to `most` decode rows, ascending: powers of two, and from 16 on
    one between each two."""
    found, size = [], 1
    while size < most:
        found.append(size)
        if size >= 16 and size * 3 // 2 < most:
            found.append(size * 3 // 2)
        size *= 2
    return [*found, most]


def prompt_counts(most: int) -> list[int]:
    """The padded numbers of prompt rows where up to `most` are in progress; larger ticks than the
    largest are not captured."""
    largest = min(most, PROMPT_ROWS[-1])
    return [*(rows for rows in PROMPT_ROWS if rows < largest), largest]


def variants(most_logprobs: int) -> tuple[Needs, ...]:
    """The kinds of sampling that are captured, each covering the ones before it."""
    return (
        Needs(),
        Needs(full=True),
        Needs(full=True, masks=True),
        Needs(full=True, filters=True, num_top=most_logprobs, masks=True),
    )
