"""Checks of an operator against a reference in float64, over a grid of shapes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from rlt_core.contract.capabilities import Word
from rlt_core.contract.specs import OpSpec
from rlt_core.plugins.kinds import OPERATORS
from rlt_core.plugins.limits import lack_of
from rlt_core.testing.checks.check import check, expect
from rlt_core.testing.checks.plugin import check_factories_load
from rlt_core.testing.checks.subjects import SEED, PartSubject

_ROWS = (1, 5, 16, 70)
_WIDTHS = (8, 48, 130)
_TOLERANCE = {"float32": 1e-4, "bfloat16": 4e-2}
_COUNTS, _TOTAL = (1, 3, 7, 33), 256
_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of one call; the first `num_rows` of them are rows [R, ...]."""

    args: tuple[Any, ...]
    num_rows: int
    what: str


class OperatorSubject(PartSubject[OpSpec]):
    """An operator candidate."""

    kind = "operator"

    def promises(self, word: str) -> bool:
        """An operator says `exact` in a field of its own."""
        return self.spec.exact if word == Word.EXACT else word in self.spec.provides

    @property
    def cannot(self) -> str:
        """Only the core's operators have a reference here, and only on a device that is here."""
        if self.spec.op not in OPERATORS:
            return f"the kit has no reference for the operator '{self.spec.op}'"
        if "float32" not in self.spec.dtypes:
            return f"it computes in {', '.join(self.spec.dtypes)}, and the reference in float32"
        return lack_of(self.spec) or no_device(self.spec.devices)


def no_device(devices: tuple[str, ...]) -> str:
    """Why none of the devices can be used here; "" when one can."""
    if "cpu" in devices or ("cuda" in devices and torch.cuda.is_available()):
        return ""
    return f"it runs on {', '.join(devices)}, which is not here"


def device_of(devices: tuple[str, ...]) -> str:
    """The first that is here: the CPU, or a CUDA device."""
    return "cpu" if "cpu" in devices else "cuda"


@check("operator", after=(check_factories_load,))
def check_operator_reference(operator: OperatorSubject) -> None:
    """The results are the reference's, in the input's dtype, for every shape of a grid.

    If this fails: protocols.Operators says what the operator computes, where it rounds and the
    order of its arguments.
    """
    function = operator.load()
    for dtype in _dtypes(operator):
        for call in _calls(operator, dtype):
            got, right = _tuple(function(*call.args)), _tuple(_reference(operator, call))
            expect(len(got) == len(right), f"{len(right)} results", len(got))
            for value, wanted in zip(got, right, strict=True):
                what = f"{call.what}, {dtype}"
                kind = getattr(torch, dtype)
                fits = value.shape == wanted.shape and value.dtype == kind
                told = f"{list(value.shape)} {value.dtype}"
                expect(fits, f"{list(wanted.shape)} {dtype} ({what})", told)
                apart = float((value.double() - wanted).abs().max() / (1 + wanted.abs().max()))
                most = _TOLERANCE[dtype]
                expect(apart <= most, f"the reference to {most:g} ({what})", f"{apart:.1e} apart")


@check("operator", after=(check_operator_reference,))
def check_operator_pure(operator: OperatorSubject) -> None:
    """The operator changes none of its arguments.

    If this fails: write into a new tensor; models use their arguments again.
    """
    function = operator.load()
    for call in _calls(operator, _dtypes(operator)[0]):
        kept = [x.clone() if isinstance(x, Tensor) else x for x in call.args]
        function(*call.args)
        for number, (before, now) in enumerate(zip(kept, call.args, strict=True)):
            same = not isinstance(before, Tensor) or torch.equal(before, now)
            expect(same, f"argument {number} to stay as it was ({call.what})", "it changed")


@check("operator", word=Word.EXACT, after=(check_operator_reference,))
def check_operator_exact(operator: OperatorSubject) -> None:
    """A row has the same bits among 1, 3, 7, 33 and 256 rows, at any place.

    If this fails: the order of a reduction depends on the row count; pad rows to a fixed multiple
    or declare `exact=False`.
    """
    function = operator.load()
    for dtype in _dtypes(operator):
        for width in _WIDTHS:
            call = _call(operator, _TOTAL, width, dtype)
            together = _tuple(function(*call.args))
            for count in _COUNTS:
                for start in (0, 1, _TOTAL // 2 - 5, _TOTAL - count):
                    some = _tuple(function(*_slice(call, slice(start, start + count))))
                    pairs = zip(some, together, strict=True)
                    same = all(torch.equal(a, b[start : start + count]) for a, b in pairs)
                    told = f"other bits in {count} rows of {_TOTAL} ({width} wide, {dtype})"
                    expect(same, "the same bits in any batch", told)


def _dtypes(operator: OperatorSubject) -> tuple[str, ...]:
    return tuple(dtype for dtype in operator.spec.dtypes if dtype in _TOLERANCE)


def _calls(operator: OperatorSubject, dtype: str) -> Iterator[Call]:
    for rows in _ROWS:
        for width in _WIDTHS:
            yield _call(operator, rows, width, dtype)


def _call(operator: OperatorSubject, rows: int, width: int, dtype: str) -> Call:
    draw = torch.Generator().manual_seed(SEED)
    device = device_of(operator.spec.devices)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(device, getattr(torch, dtype))

    what = f"{rows} rows of {width}"
    x, y, w, v = random(rows, width), random(rows, width), random(width), random(width)
    if operator.spec.op == "embed":
        tokens = torch.randint(17, (rows,), generator=draw).to(device)
        return Call((tokens, random(17, width)), 1, what)
    if operator.spec.op == "linear":
        return Call((x, random(width + 3, width), random(width + 3)), 1, what)
    arguments: dict[str, tuple[tuple[Any, ...], int]] = {
        "rms_norm": ((x, w, _EPS), 1),
        "add_rms_norm": ((x, y, w, _EPS), 2),
        "norm_add_norm": ((x, y, w, v, _EPS), 2),
        "add_norm": ((x, y, w, _EPS), 2),
        "silu_mul": ((random(rows, 2 * width) * 3,), 1),
        "linear_silu_mul": ((x, random(2 * width, width)), 1),
    }
    args, num_rows = arguments[operator.spec.op]
    return Call(args, num_rows, what)


def _slice(call: Call, rows: slice) -> tuple[Any, ...]:
    return (*(x[rows].clone() for x in call.args[: call.num_rows]), *call.args[call.num_rows :])


def _reference(operator: OperatorSubject, call: Call) -> Any:
    wide = (x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in call.args)
    return _REFERENCES[operator.spec.op](*wide)


def _norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def _silu_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


def _norm_add_norm(x: Tensor, y: Tensor, w: Tensor, v: Tensor, eps: float) -> Any:
    total = y + _norm(x, w, eps)
    return _norm(total, v, eps), total


_REFERENCES: dict[str, Any] = {
    "embed": lambda tokens, weight: weight[tokens],
    "linear": lambda x, weight, bias: x @ weight.T + bias,
    "rms_norm": _norm,
    "add_rms_norm": lambda x, y, w, eps: (_norm(x + y, w, eps), x + y),
    "norm_add_norm": _norm_add_norm,
    "add_norm": lambda x, y, w, eps: _norm(x + y, w, eps),
    "silu_mul": _silu_mul,
    "linear_silu_mul": lambda x, weight: _silu_mul(x @ weight.T),
}


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return value if isinstance(value, tuple) else (value,)
