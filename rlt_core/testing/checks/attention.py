"""Checks of an attention backend against plain softmax over the keys that a row may see."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import numpy as np
import torch
from torch import Tensor

from rlt_core.contract.capabilities import Word
from rlt_core.contract.protocols import KVRows
from rlt_core.contract.specs import AttentionSpec
from rlt_core.kv.plan import CHUNK_KEYS
from rlt_core.runtime.tiles import make_tiles, single_tiles
from rlt_core.runtime.upload import Upload
from rlt_core.testing.checks.attention_scene import LENGTH, UNIT, Scene, make_scene
from rlt_core.testing.checks.check import check, expect
from rlt_core.testing.checks.operators import device_of, no_device
from rlt_core.testing.checks.plugin import check_factories_load
from rlt_core.testing.checks.subjects import PartSubject

_SIZES, _PAGES = (16, 64), (16, 128)
_HEADS = ((4, 4), (6, 2))  # query heads, KV heads
_TOLERANCE = 1e-4


class AttentionSubject(PartSubject[AttentionSpec]):
    """An attention backend."""

    kind = "attention"

    @property
    def cannot(self) -> str:
        """Float32 on a device that is here is what the checks compare."""
        if "float32" not in self.spec.dtypes:
            return f"it computes in {', '.join(self.spec.dtypes)}, and the reference in float32"
        return no_device(self.spec.devices)


@check("attention", after=(check_factories_load,))
def check_attention_reference(attention: AttentionSubject) -> None:
    """Prompt tiles and single rows give plain softmax attention to 1e-4, across two chunks.

    If this fails: keys count from absolute position 0, key_len says how many a row sees, heads
    are grouped (query head h reads KV head h // (H / G)), free memory may hold NaN.
    """
    for scene in _scenes(attention):
        everyone = torch.arange(LENGTH, device=scene.q.device)
        plane = torch.zeros_like(everyone)
        cells = make_tiles(0, np.array([0, LENGTH]), Upload(scene.q.device).ints)
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
        where = (rows.write_page, UNIT, slice(None), rows.write_offset)
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
        everyone = torch.arange(LENGTH, device=scene.q.device)
        plane = torch.zeros_like(everyone)
        cells = make_tiles(0, np.array([0, LENGTH]), Upload(everyone.device).ints)
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
        yield make_scene(heads, groups, size, page_size, device_of(attention.spec.devices))
