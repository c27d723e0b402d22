"""Bytes by arithmetic equal the bytes allocated, for every shape of model."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rlt_core.contract.errors import CapacityError, OptionError, PluginError
from rlt_core.contract.specs import ModelShape, TrackSpec
from rlt_core.kv.accounting import (
    PAGE_SIZES,
    capacity,
    num_pages_for_budget,
    padding_bytes,
    page_rows,
    plan_kv,
    request_pages,
    token_bytes,
)
from rlt_core.kv.layouts import LastExited, LastStep, Shared
from rlt_core.kv.pages import HostPages
from rlt_core.kv.plan import KVPlan
from rlt_core.kv.pool import DevicePool

HEADS, SIZE = 2, 4


def track(name: str, layers: int, per_depth: bool, heads: int = HEADS) -> TrackSpec:
    """A track with heads of size SIZE."""
    return TrackSpec(
        name=name, num_layers=layers, num_kv_heads=heads, head_dim=SIZE, per_depth=per_depth
    )


def shape_of(*tracks: TrackSpec, loops: int = 4) -> ModelShape:
    """A model shape of which only tracks and loops matter here."""
    return ModelShape(
        loops=loops,
        max_loops=loops,
        vocab_size=8,
        state_width=4,
        max_positions=4096,
        dtype="float32",
        tracks=tracks,
        eos_token_ids=(),
        config=None,
    )


def huginn(loops: int) -> ModelShape:
    """2 + 4r + 2 layers."""
    return shape_of(
        track("prelude", 2, False), track("core", 4, True), track("coda", 2, False), loops=loops
    )


CASES = [
    (shape_of(track("core", 3, True), loops=2), 3 * 2),
    (shape_of(track("core", 24, True)), 24 * 4),
    (shape_of(track("core", 48, True)), 48 * 4),
    (shape_of(track("core", 22, True), loops=2), 22 * 2),
    (huginn(1), 4 + 4),
    (huginn(8), 4 + 32),
    (huginn(32), 4 + 128),
]


@pytest.mark.parametrize(("shape", "layer_planes"), CASES)
@pytest.mark.parametrize("page_size", [1, 16])
def test_estimate_equals_allocation(shape: ModelShape, layer_planes: int, page_size: int) -> None:
    """A28, A1: estimators counted layers and forgot loops, or counted boundary layers per loop."""
    plan = plan_kv(shape, LastExited(), page_size=page_size, max_depth=shape.loops, element_bytes=2)
    per_token = layer_planes * 2 * HEADS * SIZE * 2
    assert token_bytes(plan, shape.loops, "prompt") == per_token
    assert token_bytes(plan, shape.loops, "decode") == per_token
    assert padding_bytes(plan, shape.loops, "prompt") == 0

    positions = 2 * page_size
    num_pages = 1 + request_pages(plan, shape.loops, positions, positions)
    pool = DevicePool(plan, num_pages, "cpu", torch.bfloat16)
    assert pool.storage.nbytes == num_pages * plan.page_bytes
    pages = HostPages(plan, num_slots=1, pages_per_row=2, num_pages=num_pages)
    slot = np.zeros(1, np.int64)
    pages.admit(0, shape.loops)
    pages.grow(slot, slot + positions)
    assert pages.num_free == 0
    used = int((pages.table[0] != 0).sum())
    assert used * plan.page_bytes == positions * per_token
    # The views together reach every byte of the pages and none twice.
    for name in [part.name for part in shape.tracks]:
        assert pool.view(name).data_ptr() == pool.storage.data_ptr()


@pytest.mark.parametrize(
    ("layout", "prompt_planes", "decode_planes"),
    [(LastExited(), 4, 4), (Shared(), 1, 1), (LastStep(), 4, 1)],
)
def test_layouts_cost_what_they_keep(
    layout: LastExited | Shared | LastStep, prompt_planes: int, decode_planes: int
) -> None:
    """A1, A28: a layout whose saving is announced but not given to admission."""
    plan = plan_kv(
        shape_of(track("core", 6, True)), layout, page_size=4, max_depth=4, element_bytes=4
    )
    plane = 6 * 2 * HEADS * SIZE * 4
    assert token_bytes(plan, 4, "prompt") == prompt_planes * plane
    assert token_bytes(plan, 4, "decode") == decode_planes * plane
    report = capacity(plan, 1 + 12, 4)
    assert report.prompt_tokens == 12 // prompt_planes * 4
    assert report.generated_tokens == 12 // decode_planes * 4
    assert f"{report.prompt_tokens} prompt tokens" in str(report)
    assert f"{report.generated_tokens} generated ones" in str(report)
    assert report.pool_bytes == 13 * plan.page_bytes


def test_last_step_keeps_the_plane_of_the_request() -> None:
    """A request with fewer loops than max_depth decodes on its own last plane, not the deepest."""
    plan = plan_kv(huginn(8), LastStep(), page_size=4, max_depth=8, element_bytes=4)
    core = plan.tracks[1]
    assert (core.first, core.parts, core.unit_layers) == (1, 2, 2)
    assert page_rows(plan, 3, "decode") == (0, core.first + 4, core.first + 5, core.first + 16)
    assert page_rows(plan, 3, "prompt") == (0, *range(1, 7), 17)


def test_uneven_heads_report_their_padding() -> None:
    """Bytes that hold nothing must be counted: they are allocated."""
    shape = shape_of(track("wide", 2, True, heads=3), track("slim", 4, False, heads=1), loops=2)
    plan = plan_kv(shape, LastExited(), page_size=8, max_depth=2, element_bytes=4)
    wide, slim = 2 * 2 * 3 * SIZE * 4, 4 * 2 * 1 * SIZE * 4
    assert plan.page_bytes == 8 * max(wide, slim)
    assert token_bytes(plan, 2, "prompt") == 3 * wide
    assert padding_bytes(plan, 2, "prompt") == wide - slim
    assert f"{wide - slim} of them padding" in str(capacity(plan, 10, 2))


def test_most_pages_of_a_request() -> None:
    """A74: planes counted once; a prompt in progress counts D planes, a finished one what it
    keeps."""
    step = plan_kv(
        shape_of(track("core", 1, True)), LastStep(), page_size=4, max_depth=4, element_bytes=4
    )
    assert request_pages(step, 4, 5, 9) == 2 * 4
    assert request_pages(step, 4, 5, 100) == 25
    assert request_pages(step, 2, 5, 9) == 2 * 2


@pytest.mark.parametrize("page_size", [0, 3, 48, 512, -16])
def test_odd_page_sizes_are_refused(page_size: int) -> None:
    """A page that neither divides the 128 keys of a chunk nor holds whole ones straddles two."""
    with pytest.raises(OptionError) as error:
        plan_kv(
            shape_of(track("core", 1, True)),
            LastExited(),
            page_size=page_size,
            max_depth=4,
            element_bytes=4,
        )
    assert (error.value.option, error.value.value) == ("--page-size", page_size)
    assert "1, 2, 4, 8, 16, 32, 64, 128" in str(error.value)
    assert PAGE_SIZES == (1, 2, 4, 8, 16, 32, 64, 128, 256)


def _small_plan() -> KVPlan:
    return plan_kv(
        shape_of(track("core", 1, True)), LastExited(), page_size=4, max_depth=4, element_bytes=4
    )


def test_budget() -> None:
    """A74: the sentinel is a page too; a budget that holds no request must end at start."""
    plan = _small_plan()
    assert num_pages_for_budget(plan, 10 * plan.page_bytes + 1) == 10
    assert num_pages_for_budget(plan, 5 * plan.page_bytes) == 5
    with pytest.raises(CapacityError) as error:
        num_pages_for_budget(plan, 5 * plan.page_bytes - 1)
    assert "4 pages" in str(error.value)
    assert "at least 5" in str(error.value)


@pytest.mark.parametrize(
    "tracks",
    [(), (track("core", 0, True),), (track("core", 1, True), track("core", 1, False))],
)
def test_impossible_tracks(tracks: tuple[TrackSpec, ...]) -> None:
    """A plugin's empty or doubled track must not become a division by zero."""
    with pytest.raises(PluginError):
        plan_kv(shape_of(*tracks), LastExited(), page_size=4, max_depth=4, element_bytes=4)
