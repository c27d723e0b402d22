"""The bytes that decoding must move: the weights that each part of a model reads, and KV.

The weights of a part are found by running it once on one row and noting which stretches of the
weight table's memory an operator reads; a table that is only looked up by row (`embed`) counts
nothing, so a tied head counts with the head. Then, for one more token of every row at full depth:

    prelude + loops x loop + coda + head        each weight once, whatever the rows
    + rows x keys x bytes of a key              every earlier position once a loop

Activations, page tables and the writing of KV are left out: they are small, and a floor may not
count too much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rlt_core.contract.protocols import Operators, WeightedModel
from rlt_core.kv.plan import KVPlan
from rlt_core.plugins.plan import Plan

Stretch = tuple[int, int]  # addresses: first byte, one past the last
_LOOK_UPS = ("embedding", "__getitem__", "index_select", "gather", "take")


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Bytes of weights that a part reads in one launch, and bytes of KV that a row reads of one
    earlier position in one loop (per_loop_kv) or once a token (boundary_kv)."""

    prelude: int
    loop: int
    coda: int
    head: int
    per_loop_kv: int
    boundary_kv: int

    def token_bytes(self, *, loops: int, rows: int, keys: float) -> float:
        """Bytes for one more token of each of `rows` rows that see `keys` positions."""
        weights = self.prelude + loops * self.loop + self.coda + self.head
        return weights + rows * keys * (loops * self.per_loop_kv + self.boundary_kv)


def measure_traffic(plan: Plan, kv: KVPlan, model: WeightedModel, ops: Operators) -> Traffic:
    """Run every part of `model` on one row and note the weights that it reads."""
    table = _merged(_stretch(t) for t in model.weight_table().values())
    device = torch.device(plan.device)
    ctx: Any = _Context(plan, ops, device)
    token = torch.zeros(1, dtype=torch.int64, device=device)
    sizes = {}

    def noted(part: str, run: Callable[[], Tensor]) -> Tensor:
        ctx.ops.read.clear()
        with _Noting(ctx.ops.read):
            found = run()
        sizes[part] = _common(_merged(ctx.ops.read), table)
        return found

    with torch.inference_mode():
        state = noted("prelude", lambda: model.prelude(token, ctx))
        state = noted("loop", lambda: model.loop(state, ctx))
        state = noted("coda", lambda: model.coda(state, ctx))
        noted("head", lambda: model.head(state, ctx))
    return Traffic(**sizes, per_loop_kv=_kv(kv, True), boundary_kv=_kv(kv, False))


def _kv(kv: KVPlan, per_depth: bool) -> int:
    """Bytes of keys and values of one position in the tracks that every loop reads, or only one
    launch a token."""
    return sum(
        2 * track.num_layers * track.num_kv_heads * track.head_dim * kv.element_bytes
        for track in kv.tracks
        if track.per_depth == per_depth
    )


class _Noting(TorchFunctionMode):
    """Adds what torch's own operators read; a view reads nothing, a look-up only some rows."""

    def __init__(self, read: list[Stretch]) -> None:
        super().__init__()
        self._read = read

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        # Sizes, dtypes and the like make no tensor.
        stores = {t.untyped_storage().data_ptr() for t in _tensors((made,))}
        if stores and func.__name__ not in _LOOK_UPS:
            given = _tensors((*args, *(kwargs or {}).values()))
            self._read += [
                _stretch(t) for t in given if t.untyped_storage().data_ptr() not in stores
            ]
        return made


class _NotedOps:
    """The plan's operators; kernels of their own are invisible to torch, so arguments are noted."""

    def __init__(self, ops: Operators) -> None:
        self._ops, self.read = ops, list[Stretch]()

    def __getattr__(self, name: str) -> Any:
        run = getattr(self._ops, name)

        def noted(*args: Any, **kwargs: Any) -> Any:
            if name != "embed":
                self.read += map(_stretch, _tensors((*args, *kwargs.values())))
            return run(*args, **kwargs)

        return noted


class _Context:
    """protocols.LoopContext of a row without a past: attention gives zeros, draws are zeros."""

    def __init__(self, plan: Plan, ops: Operators, device: torch.device) -> None:
        self._plan, self._device = plan, device
        self.ops = _NotedOps(ops)
        self.positions = torch.zeros(1, dtype=torch.int64, device=device)
        self.depth = torch.ones(1, dtype=torch.int64, device=device)

    def attend(self, track: str, layer: int, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Tensor:
        self.ops.read += map(_stretch, _tensors((how.get("qk_bias"), how.get("qk_norm"))))
        return torch.zeros_like(q, memory_format=torch.contiguous_format)

    def random_bits(self, purpose: int, count: int) -> Tensor:
        return torch.zeros(1, count, dtype=torch.int64, device=self._device)

    def option(self, name: str) -> Tensor:
        value = next(spec.default for spec in self._plan.model.options if spec.name == name)
        return torch.tensor([value], device=self._device)

    def option_table(self, name: str) -> tuple[Tensor, Tensor]:
        return self._row(self._plan.shape.table_widths[name])

    def previous(self) -> tuple[Tensor, Tensor]:
        return self._row(self._plan.shape.state_width)

    def _row(self, width: int) -> tuple[Tensor, Tensor]:
        """(zeros [1, width], not given)."""
        dtype = getattr(torch, self._plan.dtype)
        none = torch.zeros(1, dtype=torch.bool, device=self._device)
        return torch.zeros(1, width, dtype=dtype, device=self._device), none


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors among values, in tuples and lists too."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from _tensors(value)


def _stretch(tensor: Tensor) -> Stretch:
    return tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes


def _merged(stretches: Iterable[Stretch]) -> list[Stretch]:
    """Sorted and without overlaps."""
    merged: list[Stretch] = []
    for first, end in sorted(stretches):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((first, end))
    return merged


def _common(one: Sequence[Stretch], other: Sequence[Stretch]) -> int:
    """Bytes in both; each is merged."""
    return sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in one for b in other)
