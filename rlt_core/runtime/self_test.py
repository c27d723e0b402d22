"""The start-up test: what claims `exact` must give a row the same bits in any batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import PluginError
from rlt_core.contract.protocols import KVRows
from rlt_core.kv.plan import CHUNK_KEYS
from rlt_core.runtime.tiles import make_tiles, single_tiles
from rlt_core.runtime.upload import Upload

if TYPE_CHECKING:
    import numpy as np

    from rlt_core.contract.protocols import Attention, Operators
    from rlt_core.plugins.plan import Plan

COUNTS = (1, 3, 7, 33)
TOTAL = 256
_WIDEST = 8192  # columns of the products tried
_EPS = 1e-6

RowFunction = Callable[[Tensor], Tensor]


def self_test_exact(
    plan: Plan, operators: Operators, attention: Attention, device: torch.device | str = "cpu"
) -> None:
    """Compare 1, 3, 7 and 33 rows with 256 for everything in the plan that claims `exact`.

    Shapes and dtype are the plan's. Raises PluginError that names the first operator whose rows
    differ. Takes milliseconds for small models.
    """
    draw = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        values = torch.randn(shape, generator=draw)
        return values.to(device, getattr(torch, plan.dtype))

    width = plan.shape.state_width
    for name, function in _row_functions(operators, random, width):
        spec = plan.ops.get(name)
        if spec is not None and spec.exact:
            # three times wider than a norm leaves it: exp and sigmoid err more, far from 0
            _check(f"operator {spec.id}", function, random(TOTAL, 2 * width) * 3)
    if Word.EXACT in plan.attention.provides:
        _check_attention(plan, attention, random)


def _row_functions(
    ops: Operators, random: Callable[..., Tensor], width: int
) -> Iterator[tuple[str, RowFunction]]:
    """(operator, function of rows [R, 2 * width])."""
    w, w_next, bias = random(width), random(width), random(min(3 * width, _WIDEST))
    weight = random(len(bias), width)
    pair = random(2 * (min(3 * width, _WIDEST) // 2), width)

    def halves(x: Tensor) -> tuple[Tensor, Tensor]:
        return x[:, :width], x[:, width:]

    def add_norm(x: Tensor) -> Tensor:
        sub, residual = halves(x)
        return ops.add_norm(sub, residual, w, _EPS)

    def add_rms_norm(x: Tensor) -> Tensor:
        sub, residual = halves(x)
        return torch.cat(ops.add_rms_norm(sub, residual, w, _EPS), 1)

    def norm_add_norm(x: Tensor) -> Tensor:
        sub, residual = halves(x)
        return torch.cat(ops.norm_add_norm(sub, residual, w, w_next, _EPS), 1)

    yield "linear", lambda x: ops.linear(halves(x)[0], weight, bias)
    yield "linear", lambda x: ops.linear(halves(x)[0], weight[:1])
    yield "rms_norm", lambda x: ops.rms_norm(halves(x)[0], w, _EPS)
    yield "silu_mul", ops.silu_mul
    yield "linear_silu_mul", lambda x: ops.linear_silu_mul(halves(x)[0], pair)
    yield "add_norm", add_norm
    yield "add_rms_norm", add_rms_norm
    yield "norm_add_norm", norm_add_norm


def _check(label: str, function: RowFunction, x: Tensor) -> None:
    together = function(x)
    for count in COUNTS:
        for start in (0, 1, (TOTAL - count) // 3, (TOTAL - count) // 2, TOTAL - count):
            rows = slice(start, start + count)
            if not torch.equal(function(x[rows]), together[rows]):
                raise _not_exact(label, f"{count} rows and {TOTAL}", x)


def _check_attention(plan: Plan, attention: Attention, random: Callable[..., Tensor]) -> None:
    """A prompt of COUNTS[-1] rows in tiles against every position alone."""
    import numpy as np

    track, length = plan.shape.tracks[0], COUNTS[-1]
    q, k, v = (random(length, track.num_kv_heads, track.head_dim) for _ in range(3))
    pages = CHUNK_KEYS // plan.choice.kv_page_size
    pool = random(pages + 1, 1, 2, plan.choice.kv_page_size, *k.shape[1:])

    def run(positions: Tensor, cells: np.ndarray | None) -> Tensor:
        rows = _kv_rows(pool, positions, cells)
        here = (q[positions], k[positions], v[positions])
        return attention(here[0], here[1], here[2], rows, track.head_dim**-0.5)

    everyone = torch.arange(length, device=q.device)
    together = run(everyone, np.array([0, length], np.int64))
    for position in (0, 1, 2, 3, 7, 15, 16, length - 1):
        if not torch.equal(run(everyone[position : position + 1], None)[0], together[position]):
            what = f"a prompt and position {position} alone"
            raise _not_exact(f"attention backend {plan.attention.id}", what, q)


def _kv_rows(pool: Tensor, positions: Tensor, cells: np.ndarray | None) -> KVRows:
    """Rows of one request whose page i is page i + 1 of the pool."""
    page_size, count = pool.shape[3], len(positions)
    tiles = single_tiles(count, pool.device)
    if cells is not None:
        tiles = make_tiles(0, cells, Upload(pool.device).ints)
    pages = torch.arange(1, len(pool), device=pool.device)
    return KVRows(
        pool=pool,
        unit=0,
        write_page=positions.div(page_size, rounding_mode="floor") + 1,
        write_offset=positions % page_size,
        tile_pages=pages.expand(len(tiles.rows), 1, -1),
        tile_rows=tiles.rows,
        row_tile=tiles.row_tile,
        row_lane=tiles.row_lane,
        key_len=torch.nn.functional.pad(positions + 1, (0, 1)),
    )


def _not_exact(label: str, what: str, x: Tensor) -> PluginError:
    kind = f"{str(x.dtype).removeprefix('torch.')} on {x.device.type}"
    reason = f"claims exact, but a row's bits differ between {what} ({kind})"
    return PluginError(label, reason, "Fix: choose another candidate, or allow it with --exact off")
