"""Partial results of rows whose chunks are spread over programs."""

from __future__ import annotations

import triton
import triton.language as tl

from rlt_kernels.attention.chunk import finished_across, merge_across

# mypy: disable-error-code="no-untyped-def,untyped-decorator"


@triton.jit
def store_part(
    highest_ptr, total_ptr, mixed_ptr, highest, total, mixed, lanes, inside
):  # fmt: skip
    """Write a chunk's partial result."""
    tl.store(highest_ptr, highest, mask=lanes)
    tl.store(total_ptr, total, mask=lanes)
    tl.store(mixed_ptr, mixed, mask=inside)


@triton.jit
def merge_when_last(
    arrived_ptr, programs, highest_ptr, total_ptr, mixed_ptr, out_row, place, chunks, d, lane,
    REP: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """The last of a row's programs to arrive merges all chunks, in their order, and leaves the
    counter at zero for the next launch."""
    tl.debug_barrier()  # every thread's stores come before the count
    arrived = tl.atomic_add(arrived_ptr, 1, sem="acq_rel")
    if arrived == programs - 1:
        tl.store(arrived_ptr, 0)
        merge_parts(
            highest_ptr, total_ptr, mixed_ptr, out_row + lane * D,
            place * REP + lane, REP, chunks, lane < REP, d, D,
        )  # fmt: skip


@triton.jit
def merge_parts(
    highest_ptr,
    total_ptr,
    mixed_ptr,
    out_ptrs,  # [M]: where the results begin
    first,  # [M]: the first chunk of each
    step,  # from one chunk to the next
    chunks,
    lanes,  # bool [M]: those that are there
    d,
    D: tl.constexpr,
):
    """The chunks' partial results merged ascending, and the results from them."""
    # Made of the arguments, whose layouts differ between the kernels that call this.
    total = lanes.to(tl.float32) * 0.0
    highest = total - float("inf")
    mixed = d[:, None] * 0.0 + total[None, :]
    inside = lanes[None, :] & (d < D)[:, None]
    for start in range(0, chunks, 8):
        for i in tl.static_range(8):
            chunk = start + i
            there = lanes & (first * 0 + chunk < chunks)
            part = first + chunk * step
            # past L1, which knows nothing of other programs' stores
            c_highest = tl.load(
                highest_ptr + part, mask=there, other=float("-inf"), cache_modifier=".cg"
            )
            c_total = tl.load(total_ptr + part, mask=there, other=0.0, cache_modifier=".cg")
            c_mixed = tl.load(
                mixed_ptr + part[None, :] * D + d[:, None],
                mask=there[None, :] & inside,
                other=0.0,
                cache_modifier=".cg",
            )
            highest, total, mixed = merge_across(highest, total, mixed, c_highest, c_total, c_mixed)
    out = finished_across(total, mixed).to(out_ptrs.dtype.element_ty)
    tl.store(out_ptrs[None, :] + d[:, None], out, mask=inside)
