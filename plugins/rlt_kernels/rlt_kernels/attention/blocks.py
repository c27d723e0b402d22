"""Where ring.py and cells.py can run, and the descriptors their copies need."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch

from rlt_kernels.attention.chunk import BLOCK

if TYPE_CHECKING:
    from torch import Tensor

    from rlt_core.contract.protocols import PagedRows

_LEAST_SIZE = 32  # padded, the head is 64: the least that products of a warp group take
_MOST_SIZE = 128  # a head size at which three programs fit a multiprocessor


def takes_blocks(q: Tensor, rows: PagedRows) -> bool:
    """Whether rows can be served by ring.py or cells.py: warp-group products and the copy engine
    (compute capability 9.x), 2-byte values, pages of 64 or 128 positions whose stride is a whole
    number of positions, vectors that start at multiples of 16 bytes; rows store and see all; tiles
    of whole warp groups."""
    pool = rows.pool
    return (
        q.dtype in (torch.bfloat16, torch.float16)
        and pool.shape[3] in (BLOCK.value, 2 * BLOCK.value)
        and _LEAST_SIZE < q.shape[2] <= _MOST_SIZE
        and q.shape[2] % 8 == 0
        and rows.store
        and rows.hidden is None
        and pool.stride(0) % pool.stride(3) == 0
        and q.is_cuda
        and torch.cuda.get_device_capability(q.device)[0] == 9
        and _kernels() is not None
        and rows.tile_rows % 64 == 0
    )


def pays(vectors: int, chunks: int) -> bool:
    """Whether ring.py is the faster one where rows times KV heads are so many and requests may be
    so many chunks long: it has more to do before its first product. One H200 (docs/log.md)."""
    return chunks > 4 or (vectors >= 512 and chunks > 1)


def ring_kernel() -> Any:
    """The kernel; RuntimeError where this Triton has no Gluon that it can be written in."""
    return _found()[0]


def cell_kernel() -> Any:
    """The kernel for tiles of rows; RuntimeError as in `ring_kernel`."""
    return _found()[1]


class Blocks:
    """Descriptors of a pool's layers: positions x (heads x size), in blocks of one head."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, tuple[int, ...]], Any] = {}

    def of(self, pool: Tensor, positions: int, padded: int) -> Any:
        """Of one layer's pool [pages, 2, page_size, G, d]; blocks [positions, padded]."""
        key = (pool.data_ptr(), (*pool.shape, positions, padded))
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = _descriptor(pool, positions, padded)
        return made


def _descriptor(pool: Tensor, positions: int, size: int) -> Any:
    from triton.experimental.gluon.language import NVMMASharedLayout
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    width = pool.stride(2)
    # from this layer's first key in page 0 to its last value in the last page
    rows = ((pool.shape[0] - 1) * pool.stride(0) + pool.stride(1)) // width + pool.shape[2]
    flat = pool.as_strided((rows, width), (width, 1))
    layout = NVMMASharedLayout(
        swizzle_byte_width=min(128, size * pool.itemsize),
        element_bitwidth=8 * pool.itemsize,
        rank=2,
    )
    return TensorDescriptor.from_tensor(flat, [positions, size], layout)


def _found() -> tuple[Any, Any]:
    kernels = _kernels()
    if kernels is None:
        raise RuntimeError("this Triton lacks what rlt_kernels.attention.ring and cells need")
    return kernels


@lru_cache(maxsize=1)
def _kernels() -> tuple[Any, Any] | None:
    # Gluon changes between releases; without it the other kernels serve.
    try:
        from rlt_kernels.attention.cells import cell_kernel
        from rlt_kernels.attention.ring import ring_kernel
    except (ImportError, AttributeError):
        return None
    return ring_kernel, cell_kernel
