"""Checks of an attention backend against plain softmax over the keys that a row may see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlt_core.contract.capabilities import Word
from rlt_core.contract.protocols import KVRows
from rlt_core.contract.specs import AttentionSpec
from rlt_core.kv.plan import CHUNK_KEYS
from rlt_core.runtime.tiles import Tiles, make_tiles, single_tiles
from rlt_core.runtime.upload import Upload
from rlt_core.testing.checks.check import check, expect
from rlt_core.testing.checks.operators import device_of, no_device
from rlt_core.testing.checks.plugin import check_factories_load
from rlt_core.testing.checks.subjects import SEED, PartSubject

_LENGTH = 150  # two chunks of keys
_SIZES, _PAGES = (16, 64), (16, 128)
_HEADS = ((4, 4), (6, 2))  # query heads, KV heads
_TOLERANCE = 1e-4
_UNIT = 1  # the layer inside the page; unit 0 must stay as it is


class AttentionSubject(PartSubject[AttentionSpec]):
    """An attention backend."""

    kind = "attention"

    @property
    def cannot(self) -> str:
        """Float32 on a device that is here is what the checks compare."""
        if "float32" not in self.spec.dtypes:
            return f"it computes in {', '.join(self.spec.dtypes)}, and the reference in float32"
        return no_device(self.spec.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One request of 150 positions in two planes of a pool whose free pages hold NaN.

    keys [planes, 2, n, G, d]: what lies in the pool; own [2, n, G, d]: what the rows bring.
    """

    pool: Tensor
    pages: Tensor  # [planes, chunks, pages a chunk]
    keys: Tensor
    own: Tensor
    q: Tensor

    @property
    def page_size(self) -> int:
        return self.pool.shape[3]

    def rows(self, at: Tensor, plane: Tensor, tiles: Tiles, **fields: Any) -> KVRows:
        """Rows at positions `at` in their planes [R]."""
        chunks = self.pages.shape[1]
        per_plane = self.pages.flatten(1)
        return KVRows(
            pool=self.pool,
            unit=_UNIT,
            write_page=per_plane[plane, at // self.page_size],
            write_offset=at % self.page_size,
            tile_pages=per_plane[plane[tiles.first]].view(len(tiles.first), chunks, -1),
            tile_rows=tiles.rows,
            row_tile=tiles.row_tile,
            row_lane=tiles.row_lane,
            key_len=torch.nn.functional.pad(at + 1, (0, 1)),
            **fields,
        )

    def reference(self, at: Tensor, plane: Tensor, *, whole: bool, hidden: Any = None) -> Tensor:
        """Plain softmax in float64. `whole`: every earlier position holds the rows' own values."""
        found = []
        for position, p in zip(at.tolist(), plane.tolist(), strict=True):
            k, v = (self.own if whole else self.keys[p])[:, : position + 1].double().clone()
            k[position], v[position] = self.own[:, position].double()
            q = self.q[position].double().unflatten(0, (k.shape[1], -1))
            scores = torch.einsum("ghd,ngd->ghn", q, k) * q.shape[-1] ** -0.5
            if hidden is not None:
                scores = scores.masked_fill(hidden[: position + 1], -torch.inf)
            mixed = torch.einsum("ghn,ngd->ghd", scores.softmax(-1), v)
            found.append(mixed.flatten(0, 1))
        return torch.stack(found).float()


@check("attention", after=(check_factories_load,))
def check_attention_reference(attention: AttentionSubject) -> None:
    """Prompt tiles and single rows give plain softmax attention to 1e-4, across two chunks.

    If this fails: keys count from absolute position 0, key_len says how many a row sees, heads
    are grouped (query head h reads KV head h // (H / G)), free memory may hold NaN.
    """
    for scene in _scenes(attention):
        everyone = torch.arange(_LENGTH, device=scene.q.device)
        plane = torch.zeros_like(everyone)
        cells = make_tiles(0, np.array([0, _LENGTH]), Upload(scene.q.device).ints)
        got = _attend(attention, scene, everyone, scene.rows(everyone, plane, cells))
        _expect_close(got, scene.reference(everyone, plane, whole=True), "a prompt of 150")
    for scene in _scenes(attention):
        at = torch.tensor([0, 5, 127, 128, 149], device=scene.q.device)
        untouched = scene.pool.clone()
        for one in at.split(1):
            scene = replace(scene, pool=untouched.clone())
            plane = torch.zeros_like(one)
            rows = scene.rows(one, plane, single_tiles(1, one.device))
            got = _attend(attention, scene, one, rows)
            right = scene.reference(one, plane, whole=False)
            _expect_close(got, right, f"one row at position {int(one)}")


@check("attention", after=(check_attention_reference,))
def check_attention_writes(attention: AttentionSubject) -> None:
    """A row writes its k and v at its page, offset and layer, and nothing else.

    If this fails: write_page and write_offset say where, `unit` which layer of the page; rows on
    page 0 write nothing that anybody reads.
    """
    for scene in _scenes(attention):
        at = torch.tensor([3, 140], device=scene.q.device)
        plane = torch.zeros_like(at)
        rows = scene.rows(at, plane, single_tiles(2, at.device))
        wanted = scene.pool.clone()
        where = (rows.write_page, _UNIT, slice(None), rows.write_offset)
        wanted[where] = scene.own[:, at].transpose(0, 1)
        _attend(attention, scene, at, rows)
        same = torch.equal(scene.pool[1:].nan_to_num(7), wanted[1:].nan_to_num(7))
        expect(same, "k and v of two rows in their places, all else as it was", "another pool")


@check("attention", word=Word.EXACT, after=(check_attention_reference,))
def check_attention_exact(attention: AttentionSubject) -> None:
    """A row has the same bits in a prompt's tiles, in another chunk and alone.

    If this fails: one order of keys for every shape: chunks of 128 from position 0, merged
    ascending; docs/architecture.md (Exactness) says more.
    """
    for scene in _scenes(attention):
        everyone = torch.arange(_LENGTH, device=scene.q.device)
        plane = torch.zeros_like(everyone)
        cells = make_tiles(0, np.array([0, _LENGTH]), Upload(everyone.device).ints)
        whole = _attend(attention, scene, everyone, scene.rows(everyone, plane, cells))
        for at in (everyone[20:77], everyone[149:]):
            alike = make_tiles(0, np.array([0, len(at)]), Upload(at.device).ints)
            for tiles in (alike, single_tiles(len(at), at.device)):
                got = _attend(attention, scene, at, scene.rows(at, plane[at], tiles))
                differ = int((got != whole[at]).flatten(1).any(1).sum())
                told = f"{differ} of {len(at)} rows differ"
                expect(not differ, f"the bits of {len(at)} rows in any launch", told)


@check("attention", word=Word.SPLIT_PLANES, after=(check_attention_reference,))
def check_attention_planes(attention: AttentionSubject) -> None:
    """Rows of one launch read different planes, each its own.

    If this fails: tile_pages gives the pages of every tile; two tiles may lie in two planes.
    """
    for scene in _scenes(attention):
        at = torch.tensor([140, 141], device=scene.q.device)
        plane = torch.tensor([0, 1], device=at.device)
        rows = scene.rows(at, plane, single_tiles(len(at), at.device))
        got = _attend(attention, scene, at, rows)
        # They lie in different planes, so neither sees what the other writes.
        _expect_close(got, scene.reference(at, plane, whole=False), "two rows in two planes")


@check("attention", word=Word.STORE_FALSE, after=(check_attention_reference,))
def check_attention_without_store(attention: AttentionSubject) -> None:
    """Without store a row sees its own k and v, and no bit of the pool changes.

    If this fails: lay k and v over the row's own position instead of writing them.
    """
    for scene in _scenes(attention):
        at = torch.tensor([0, 64, 130, 149], device=scene.q.device)
        plane = torch.tensor([0, 1, 0, 1], device=at.device)
        rows = scene.rows(at, plane, single_tiles(len(at), at.device), store=False)
        kept = scene.pool.clone()
        got = _attend(attention, scene, at, rows)
        same = torch.equal(scene.pool.nan_to_num(7), kept.nan_to_num(7))
        expect(same, "the pool's bits to stay", "some changed")
        _expect_close(got, scene.reference(at, plane, whole=False), "four rows without store")


@check("attention", word=Word.HIDDEN_KEYS, after=(check_attention_reference,))
def check_attention_hidden(attention: AttentionSubject) -> None:
    """Keys that are hidden weigh nothing, whatever lies there.

    If this fails: KVRows.hidden [tiles, chunks, 128] marks keys that count as absent; memory
    there may hold NaN.
    """
    for scene in _scenes(attention):
        at = torch.tensor([149], device=scene.q.device)
        plane = torch.zeros_like(at)
        chunks = scene.pages.shape[1]
        hidden = torch.zeros(chunks * CHUNK_KEYS, dtype=torch.bool, device=at.device)
        hidden[torch.tensor([2, 50, 129])] = True
        rows = scene.rows(at, plane, single_tiles(1, at.device))
        rows = replace(rows, hidden=hidden.view(1, chunks, CHUNK_KEYS))
        got = _attend(attention, scene, at, rows)
        right = scene.reference(at, plane, whole=False, hidden=hidden)
        _expect_close(got, right, "a row with three keys hidden")


def _attend(attention: AttentionSubject, scene: Scene, at: Tensor, rows: KVRows) -> Tensor:
    q, (k, v) = scene.q[at], scene.own[:, at]
    got = attention.make()(q, k, v, rows, q.shape[-1] ** -0.5)
    fits = isinstance(got, Tensor) and got.shape == q.shape and got.dtype == q.dtype
    told = f"{list(got.shape)} {got.dtype}" if isinstance(got, Tensor) else type(got).__name__
    expect(fits, f"{list(q.shape)} {q.dtype} from attention", told)
    result: Tensor = got
    return result


def _expect_close(got: Tensor, right: Tensor, what: str) -> None:
    apart = float((got - right).abs().nan_to_num(torch.inf).max())
    expect(apart <= _TOLERANCE, f"{what}: plain attention to {_TOLERANCE:g}", f"{apart:.1e} apart")


def _scenes(attention: AttentionSubject) -> Iterator[Scene]:
    """Head counts, head sizes and page sizes that the spec allows."""
    sizes = attention.spec.head_dims[:2] or _SIZES
    pages = attention.spec.page_sizes[:2] or _PAGES
    for (heads, groups), size, page_size in product(_HEADS, sizes, pages):
        yield _scene(heads, groups, size, page_size, device_of(attention.spec.devices))


def _scene(heads: int, groups: int, size: int, page_size: int, device: str) -> Scene:
    draw = torch.Generator().manual_seed(SEED)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(device)

    per_chunk, chunks, planes = CHUNK_KEYS // page_size, -(-_LENGTH // CHUNK_KEYS), 2
    used = -(-_LENGTH // page_size)
    count = planes * used
    pool = torch.full((1 + count, 2, 2, page_size, groups, size), torch.nan, device=device)
    pool[0] = 0.0
    pages = torch.zeros((planes, chunks * per_chunk), dtype=torch.int64, device=device)
    order = torch.randperm(count, generator=draw).to(device) + 1
    pages[:, :used] = order.view(planes, used)
    keys, at = random(planes, 2, _LENGTH, groups, size), torch.arange(_LENGTH, device=device)
    for plane in range(planes):
        where = (pages[plane, at // page_size], _UNIT, slice(None), at % page_size)
        pool[where] = keys[plane].transpose(0, 1)
    return Scene(
        pool=pool,
        pages=pages.view(planes, chunks, per_chunk),
        keys=keys,
        own=random(2, _LENGTH, groups, size),
        q=random(_LENGTH, heads, size),
    )
