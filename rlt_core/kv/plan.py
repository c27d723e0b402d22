"""Where the KV of a model's tracks lies in one pool of equal pages."""

from __future__ import annotations

from dataclasses import dataclass

from rlt_core.contract.layouts import LayoutTables

SENTINEL_PAGE = 0  # never handed out; rows that must not write, write here
CHUNK_KEYS = 128  # keys of one attention chunk; a page lies in one, or holds whole ones


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackPlaces:
    """Where one track lives in a page-table: plane p, part q is row `first + p * parts + q`.

    A page holds `unit_layers` layers of one plane; a track of more layers has several parts.
    """

    name: str
    first: int
    num_planes: int
    parts: int
    unit_layers: int
    num_kv_heads: int
    head_dim: int
    num_layers: int
    per_depth: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class KVPlan:
    """How a model's tracks lie in one pool of equal pages (kv.accounting makes it).

    page_elements: elements of a page; table_rows: rows of a request's page table; the byte
    counts are what is allocated, and nothing else is.
    """

    tracks: tuple[TrackPlaces, ...]
    table_rows: int
    page_size: int
    page_elements: int
    element_bytes: int
    max_depth: int
    tables: tuple[LayoutTables, ...]  # index D - 1, D = 1 .. max_depth

    @property
    def hides(self) -> bool:
        """Whether exits leave keys that deeper readers must not see (LayoutTables.missing)."""
        return any(table.missing == "hidden" for table in self.tables)

    @property
    def page_bytes(self) -> int:
        """Bytes of one page."""
        return self.page_elements * self.element_bytes
