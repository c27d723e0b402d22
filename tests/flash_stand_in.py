"""Stand-ins for the two FlashAttention packages: their function's signature in plain torch.

They refuse what the packages refuse, give garbage where those promise nothing, and read nothing
back to the host, so that they can be captured. `install` puts one where Python and pip look.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

CODE = "from tests.flash_stand_in import {name} as flash_attn_varlen_func\n"
# What is called in a test, newest last: (name, shape of q, keys).
CALLS: list[tuple[str, tuple[int, ...], Tensor]] = []


def two(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """flash-attn 2.8: pages are multiples of 256; the sum of no weight has the logarithm +inf."""
    assert block_table is not None
    assert k.shape[1] % 256 == 0, "Paged KV cache block size must be divisible by 256"
    assert q.shape[2] % 8 == 0
    assert q.shape[2] <= 256
    _check_ints(cu_seqlens_q, cu_seqlens_k, block_table)
    lengths = cu_seqlens_k.diff()
    out, logs = _attend(
        "two", q, k, v, cu_seqlens_q, lengths, max_seqlen_q, softmax_scale, causal, block_table
    )
    logs = torch.where(logs == -torch.inf, torch.inf, logs)
    return (out, logs, q.new_empty(0)) if return_attn_probs else out


def four(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    qv: Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    min_seqlen_k: int | None = None,
    seqused_q: Tensor | None = None,
    seqused_k: Tensor | None = None,
    gather_kv_indices: Tensor | None = None,
    page_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    return_lse: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """flash-attn-4: any pages, lengths as they are, two results always."""
    assert cu_seqlens_k is None, "page_table is not supported with cu_seqlens_k"
    assert page_table is not None
    assert seqused_k is not None
    assert cu_seqlens_q is not None
    assert max_seqlen_q is not None
    assert q.shape[2] % 16 == 0
    assert q.shape[2] <= 128
    _check_ints(cu_seqlens_q, seqused_k, page_table)
    out, logs = _attend(
        "four", q, k, v, cu_seqlens_q, seqused_k, max_seqlen_q, softmax_scale, causal, page_table
    )
    return out, logs if return_lse else None


def _check_ints(*tensors: Tensor) -> None:
    for tensor in tensors:
        assert tensor.dtype == torch.int32
        assert tensor.is_contiguous()


def _attend(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    lengths: Tensor,
    most: int,
    scale: float | None,
    causal: bool,
    table: Tensor,
) -> tuple[Tensor, Tensor]:
    """(out, logs [H, R]); queries of no sequence get NaN."""
    assert q.dtype == k.dtype == v.dtype
    assert q.device.type == "cpu" or q.dtype in (torch.bfloat16, torch.float16)
    assert k.stride(-1) == v.stride(-1) == q.stride(-1) == 1
    assert table.shape[0] == len(lengths) == len(starts) - 1
    assert causal
    CALLS.append((name, tuple(q.shape), k))
    rows, groups = q.shape[0], k.shape[2]
    at = torch.arange(rows, device=q.device)
    own = (torch.searchsorted(starts.long(), at, right=True) - 1).clamp(max=len(lengths) - 1)
    nobody = at >= starts[-1]
    behind = starts[own + 1] - 1 - at
    nobody = nobody | (at - starts[own] >= most)  # the grid goes no further
    seen = (lengths[own] - behind).clamp(min=0)
    keys, values = (side[table.long()].flatten(1, 2)[own].float() for side in (k, v))
    there = torch.arange(keys.shape[1], device=q.device) < seen[:, None]
    values = torch.where(there[..., None, None], values, 0.0)
    queries = q.float().unflatten(1, (groups, -1))
    scores = torch.einsum("rgid,rngd->rgin", queries, keys) * (scale or q.shape[2] ** -0.5)
    scores = torch.where(there[:, None, None], scores, -torch.inf)
    logs = scores.logsumexp(-1)
    weights = (scores - logs.clamp(min=-1e30)[..., None]).exp()
    out = torch.einsum("rgin,rngd->rgid", weights, values).flatten(1, 2)
    out = torch.where(nobody[:, None, None], torch.nan, out)
    return out.to(q.dtype), logs.flatten(1).T.contiguous()


@contextmanager
def install(folder: Path, *versions: tuple[str, str]) -> Iterator[None]:
    """Packages by name ("two" or "four") and version, for as long as the context lasts. A real
    package that is installed is out of sight."""
    folder.mkdir(exist_ok=True)
    names = {"two": ("flash-attn", "flash_attn"), "four": ("flash-attn-4", "flash_attn/cute")}
    (folder / "flash_attn").mkdir(exist_ok=True)
    (folder / "flash_attn" / "__init__.py").touch()
    for name, version in versions:
        distribution, package = names[name]
        info = folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        about = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
        (info / "METADATA").write_text(about)
        (folder / package).mkdir(exist_ok=True)
        (folder / package / "__init__.py").write_text(CODE.format(name=name))
    with pytest.MonkeyPatch.context() as patch:
        _forget()
        patch.syspath_prepend(str(folder))
        _hide_others(patch, {names[name][0] for name, _ in versions})
        CALLS.clear()
        yield
    _forget()


def _hide_others(patch: pytest.MonkeyPatch, shown: set[str]) -> None:
    from rlt_kernels import flash_library

    look = flash_library._version
    patch.setattr(
        flash_library, "_version", lambda lib: look(lib) if lib.distribution in shown else None
    )


def _forget() -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "flash_attn"]:
        del sys.modules[name]
