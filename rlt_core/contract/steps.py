"""The device's bookkeeping for ticks of decode rows, as one set of fused steps.

Such ticks are what a stage runs most of the time, and their bookkeeping is some two hundred small
tensor operations; a plugin may give the same in a few launches (OpSpec with op="steps"). What each
step does is what runtime.tick does in torch, to the bit, for R decode rows; a set that has
mixed_steps.MixedSteps too serves captured ticks with prompt rows beside them.

Phases of a slot: 0 empty, 1 prompt, 2 ready (its token waits to enter), 3 running, 4 leaving (its
loops are done), 5 done. The last slot is the sentinel: padding reads it, and no step changes it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotArrays:
    """A stage's arrays by slot, changed in place: int64 [S + 1] where nothing else is said.

    tables int32 [S + 1, table rows, W]; read_depth int64 [homes], a slot's own home being its
    number; key_depth int64 [S + 1, positions] or None; stop_ids int64 [S + 1, 16], -1 unused.
    use_policy bool, temperature float32 [S + 1].
    write int64 [2, D + 1, D + 1]: the plane of (rule, loops, depth); fill bool
    [2, D + 1, D + 1, planes]: the planes that an exit fills. Generated positions have rule 1.
    """

    phase: Tensor
    token: Tensor
    position: Tensor
    depth: Tensor
    num_out: Tensor
    left_at: Tensor
    page_limit: Tensor
    read_depth: Tensor
    loops: Tensor
    min_loops: Tensor
    max_loops: Tensor
    max_tokens: Tensor
    max_position: Tensor
    use_policy: Tensor
    stop_ids: Tensor
    seed: Tensor
    temperature: Tensor
    tables: Tensor
    key_depth: Tensor | None
    write: Tensor
    fill: Tensor
    max_depth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRows:
    """The rows of a tick: int64 [R], live and enters bool [R].

    home is where a row keeps its state. depth counts the loop of this tick (1 for rows that stand
    still); plane is what it writes and reads; key_len int64 [R + 1] is position + 1 for live rows
    and 0 for others and the last entry. page_row: the row's page table among all tables of the
    stage, for part 0 of the track that `enter` was told.
    parked: how many rows waited for a page, int64 of no dimension or of one entry. rule int64 [R]:
    0 prompt positions, 1 generated ones; None: all of them generated.
    """

    home: Tensor
    slot: Tensor
    position: Tensor
    token: Tensor
    depth: Tensor
    plane: Tensor
    live: Tensor
    enters: Tensor
    key_len: Tensor
    page_row: Tensor
    parked: Tensor
    rule: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingRows:
    """Rows at the coda and head: slot (the sentinel for an empty place), home, position, depth
    int64 [L], live bool [L]; count int32 [1]: no row from there on is live."""

    home: Tensor
    slot: Tensor
    position: Tensor
    depth: Tensor
    live: Tensor
    count: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What sampling gave for L rows: token, rank int64, logprob float32, bad bool."""

    token: Tensor
    logprob: Tensor
    rank: Tensor
    bad: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class FilledTrack:
    """A per-depth track for `fill`: pool [pages, unit_layers, 2, page_size, G, d]; plane p, part q
    is row first + p * parts + q of a page table."""

    pool: Tensor
    first: int
    parts: int
    num_planes: int


class FillPlanes(Protocol):
    """What ticks with prompt rows take for exits (OpSpec with op="fill"), for one track."""

    def __call__(
        self,
        track: FilledTrack,
        tables: Tensor,
        slot: Tensor,
        position: Tensor,
        source: Tensor,
        targets: Tensor,
    ) -> None:
        """Copy the k and v of each row's position from plane `source` to its `targets`, in all
        layers: tables int32 [S + 1, table rows, W]; slot, position, source int64 [R]; targets
        bool [R, planes]. Rows without targets may hold any position and source."""
        ...


class RandomBits(Protocol):
    """What LoopContext.random_bits draws with (OpSpec with op="random_bits")."""

    def __call__(self, seed: Tensor, position: Tensor, purpose: int, count: int) -> Tensor:
        """int64 [R, count] holding uint32, for keys seed and counters position int64 [R]: number t
        is word t % 4 of Philox-4x32-10 of (position, purpose, t // 4, 0)."""
        ...


class RowSteps(Protocol):
    """What ticks of every kind do with their rows."""

    def apply(self, slots: SlotArrays, limits: Tensor, at: Tensor, page: Tensor) -> None:
        """What the host changed: page_limit of all slots but the sentinel becomes limits int64 [S],
        and entries `at` int64 [N] of the flat tables become page int64 [N]."""
        ...

    def mix(self, entering: Tensor, kept: Tensor, rows: RunningRows) -> Tensor:
        """[R, W]: `entering` [R, W] for rows that enter, else their state in `kept` [homes, W]."""
        ...

    def keep(self, kept: Tensor, rows: RunningRows, state: Tensor, where: Tensor) -> None:
        """Write state [R, W] to the rows' homes in `kept` where `where` bool [R]."""
        ...

    def fill_planes(
        self, slots: SlotArrays, rows: RunningRows, decided: Tensor, track: FilledTrack
    ) -> None:
        """Copy the position's k and v from the plane just written to those that its exit fills."""
        ...

    def sample(self, slots: SlotArrays, leaving: LeavingRows, logits: Tensor) -> Drawn:
        """Tokens of rows without penalties, bias and filters, greedy or by temperature: logits
        float32 [L, V]. What stands in empty places means nothing."""
        ...


class DecodeSteps(RowSteps, Protocol):
    """The steps of ticks in which a slot has one row, in a tick's order: enter, mix, settle, keep,
    fill_planes, leave, sample, advance."""

    def enter(
        self, slots: SlotArrays, rows: Tensor, *, all_left: bool, first: int, parts: int
    ) -> RunningRows:
        """Ready slots among rows int64 [R] enter at depth 1, or park; running ones take their next
        loop. all_left: nobody enters while any slot runs or leaves. Plane p of the track meant by
        page_row is row first + p * parts of a slot's tables."""
        ...

    def settle(
        self, slots: SlotArrays, rows: RunningRows, says: Tensor | None, tick: Tensor, *, full: bool
    ) -> tuple[Tensor, Tensor]:
        """Exits: says bool [R] is the policy's word (None: never). (decided bool [R], counts int64
        [5]: rows that ran, parked, lowest and highest depth, decided below their loops)."""
        ...

    def leave(
        self, slots: SlotArrays, rows: Tensor, tick: Tensor, *, places: int, min_leave: int
    ) -> LeavingRows:
        """Which of the rows that leave get a place: the oldest, once min_leave wait, or nothing
        else can run, or one has waited as many ticks as any row has loops."""
        ...

    def advance(
        self, slots: SlotArrays, leaving: LeavingRows, drawn: Drawn, counts: Tensor
    ) -> Tensor:
        """The slots' next tokens, stop ids and limits. int64 [6 L + 5]: slot (-1: empty place),
        token (-1: bad), depth, rank, finish, the float64 bits of the logprob, then counts."""
        ...
