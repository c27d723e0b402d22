"""How deep the tokens of a request may go, read against what the engine serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import RequestError
from rlt_core.contract.specs import ParamSpec
from rlt_core.runtime.batch import I32
from rlt_core.stage.messages import StageReport

FIXED = "fixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Depths:
    """The resolved depth options of one request."""

    loops: int
    min_loops: int
    max_loops: int
    use_policy: bool
    exit_params: dict[str, float]
    trace: I32 | None


class DepthReader:
    """Loops, bounds and the policy's parameters of one request."""

    def __init__(self, report: StageReport) -> None:
        self._report = report

    def read(self, params: SamplingParams, num_outputs: int) -> Depths:
        """Loops, bounds and policy parameters; RequestError naming what does not fit."""
        report = self._report
        # An engine of --max-depth serves a model that takes any number at that depth.
        loops = min(report.loops, report.max_depth) if params.loops is None else params.loops
        if loops > report.max_depth:
            raise RequestError(
                "loops", f"{loops} is out of range: it must be 1 to {report.max_depth}"
            )
        if loops != report.loops and not report.loops_override:
            raise RequestError(
                "loops", f"{report.model} runs {report.loops} loops and takes no other number"
            )
        low, high = params.min_loops or 1, params.max_loops or loops
        for name, value in (("min_loops", low), ("max_loops", high)):
            if value > loops:
                raise RequestError(name, f"{value} is out of range: it must be 1 to {loops}")
        use_policy = self._use_policy(params)
        return Depths(
            loops=loops,
            min_loops=low,
            max_loops=high,
            use_policy=use_policy,
            exit_params=self._exit_params(params, use_policy),
            trace=self._trace(params.trace, use_policy, loops, num_outputs),
        )

    def _use_policy(self, params: SamplingParams) -> bool:
        served, asked = self._report.exit_policy, params.exit_policy
        if asked not in (None, FIXED, served):
            raise RequestError(
                "exit_policy", f"this engine serves '{served}' and '{FIXED}', not '{asked}'"
            )
        return served != FIXED and asked != FIXED

    def _exit_params(self, params: SamplingParams, use_policy: bool) -> dict[str, float]:
        given = dict(params.exit_params or {})
        if params.exit_threshold is not None:
            given["exit_threshold"] = params.exit_threshold
        scalars = [spec for spec in self._report.exit_params if spec.kind != "depths"]
        names = [spec.name for spec in scalars] if use_policy else []
        for name in given:
            if name not in names:
                raise RequestError(name, self._no_such_param(use_policy, names))
        return {spec.name: self._value(spec, given, use_policy) for spec in scalars}

    def _value(self, spec: ParamSpec, given: Mapping[str, float], needed: bool) -> float:
        value = given.get(spec.name, self._report.exit_defaults.get(spec.name, spec.default))
        if value is None:
            if needed:
                raise RequestError(spec.name, f"policy '{self._report.exit_policy}' needs it")
            return spec.minimum or 0.0
        check_param(spec, value)
        return float(value)

    def _trace(
        self, trace: Sequence[int] | None, use_policy: bool, loops: int, num_outputs: int
    ) -> I32 | None:
        takes = use_policy and any(spec.kind == "depths" for spec in self._report.exit_params)
        if trace is None and not takes:
            return None
        if not takes:
            names = [spec.name for spec in self._report.exit_params] if use_policy else []
            fix = "\nFix: --exit-policy trace"
            raise RequestError("trace", self._no_such_param(use_policy, names) + fix)
        if trace is None:
            raise RequestError(
                "trace",
                f"policy '{self._report.exit_policy}' needs the depth of every output\n"
                "Fix: --trace 4,1,3 (trace=[4, 1, 3])",
            )
        for depth in trace:
            if not 1 <= depth <= loops:
                raise RequestError(
                    "trace", f"depth {depth} is out of range: it must be 1 to {loops}"
                )
        depths = np.full(min(num_outputs, self._report.max_len), loops, np.int32)
        known = list(trace)[: len(depths)]
        depths[: len(known)] = known
        return depths

    def _no_such_param(self, use_policy: bool, names: Sequence[str]) -> str:
        policy = self._report.exit_policy if use_policy else FIXED
        has = ", ".join(names) if names else "none"
        hint = "" if use_policy else "; start the engine with an exit policy that has it"
        return f"exit policy '{policy}' has no such parameter (it has {has}){hint}"


def check_param(spec: ParamSpec, value: float) -> None:
    """RequestError unless the value is within the range that the parameter declares."""
    low, high = spec.minimum, spec.maximum
    below = low is not None and (value <= low if spec.exclusive_minimum else value < low)
    if below or (high is not None and value > high):
        start = "above" if spec.exclusive_minimum else "at least"
        parts = [f"{start} {low:g}"] if low is not None else []
        parts += [f"at most {high:g}"] if high is not None else []
        raise RequestError(spec.name, f"{value} is out of range: it must be {' and '.join(parts)}")
    if spec.kind == "int" and value != int(value):
        raise RequestError(spec.name, f"{value} is not a whole number")
