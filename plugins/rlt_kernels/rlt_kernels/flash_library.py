"""Which FlashAttention package is installed, and what it can do; nothing here imports torch.

The limits are those of their sources, read for flash-attn 2.8.3 and for flash-attn-4 as of August
2026. Both attend to rows of any lengths over paged keys with `flash_attn_varlen_func`; 2's
`flash_attn_with_kvcache` is left alone, since newer releases of it read lengths back to the host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata

from rlt_core.contract import AttentionSpec, Extra, Word

_INSTALL = "pip install flash-attn-4, or flash-attn for GPUs before Hopper"
# Below the exact backend: it is taken by name, or where that one cannot be. Where it was measured
# (docs/log.md), it was not faster.
_PRIORITY = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashLibrary:
    """A package: its distribution, the module with the function, the oldest release that has what
    is called here, and its limits for paged keys."""

    distribution: str
    module: str
    oldest: tuple[int, int]
    head_dims: tuple[int, ...]
    page_sizes: tuple[int, ...]
    capability: tuple[int, int]
    capability_below: tuple[int, int] | None = None


# CuTe DSL. It walks pages on Hopper and data-centre Blackwell alone, and there only for head sizes
# that are whole multiples of 16; those above 128 on Hopper alone.
FOUR = FlashLibrary(
    distribution="flash-attn-4",
    module="flash_attn.cute",
    oldest=(4, 0),
    head_dims=tuple(range(16, 129, 16)),
    page_sizes=(1, 2, 4, 8, 16, 32, 64, 128),
    capability=(9, 0),
    capability_below=(12, 0),
)
TWO = FlashLibrary(
    distribution="flash-attn",
    module="flash_attn",
    oldest=(2, 7),
    head_dims=tuple(range(8, 257, 8)),
    page_sizes=(256,),
    capability=(8, 0),
)


def find_library() -> tuple[FlashLibrary, str] | None:
    """The package that is used and its version: 4 before 2; None where neither is there."""
    for library in (FOUR, TWO):
        version = _version(library)
        if version is not None and _numbers(version) >= library.oldest:
            return library, version
    return None


def flash_spec() -> AttentionSpec:
    """The backend with the limits of what is installed; with none where nothing is."""
    found = find_library()
    library = found[0] if found else None
    return AttentionSpec(
        id="flash",
        summary="FlashAttention 4 or 2, whichever is installed; not exact",
        factory="rlt_kernels.attention.flash:FlashAttention",
        devices=("cuda",),
        dtypes=("bfloat16", "float16"),
        head_dims=library.head_dims if library else (),
        page_sizes=library.page_sizes if library else (),
        capability=library.capability if library else None,
        capability_below=library.capability_below if library else None,
        extra=_extra(found),
        priority=_PRIORITY,
        provides=frozenset({Word.SPLIT_PLANES, Word.STORE_FALSE}),
    )


def _extra(found: tuple[FlashLibrary, str] | None) -> Extra:
    if found is not None:
        name = f"{found[0].distribution} {found[1]}"
        return Extra(found=name, lack="", fix=_INSTALL)
    old = [
        f"{library.distribution} {version} is older than {'.'.join(map(str, library.oldest))}"
        for library in (FOUR, TWO)
        if (version := _version(library)) is not None
    ]
    lack = "; ".join(old) or "neither flash-attn-4 nor flash-attn is installed"
    return Extra(found=None, lack=lack, fix=_INSTALL)


def _version(library: FlashLibrary) -> str | None:
    try:
        return metadata.version(library.distribution)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, int]:
    """Of "2.8.3.post1" (2, 8)."""
    numbers = [int(number) for number in re.findall(r"\d+", version)[:2]]
    major, minor = (*numbers, 0, 0)[:2]
    return major, minor
