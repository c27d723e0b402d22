"""A launch of an attention backend over a pool of its own, for requests of one length."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from rlt_core.bench.operator_calls import Call
from rlt_core.contract.protocols import Attention, KVRows, PagedAttention, PagedRows
from rlt_core.kv.plan import CHUNK_KEYS
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.rope import RopeTable
from rlt_core.runtime.tiles import TILE, make_tiles, single_tiles
from rlt_core.runtime.upload import Upload


def attention_launch(
    backend: Attention,
    call: Call,
    plan: Plan,
    *,
    requests: int,
    keys: int,
    prompt: bool,
    layers: int,
) -> Callable[[int], object]:
    """A function of the launch's number, which chooses the layer: as many layers lie in the pool.

    Each request has `keys` positions; its row is the last one, or with `prompt` (and one request)
    every one. Backends that walk pages themselves also turn queries and keys.
    """
    device, dtype = torch.device(plan.device), getattr(torch, plan.dtype)
    pages = _pages(requests, keys, plan.choice.kv_page_size, device)
    num_rows = keys if prompt else requests
    q, k, v = (_random(num_rows, *shape, dtype=dtype, device=device) for shape in call.rows)
    pool = _random(
        int(pages.max()) + 1, layers, 2, plan.choice.kv_page_size, *k.shape[1:],
        dtype=dtype, device=device,
    )  # fmt: skip
    position = torch.arange(keys, device=device) if prompt else _full(requests, keys - 1, device)
    page_row = torch.zeros_like(position) if prompt else torch.arange(requests, device=device)
    scale = q.shape[2] ** -0.5
    lanes = getattr(backend, "tile_rows", TILE)
    tiles = single_tiles(num_rows, device, lanes)
    if prompt:
        tiles = make_tiles(0, np.array([0, keys], np.int64), Upload(device).ints, lanes)
    key_len = torch.nn.functional.pad(position + 1, (0, 1))
    if hasattr(backend, "paged"):
        paged = cast(PagedAttention, backend)
        rows = PagedRows(
            pool=pool,
            unit=0,
            pages=pages.flatten(1).int(),
            page_row=page_row,
            key_len=key_len,
            num_single=0 if prompt else num_rows,
            tile_first=tiles.first if prompt else tiles.first[:0],
            tile_len=tiles.length if prompt else tiles.length[:0],
            tile_rows=lanes,
        )
        turn = None
        if call.rope is not None:
            turn = RopeTable.build(call.rope, keys, device, dtype).turn
        each = [replace(rows, unit=layer) for layer in range(layers)]
        return lambda i: paged.paged(q, k, v, each[i % layers], scale, turn)
    page, offset = position // plan.choice.kv_page_size, position % plan.choice.kv_page_size
    kv_rows = KVRows(
        pool=pool,
        unit=0,
        write_page=pages.flatten(1)[page_row, page],
        write_offset=offset,
        tile_pages=pages[page_row[tiles.first]],
        tile_rows=tiles.rows,
        row_tile=tiles.row_tile,
        row_lane=tiles.row_lane,
        key_len=key_len,
    )
    layer_rows = [replace(kv_rows, unit=layer) for layer in range(layers)]
    return lambda i: backend(q, k, v, layer_rows[i % layers], scale)


def _pages(requests: int, keys: int, page_size: int, device: torch.device) -> Tensor:
    """int64 [requests, chunks, pages of a chunk], shuffled; page 0 belongs to nobody."""
    chunks = -(-keys // max(CHUNK_KEYS, page_size))
    each = max(1, CHUNK_KEYS // page_size)
    draw = torch.Generator().manual_seed(0)
    order = torch.randperm(requests * chunks * each, generator=draw) + 1
    return order.view(requests, chunks, each).to(device)


def _random(*shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.randn(shape, device=device, dtype=dtype)


def _full(count: int, value: int, device: torch.device) -> Tensor:
    return torch.full((count,), value, dtype=torch.int64, device=device)
