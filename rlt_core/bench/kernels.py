"""Operators and attention one by one: bytes and operations a second against the device's ceilings.

Bytes are the operands and results once each (of a looked-up table the rows that are read; of KV
every position that a row sees), operations those of the products; what a kernel reads twice or
recomputes counts once. Rows up to MOST_DECODE_ROWS are decode rows: attention has as many requests,
each at the position `context`. More rows are one prompt, from position 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from rlt_core.bench.attention_rows import attention_launch
from rlt_core.bench.launch_time import launch_seconds
from rlt_core.bench.operator_calls import Call, record_calls
from rlt_core.contract.specs import AttentionSpec, OpSpec
from rlt_core.plugins.kinds import OPERATORS
from rlt_core.plugins.loading import load_object
from rlt_core.plugins.plan import Plan
from rlt_core.plugins.registry import Registry

MOST_DECODE_ROWS = 256
# The head's rows are those that leave in a tick.
MOST_HEAD_ROWS = 256
CUDA_BYTES, CPU_BYTES = 256 << 20, 16 << 20
MOST_COPIES, LEAST_LAUNCHES = 64, 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A call of the model's, in one part, and the candidate that answers it."""

    part: str
    call: Call
    spec: OpSpec | AttentionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelResult:
    """Microseconds of a launch; bytes and operations that it takes."""

    part: str
    id: str
    op: str
    shape: str
    rows: int
    micros: float
    num_bytes: int
    operations: int

    @property
    def bandwidth(self) -> float:
        """Bytes a second."""
        return self.num_bytes / self.micros * 1e6

    @property
    def rate(self) -> float:
        """Operations a second."""
        return self.operations / self.micros * 1e6

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "bytes_per_s": self.bandwidth, "operations_per_s": self.rate}


def subjects(plan: Plan, registry: Registry, *, every: bool) -> list[Subject]:
    """The calls of the plan's model, each once, with the plan's candidate; with `every`, all
    candidates for the device and dtype."""
    found: dict[tuple[str, Call], Subject] = {}
    for part, calls in record_calls(plan).items():
        for call in calls:
            for spec in _candidates(plan, registry, call.op, every):
                subject = Subject(part=part, call=call, spec=spec)
                found.setdefault((spec.id, call), subject)
    order = [*OPERATORS, "attend"]
    return sorted(found.values(), key=lambda s: (order.index(s.call.op), s.call.label()))


def row_counts(subject: Subject, rows: Sequence[int]) -> list[int]:
    """Those of `rows` that make sense: a head has no more than leave in a tick."""
    return [num for num in rows if subject.part != "head" or num <= MOST_HEAD_ROWS]


def measure_kernel(subject: Subject, plan: Plan, rows: int, context: int) -> KernelResult:
    """Time one call at one row count."""
    device = torch.device(plan.device)
    call, spec = subject.call, subject.spec
    make = _attend if call.op == "attend" else _operator
    with torch.inference_mode():
        launch, launches, num_bytes, operations = make(subject, plan, rows, context)
        seconds = launch_seconds(launch, device, launches)
    return KernelResult(
        part=subject.part,
        id=spec.id,
        op=call.op,
        shape=call.label(),
        rows=rows,
        micros=seconds * 1e6,
        num_bytes=num_bytes,
        operations=operations,
    )


Measured = tuple[Callable[[int], object], int, int, int]


def _operator(subject: Subject, plan: Plan, rows: int, context: int) -> Measured:
    call, device = subject.call, torch.device(plan.device)
    run = load_object(subject.spec.factory)
    sets = list(_operands(call, plan, rows, device))
    size = getattr(torch, plan.dtype).itemsize

    def launch(index: int) -> object:
        return run(*sets[index % len(sets)])

    num_bytes = _bytes(launch(0)) + sum(_bytes(arg) for arg in sets[0])
    if call.op == "embed":
        num_bytes = rows * (2 * call.weights[0][1] * size + 8)
    products = rows * call.weights[0][0] * call.weights[0][1] if "linear" in call.op else 0
    return launch, max(len(sets), LEAST_LAUNCHES), num_bytes, 2 * products


def _operands(call: Call, plan: Plan, rows: int, device: torch.device) -> Iterator[list[Any]]:
    """Arguments of one launch after another, together larger than a cache."""
    dtype = getattr(torch, plan.dtype)
    draw = torch.Generator(device).manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device=device).to(dtype)

    scale = call.weights[0][-1] ** -0.5 if "linear" in call.op else 1.0
    tensors = [random(*shape) * scale for shape in call.weights]
    if call.op == "embed":
        count = call.weights[0][0]
        inputs = [torch.randint(count, (rows,), generator=draw, device=device)]
    else:
        inputs = [random(rows, *shape) for shape in call.rows]
    eps = () if call.eps is None else (call.eps,)
    for index in range(_copies([*tensors, *inputs], device)):
        fresh = tensors if index == 0 or call.op == "embed" else [t.clone() for t in tensors]
        yield [*(t.clone() for t in inputs), *fresh, *eps]


def _copies(tensors: Sequence[Tensor], device: torch.device) -> int:
    together = CUDA_BYTES if device.type == "cuda" else CPU_BYTES
    one = sum(t.nbytes for t in tensors)
    return min(max(-(-together // one), 2), MOST_COPIES)


def _attend(subject: Subject, plan: Plan, rows: int, context: int) -> Measured:
    device, dtype = torch.device(plan.device), getattr(torch, plan.dtype)
    (heads, size), (groups, _), _ = subject.call.rows
    prompt = rows > MOST_DECODE_ROWS
    keys = rows if prompt else context
    requests = 1 if prompt else rows
    layer_bytes = 2 * requests * keys * groups * size * dtype.itemsize
    together = CUDA_BYTES if device.type == "cuda" else CPU_BYTES
    layers = min(max(-(-together // layer_bytes), 2), MOST_COPIES)
    launch = attention_launch(
        load_object(subject.spec.factory)(),
        subject.call,
        plan,
        requests=requests,
        keys=keys,
        prompt=prompt,
        layers=layers,
    )
    seen = rows * (rows + 1) // 2 if prompt else rows * keys
    own = 2 * rows * heads * size * dtype.itemsize  # queries and results
    return launch, max(layers, LEAST_LAUNCHES), layer_bytes + own, 4 * seen * heads * size


def _candidates(
    plan: Plan, registry: Registry, op: str, every: bool
) -> Sequence[OpSpec | AttentionSpec]:
    if op == "attend":
        if not every:
            return [plan.attention]
        found: list[OpSpec | AttentionSpec] = [*registry.all(AttentionSpec)]
    else:
        if not every:
            return [plan.ops[op]]
        found = [spec for spec in registry.all(OpSpec) if spec.op == op]
    kind = plan.device.partition(":")[0]
    return [spec for spec in found if kind in spec.devices and plan.dtype in spec.dtypes]


def _bytes(value: object) -> int:
    if isinstance(value, tuple):
        return sum(map(_bytes, value))
    return value.nbytes if isinstance(value, Tensor) else 0
