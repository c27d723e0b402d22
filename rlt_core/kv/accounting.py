"""What KV costs: pages and bytes by arithmetic alone, equal to what is allocated.

A page holds `unit_layers` layers of one plane of one track for `page_size` positions. Tracks with
heads of one shape share pages without waste: the unit is the greatest common divisor of their
layer counts. Otherwise a page is as large as the largest plane, and the padding is reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from rlt_core.contract.errors import CapacityError, OptionError, PluginError
from rlt_core.contract.layouts import LayoutTables
from rlt_core.contract.protocols import KVLayout
from rlt_core.contract.specs import ModelShape, TrackSpec
from rlt_core.kv.layouts import checked_tables
from rlt_core.kv.plan import CHUNK_KEYS, KVPlan, TrackPlaces

Phase = Literal["prompt", "decode"]
# Powers of two; the last one is for attention backends that walk page tables (AttentionSpec).
PAGE_SIZES = tuple(1 << bits for bits in range((2 * CHUNK_KEYS).bit_length()))


def plan_kv(
    shape: ModelShape,
    layout: KVLayout,
    *,
    page_size: int,
    max_depth: int,
    element_bytes: int,
) -> KVPlan:
    """Lay the tracks of `shape` out in one pool. Raises OptionError for a page size that is no
    power of two up to 256 and PluginError for tracks or layout tables that cannot be run."""
    if page_size not in PAGE_SIZES:
        allowed = ", ".join(map(str, PAGE_SIZES))
        raise OptionError(
            "--page-size",
            page_size,
            "a page holds a power of two of positions",
            f"Fix: one of {allowed}",
        )
    if max_depth < 1:
        raise OptionError("--max-depth", max_depth, "a request needs at least one loop")
    _check_tracks(shape.tracks)
    name = type(layout).__name__
    tables = tuple(checked_tables(name, layout, loops) for loops in range(1, max_depth + 1))
    if len({table.missing for table in tables}) > 1:
        raise PluginError(name, "KV layout tables: `missing` must be the same for every depth")
    tracks = _places(shape.tracks, tables)
    return KVPlan(
        tracks=tracks,
        table_rows=sum(track.num_planes * track.parts for track in tracks),
        page_size=page_size,
        page_elements=_page_elements(tracks, page_size),
        element_bytes=element_bytes,
        max_depth=max_depth,
        tables=tables,
    )


def _page_elements(tracks: tuple[TrackPlaces, ...], page_size: int) -> int:
    """The largest track's need, in whole head vectors of every track: attention reads the
    storage vector by vector."""
    most = max(_used_elements(track, page_size) for track in tracks)
    vector = math.lcm(*(track.head_dim for track in tracks))
    return -(-most // vector) * vector


def page_rows(plan: KVPlan, loops: int, phase: Phase) -> tuple[int, ...]:
    """The page-table rows that hold a page for each page of positions, ascending."""
    tables = plan.tables[loops - 1]
    planes = tuple(range(tables.num_planes)) if phase == "prompt" else sorted(tables.kept)
    return tuple(
        track.first + plane * track.parts + part
        for track in plan.tracks
        for plane in (planes if track.per_depth else (0,))
        for part in range(track.parts)
    )


def token_bytes(plan: KVPlan, loops: int, phase: Phase) -> int:
    """Bytes of KV that one position takes (a page_size-th of the pages of its column)."""
    return len(page_rows(plan, loops, phase)) * plan.page_bytes // plan.page_size


def padding_bytes(plan: KVPlan, loops: int, phase: Phase) -> int:
    """Bytes of `token_bytes` that hold nothing, because tracks differ in the shape of a head."""
    rows = set(page_rows(plan, loops, phase))
    return (
        sum(
            (plan.page_elements - _used_elements(track, plan.page_size)) * plan.element_bytes
            for track in plan.tracks
            for row in range(track.first, track.first + track.num_planes * track.parts)
            if row in rows
        )
        // plan.page_size
    )


def request_pages(plan: KVPlan, loops: int, prompt_len: int, total_len: int) -> int:
    """The most pages that a request of `prompt_len` prompt and `total_len` positions ever holds
    at once."""
    prompt = -(-prompt_len // plan.page_size) * len(page_rows(plan, loops, "prompt"))
    whole = -(-total_len // plan.page_size) * len(page_rows(plan, loops, "decode"))
    return max(prompt, whole)


def num_pages_for_budget(plan: KVPlan, budget_bytes: int) -> int:
    """Pages of a pool of at most `budget_bytes`, the sentinel included. Raises CapacityError
    when not even one page of positions at `max_depth` loops fits."""
    num_pages = budget_bytes // plan.page_bytes
    check_num_pages(plan, num_pages, f"{budget_bytes:,} bytes of KV memory hold")
    return num_pages


def check_num_pages(plan: KVPlan, num_pages: int, has: str = "the pool has") -> None:
    """Raise CapacityError unless one page of positions at `max_depth` loops fits."""
    least = 1 + len(page_rows(plan, plan.max_depth, "prompt"))
    if num_pages < least:
        raise CapacityError(
            f"{has} {max(num_pages, 0)} pages of {plan.page_bytes:,} bytes; one request of "
            f"{plan.max_depth} loops needs at least {least} (one is kept free)\n"
            f"Fix: give {least * plan.page_bytes:,} bytes or more, a smaller --page-size or a "
            "smaller --max-depth"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What a pool of `num_pages` holds at `loops` loops; tokens count whole pages.

    prompt_tokens / generated_tokens: positions of prompts in progress, or of generated tokens and
    finished prompts, when the pool held nothing else. Bytes are per token.
    """

    loops: int
    num_pages: int
    page_size: int
    pool_bytes: int
    prompt_tokens: int
    generated_tokens: int
    prompt_bytes: int
    generated_bytes: int
    padding_bytes: int

    def __str__(self) -> str:
        padding = f", {self.padding_bytes:,} of them padding" if self.padding_bytes else ""
        return (
            f"KV pool: {self.num_pages:,} pages of {self.page_size} positions, "
            f"{self.pool_bytes / 2**20:,.1f} MiB; at {self.loops} loops it holds "
            f"{self.prompt_tokens:,} prompt tokens ({self.prompt_bytes:,} bytes each{padding}) or "
            f"{self.generated_tokens:,} generated ones ({self.generated_bytes:,} bytes each)"
        )


def capacity(plan: KVPlan, num_pages: int, loops: int) -> Capacity:
    """The capacity of a pool of `num_pages` pages (the sentinel among them) at `loops` loops."""

    def tokens(phase: Phase) -> int:
        return (num_pages - 1) // len(page_rows(plan, loops, phase)) * plan.page_size

    return Capacity(
        loops=loops,
        num_pages=num_pages,
        page_size=plan.page_size,
        pool_bytes=num_pages * plan.page_bytes,
        prompt_tokens=tokens("prompt"),
        generated_tokens=tokens("decode"),
        prompt_bytes=token_bytes(plan, loops, "prompt"),
        generated_bytes=token_bytes(plan, loops, "decode"),
        padding_bytes=padding_bytes(plan, loops, "prompt"),
    )


def _places(
    tracks: tuple[TrackSpec, ...], tables: tuple[LayoutTables, ...]
) -> tuple[TrackPlaces, ...]:
    alike = len({(track.num_kv_heads, track.head_dim) for track in tracks}) == 1
    unit = math.gcd(*(track.num_layers for track in tracks)) if alike else 0
    most = max(table.num_planes for table in tables)
    places: list[TrackPlaces] = []
    first = 0
    for track in tracks:
        unit_layers = unit or track.num_layers
        place = TrackPlaces(
            name=track.name,
            first=first,
            num_planes=most if track.per_depth else 1,
            parts=track.num_layers // unit_layers,
            unit_layers=unit_layers,
            num_kv_heads=track.num_kv_heads,
            head_dim=track.head_dim,
            num_layers=track.num_layers,
            per_depth=track.per_depth,
        )
        places.append(place)
        first += place.num_planes * place.parts
    return tuple(places)


def _used_elements(track: TrackPlaces, page_size: int) -> int:
    return track.unit_layers * 2 * page_size * track.num_kv_heads * track.head_dim


def _check_tracks(tracks: tuple[TrackSpec, ...]) -> None:
    if not tracks:
        raise PluginError("model", "declares no track that keeps KV")
    names = [track.name for track in tracks]
    if len(set(names)) < len(names):
        raise PluginError("model", f"declares a track twice: {', '.join(names)}")
    for track in tracks:
        if min(track.num_layers, track.num_kv_heads, track.head_dim) < 1:
            raise PluginError("model", f"track '{track.name}' has an empty size: {track}")
