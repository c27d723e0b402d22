"""`rlt bench wavefront`: long prompts that arrive among decoding requests, by prompt mode.

N requests decode, all from contexts of the same length; after a while M prompts of P random tokens
arrive, each for one token. For each mode, with the same number of prompt rows in progress (the
budget B of a tick):

    TTFT     from a prompt's arrival to its first token
    ITL      seconds between tokens of the decoding requests, from the first arrival until every
             prompt has its first token; a wait that has a part in it counts whole
    quiet    ITL of the same tokens in a run without the prompts: their contexts grow meanwhile
    total    from the first arrival to the last first token

Modes: `chunked` and `wavefront` with chunks of C rows, and `chunked` with chunks of the whole
budget, which fills the rows of a tick with one prompt as the wavefront does, but with one chunk.
A short run warms up. Each mode runs once without the prompts, then `repeat` times with them; waits
of all repeats stand in one distribution. The tokens must be the same in all modes and repeats.

    rlt bench wavefront --random-weights FOLDER --decodes 32 --prompts 8 --prompt-len 4096
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

from rlt_core.bench.arrivals import Arrivals, Scene, Seen, Waits
from rlt_core.bench.setting import Setting, check_setting
from rlt_core.bench.spread import Spread
from rlt_core.bench.subject import opened
from rlt_core.contract.errors import RltError
from rlt_core.plugins.registry import Registry

Tokens = list[list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """A prompt mode and the rows of its chunks."""

    name: str
    chunk_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WavefrontResult:
    """One mode. Milliseconds but for total_s; ttft_ms: least, median and most over prompts and
    repeats; p50 and p99: of waits between tokens, quiet_* of the same ones without prompts. ticks:
    of the first repeat. num_waits: how many waits with prompts the percentiles are of."""

    scene: Scene
    mode: Mode
    budget: int
    ttft_ms: Spread
    p50_ms: float
    p99_ms: float
    quiet_p50_ms: float
    quiet_p99_ms: float
    num_waits: int
    total_s: Spread
    ticks: int

    @property
    def ratio(self) -> float:
        """p99 with prompts over p99 without."""
        return self.p99_ms / self.quiet_p99_ms

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        fields = asdict(self)
        scene, mode = fields.pop("scene"), fields.pop("mode")
        named = {"mode": mode["name"], "chunk_size": mode["chunk_size"]}
        return {**scene, **named, **fields, "p99_ratio": self.ratio}


class WavefrontBench:
    """Modes on the same scene, whose tokens are compared."""

    def __init__(self, setting: Setting, registry: Registry, *, repeat: int = 3) -> None:
        self._setting, self._registry, self._repeat = setting, registry, repeat
        self._tokens: Tokens | None = None

    def measure(self, scene: Scene, mode: Mode) -> WavefrontResult:
        """One mode. Raises CapacityError, and RltError where tokens differ from another mode's."""
        setting = setting_of(self._setting, mode)
        plan = check_setting(setting, self._registry)
        budget = setting.rows
        lengths = scene.lengths(plan, mode.chunk_size, budget)
        with opened(setting, lengths, self._registry) as subject:
            Arrivals(subject, scene.short(mode.chunk_size), mode.chunk_size).run()  # warms up
            alone = Arrivals(subject, scene, mode.chunk_size).alone()
            runs = [Arrivals(subject, scene, mode.chunk_size).run() for _ in range(self._repeat)]
        for run in runs:
            if self._setting.exact:
                self._compare(run.tokens, mode)
        return _result(scene, mode, budget, alone, runs)

    def _compare(self, tokens: Tokens, mode: Mode) -> None:
        """Decoding requests as far as both made tokens; how many depends on the time taken."""
        first = self._tokens = tokens if self._tokens is None else self._tokens
        for i, (ours, theirs) in enumerate(zip(tokens, first, strict=True)):
            num = min(len(ours), len(theirs))
            if ours[:num] != theirs[:num]:
                raise RltError(
                    f"request {i} got other tokens with --prompts {mode.name} in chunks of "
                    f"{mode.chunk_size} than before: a fault of rlt or of a plugin's operator\n"
                    "Fix: rlt check says which part breaks; --exact off measures all the same"
                )


def setting_of(setting: Setting, mode: Mode) -> Setting:
    """The setting in a mode."""
    return replace(setting, prompts=mode.name, chunk_size=mode.chunk_size)


def modes(budget: int, chunk_size: int) -> list[Mode]:
    """What is compared; the whole budget only where chunks are smaller than it."""
    found = [Mode(name=name, chunk_size=chunk_size) for name in ("chunked", "wavefront")]
    whole = Mode(name="chunked", chunk_size=budget)
    return found if whole in found else [whole, *found]


def _result(
    scene: Scene, mode: Mode, budget: int, alone: Waits, runs: Sequence[Seen]
) -> WavefrontResult:
    busy = [wait for run in runs for wait in run.waits.values()]
    quiet = [alone[token] for run in runs for token in run.waits]
    return WavefrontResult(
        scene=scene,
        mode=mode,
        budget=budget,
        ttft_ms=Spread.of(seconds * 1e3 for run in runs for seconds in run.first),
        p50_ms=_percentile(busy, 50),
        p99_ms=_percentile(busy, 99),
        quiet_p50_ms=_percentile(quiet, 50),
        quiet_p99_ms=_percentile(quiet, 99),
        num_waits=len(busy),
        total_s=Spread.of(run.total for run in runs),
        ticks=runs[0].ticks,
    )


def _percentile(seconds: Iterable[float], part: float) -> float:
    """In milliseconds."""
    return float(np.percentile(list(seconds), part)) * 1e3
