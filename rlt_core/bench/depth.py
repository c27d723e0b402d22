"""`rlt bench depth`: what early exits save, against what they can save.

N residents with prompts of C random tokens replay exit depths (policy `trace`): drawn ones or
recorded ones, see bench.depths. All prompts run first, then 4 D ticks pass, then a window is
measured in which nobody arrives or ends: T x mean depth ticks, so that a request makes T tokens
in it on average and the same positions are reached whatever the depths are. What is counted are
the tokens that came out: milliseconds between tokens = window x N / tokens. Under the strategy
`cohort`, warm-up and window last until the end of a round.

1. fixed depth: policy `fixed`, by the faster of cohort and refill
2. cohort with exits   3. refill with exits

The work bound: a token costs its loops and the boundary (prelude, coda, head, sampling), so

    bound = (boundary + D) / (boundary + mean depth)     in loops, over fixed depth

The boundary is measured: under `cohort` and `fixed` a round of D loops has one boundary; requests
of one loop have one in every tick, in which all leave (where the model always takes its own loops:
all exits replayed at D, and at 1). With t(D) and t(1) the milliseconds
between tokens of both, a loop is (t(D) - t(1)) / (D - 1) and the boundary t(1) less a loop. An
engine whose ticks do boundary work that nobody needs has the less boundary by this measure, and
so the higher a bound.

`--no-exit` measures refill against cohort at full depth, where nothing can be saved, replaying
depth D under both: together
(all rows in one phase, as cohort has them) and spread (one D-th of the rows leave in each tick).

    rlt bench depth --random-weights FOLDER --width 64 --context 1024 --distribution gate
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rlt_core.bench.boundary import Boundary
from rlt_core.bench.crowd import Window
from rlt_core.bench.depth_runs import Load, Run, has_one_loop, opened_runs, resident_lengths
from rlt_core.bench.depths import AtOne, Depths, Full
from rlt_core.bench.setting import Setting
from rlt_core.bench.spread import Spread
from rlt_core.contract.errors import OptionError
from rlt_core.plugins.plan import Plan
from rlt_core.plugins.registry import Registry

FULL, ONE_LOOP, AT_ONE = Run(Full()), Run(Full(), one_loop=True), Run(AtOne())


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthResult:
    """One distribution at one load; *_ms: milliseconds between tokens."""

    load: Load
    depths: str
    mean_depth: float
    fixed_by: str
    fixed_ms: Spread
    cohort_ms: Spread
    refill_ms: Spread
    boundary: Boundary
    bound: float
    halts: int

    @property
    def speedup(self) -> float:
        """Refill with exits over fixed depth."""
        return self.fixed_ms.median / self.refill_ms.median

    @property
    def cohort_speedup(self) -> float:
        """Cohort with exits over fixed depth."""
        return self.fixed_ms.median / self.cohort_ms.median

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            **_load_dict(self.load),
            "depths": self.depths,
            "mean_depth": self.mean_depth,
            "fixed_by": self.fixed_by,
            "fixed_ms": self.fixed_ms.as_dict(),
            "cohort_ms": self.cohort_ms.as_dict(),
            "refill_ms": self.refill_ms.as_dict(),
            "loop_ms": self.boundary.loop_ms,
            "boundary_loops": self.boundary.loops,
            "bound": self.bound,
            "speedup": self.speedup,
            "cohort_speedup": self.cohort_speedup,
            "share_of_bound": self.speedup / self.bound,
            "halts": self.halts,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NoExitResult:
    """Full depth at one load; *_ms: milliseconds between tokens."""

    load: Load
    cohort_ms: Spread
    together_ms: Spread
    spread_ms: Spread
    halts: int

    def overhead(self, refill: Spread) -> float:
        """What refill costs over cohort: 0.02 is 2 percent more."""
        return refill.median / self.cohort_ms.median - 1

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            **_load_dict(self.load),
            "cohort_ms": self.cohort_ms.as_dict(),
            "together_ms": self.together_ms.as_dict(),
            "spread_ms": self.spread_ms.as_dict(),
            "together_overhead": self.overhead(self.together_ms),
            "spread_overhead": self.overhead(self.spread_ms),
            "halts": self.halts,
        }


class DepthBench:
    """Measures loads on one model; `told` is called after every window."""

    def __init__(
        self,
        setting: Setting,
        plan: Plan,
        registry: Registry,
        *,
        repeat: int = 3,
        told: Callable[[], None] = lambda: None,
    ) -> None:
        if plan.shape.loops < 2:
            raise OptionError(
                "model", plan.model.id, "it has one loop, so there is nothing to exit"
            )
        self._setting, self._plan, self._registry = setting, plan, registry
        self._repeat, self._told = repeat, told

    def longest(self, load: Load, sources: Sequence[Depths]) -> int:
        """The most positions of any resident."""
        runs = [FULL, ONE_LOOP, *map(Run, sources)]
        return max(one.total for one in resident_lengths(self._plan, load, runs))

    def measure(self, load: Load, sources: Sequence[Depths]) -> list[DepthResult]:
        """A result per source of depths. Raises CapacityError when the residents do not fit."""
        exits = [Run(source) for source in sources]
        plain = has_one_loop(self._plan)
        fixed = self._windows("cohort", load, [FULL, ONE_LOOP] if plain else [FULL], "fixed")
        (refill_full,) = self._windows("refill", load, [FULL], "fixed")
        probes = [] if plain else [FULL, AT_ONE]
        cohort = self._windows("cohort", load, [*probes, *exits])
        refill = self._windows("refill", load, exits)
        full = {"cohort": _ms(fixed[0], load), "refill": _ms(refill_full, load)}
        boundary = self._boundary(load, fixed if plain else cohort[:2])
        halts = _halts([*fixed, refill_full, *cohort, *refill])
        return [
            self._result(load, source, full, boundary, in_cohort, in_refill, halts)
            for source, in_cohort, in_refill in zip(
                sources, cohort[len(probes) :], refill, strict=True
            )
        ]

    def _boundary(self, load: Load, windows: Sequence[Sequence[Window]]) -> Boundary:
        """From windows at full depth and at one loop."""
        full, one = (_ms(found, load).median for found in windows)
        return Boundary.fit(full_ms=full, one_ms=one, loops=self._plan.shape.loops)

    def _result(
        self,
        load: Load,
        source: Depths,
        full: Mapping[str, Spread],
        boundary: Boundary,
        cohort: Sequence[Window],
        refill: Sequence[Window],
        halts: int,
    ) -> DepthResult:
        fixed_by = min(full, key=lambda name: full[name].median)
        mean = sum(w.depth * w.tokens for w in refill) / sum(w.tokens for w in refill)
        return DepthResult(
            load=load,
            depths=source.name,
            mean_depth=mean,
            fixed_by=fixed_by,
            fixed_ms=full[fixed_by],
            cohort_ms=_ms(cohort, load),
            refill_ms=_ms(refill, load),
            boundary=boundary,
            bound=boundary.bound(self._plan.shape.loops, mean),
            halts=halts,
        )

    def measure_no_exit(self, load: Load) -> NoExitResult:
        """Refill against cohort at full depth."""
        (cohort,) = self._windows("cohort", load, [FULL])
        together, spread = self._windows("refill", load, [FULL, Run(Full(spread=True))])
        return NoExitResult(
            load=load,
            cohort_ms=_ms(cohort, load),
            together_ms=_ms(together, load),
            spread_ms=_ms(spread, load),
            halts=_halts([cohort, together, spread]),
        )

    def _windows(
        self, strategy: str, load: Load, runs: Sequence[Run], policy: str = "trace"
    ) -> list[list[Window]]:
        """The windows of every run, `repeat` of each; the repeats of all runs take turns."""
        windows: list[list[Window]] = [[] for _ in runs]
        setting = replace(self._setting, strategy=strategy, exit_policy=policy)
        with opened_runs(setting, self._plan, load, runs, self._registry) as measured:
            for _ in range(self._repeat):
                for run, mine in zip(runs, windows, strict=True):
                    mine.append(measured.measure(run))
                    self._told()
        return windows


def num_windows(plan: Plan, sources: int, repeat: int, *, no_exit: bool) -> int:
    """How many windows a load takes."""
    if no_exit:
        return 3 * repeat
    return repeat * ((3 if has_one_loop(plan) else 4) + 2 * sources)


def _ms(windows: Sequence[Window], load: Load) -> Spread:
    return Spread.of(window.token_ms(load.width) for window in windows)


def _halts(runs: Sequence[Sequence[Window]]) -> int:
    return sum(window.halts for windows in runs for window in windows)


def _load_dict(load: Load) -> dict[str, object]:
    return {"context": load.context, "width": load.width, "new_tokens": load.new_tokens}
