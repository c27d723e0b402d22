"""The tests of the prefix cache and the swap space see the faults that they are for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlt_core.kv.pages import HostPages
from rlt_core.kv.prefix import Block, PrefixCache, chain_keys
from rlt_core.kv.shared_columns import SharedColumns
from rlt_core.schedule import prefix
from rlt_core.schedule.prefix import Prefixes
from rlt_core.schedule.record import Record
from rlt_core.schedule.slot_table import SlotTable
from rlt_core.schedule.swapping import Swapping
from tests.host_runs import HostRun, alone
from tests.recording import FAULT
from tests.test_prefix_cache import ask, request, tokens
from tests.test_prefix_cache import (
    test_mixed_hits_and_misses_in_one_tick as evictions,
)
from tests.test_prefix_cache import (
    test_turns_of_a_conversation as turns,
)
from tests.test_prefix_cache import (
    test_what_changes_the_kv_is_in_the_key as keys,
)
from tests.test_swap import test_a_swapped_request_goes_on_where_it_was as swapped

Patch = pytest.MonkeyPatch
LAYOUT: dict[str, Any] = {"layout": "last_exited"}


def stale_block(patch: Patch) -> None:
    """A block that gave its pages away can still be found."""
    right, found, gone = PrefixCache._forget, PrefixCache.get, dict[bytes, Block]()

    def forget(self: PrefixCache, block: Block) -> Any:
        gone[block.key] = block
        return right(self, block)

    def get(self: PrefixCache, key: bytes) -> Block | None:
        if key in gone:
            gone[key].users = 1  # it is not idle any more
        return found(self, key) or gone.get(key)

    patch.setattr(PrefixCache, "_forget", forget)
    patch.setattr(PrefixCache, "get", get)
    patch.setattr(SharedColumns, "check", lambda self: None)
    patch.setattr(HostPages, "check", lambda self: None)


def crumbs() -> None:
    """Siblings whose prompt runs in chunks that end inside of pages."""
    run = HostRun(num_slots=4, num_places=3, chunk_size=3)
    asked = [request(i, tokens(18), 6, seed=i) for i in range(4)]
    assert ask(run, *asked) == [alone(r, prefix_cache=False) for r in asked]


def published_too_early(patch: Patch) -> None:
    """A page is published before its last position is written."""
    right = Prefixes.prompt_done

    def prompt_done(self: Prefixes, record: Record, forced: Any, end: int) -> list[bytes]:
        return right(self, record, forced, -(-end // self._size) * self._size)

    patch.setattr(Prefixes, "prompt_done", prompt_done)


def key_without_depths(patch: Patch) -> None:
    """A page of early exits is found as if all its tokens had run to full depth."""
    right = chain_keys
    patch.setattr(
        prefix, "chain_keys", lambda root, ids, at, *sizes: right(root, ids, None, *sizes)
    )
    whole = Prefixes._output_depths
    patch.setattr(
        Prefixes,
        "_output_depths",
        lambda self, request, depths: np.full_like(whole(self, request, depths), request.loops),
    )
    patch.setattr(SlotTable, "left_early", lambda *args: False)


def key_of_bytes(patch: Patch) -> None:
    """Token ids are cut to seven bits in the key (A81)."""
    right = chain_keys
    patch.setattr(
        prefix, "chain_keys", lambda root, ids, *rest: right(root, ids % (97 // 2), *rest)
    )


def key_without_options(patch: Patch) -> None:
    """Loops and state seed are left out of the key."""
    patch.setattr(Prefixes, "_root", lambda self, request: b"root")


def shared_page_written(patch: Patch) -> None:
    """The last position of a prompt of whole pages is computed in a shared page."""
    right = Prefixes.find

    def find(self: Prefixes, record: Record, forced: Any) -> Any:
        chain = right(self, record, forced)
        record.next_start = 0
        return chain

    from rlt_core.schedule.sharing import Sharing

    placed = Sharing.placed

    def begin_before(self: Sharing, record: Record, forced: Any, *, first: bool) -> None:
        record.next_start = max(record.next_start - self._pages.plan.page_size, 0)
        placed(self, record, forced, first=first)

    patch.setattr(Prefixes, "find", find)
    patch.setattr(Sharing, "placed", begin_before)


def swapped_page_left_out(patch: Patch) -> None:
    """The page that outputs in flight filled is not sent to the host."""
    right = Swapping.__init__

    def init(self: Swapping, *args: Any, **more: Any) -> None:
        right(self, *args, **more)
        self._ahead = -8

    patch.setattr(Swapping, "__init__", init)


def test_chunks_that_end_inside_of_pages() -> None:
    """The control: without a fault nothing is seen."""
    crumbs()


FAULTS: tuple[tuple[Callable[[Patch], None], Callable[[], None]], ...] = (
    (stale_block, evictions),
    (published_too_early, crumbs),
    (key_without_depths, lambda: turns(LAYOUT)),
    (key_of_bytes, lambda: keys(LAYOUT)),
    (key_without_options, lambda: keys(LAYOUT)),
    (shared_page_written, crumbs),
    (swapped_page_left_out, lambda: swapped(LAYOUT, 3, prefix_cache=False)),
)


@pytest.mark.parametrize(("fault", "check"), FAULTS, ids=lambda part: part.__name__)
def test_a_planted_fault_is_seen(
    fault: Callable[[Patch], None],
    check: Callable[[], None],
    record_property: Callable[[str, object], None],
) -> None:
    """A test that passes with the fault in place guards nothing; without it each passes, which
    its own file sees to."""
    with pytest.MonkeyPatch.context() as patch:
        fault(patch)
        with pytest.raises((AssertionError, KeyError, IndexError, ValueError)) as seen:
            check()
    told = str(seen.value).splitlines()[0] if str(seen.value) else type(seen.value).__name__
    record_property(FAULT, {"fault": fault.__name__, "seen as": told[:60]})
    print(told)
