"""`flash` over the FlashAttention package that is installed on a GPU machine: one call beside
plain torch, and engines whose answers are as near to float32's as the exact backend's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests import flash_stand_in
from tests.engines import DEVICE
from tests.flash_engine import OURO, TINY, compare

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),  # most of it is compiling
    # the package's own, at its first call
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning"),
]
PAGE, WIDTH = 64, 9


@pytest.fixture(autouse=True)
def _with_the_package() -> None:
    pytest.importorskip("triton")
    from rlt_kernels.flash_library import FOUR, find_library

    if not DEVICE.startswith("cuda"):
        pytest.skip("RLT_TEST_DEVICE=cuda runs it (make test-gpu)")
    found = find_library()
    if found is None or found[0] is not FOUR:
        pytest.skip("flash-attn-4 is not installed")


def _ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


@pytest.mark.parametrize("heads", [(16, 16, 128), (6, 2, 96), (4, 4, 64)])
@pytest.mark.parametrize("most_rows", [1, 256])
def test_a_call_gives_what_plain_torch_gives(
    heads: tuple[int, int, int], most_rows: int, seed: int
) -> None:
    """Sequences of one row and of many, without rows and without keys, over pages in any order of a
    pool that holds other layers too; logarithms of the weights' sums."""
    from rlt_kernels.attention.flash_call import load_call
    from rlt_kernels.attention.flash_spans import Spans

    draw = torch.Generator(DEVICE).manual_seed(seed)
    num, groups, size = heads
    rows = [1] * 6 if most_rows == 1 else [1, 70, 0, 200, 33, 5]
    lengths = [1, 64, 65, 500, 570, 0] if most_rows == 1 else [1, 70, 0, 570, 40, 300]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, device=DEVICE).bfloat16()

    pool = normal(WIDTH * len(rows) + 1, 3, 2, PAGE, groups, size)[:, 1]
    pages = torch.randperm(WIDTH * len(rows), generator=draw, device=DEVICE)
    spans = Spans(
        table=(pages + 1).int().view(len(rows), WIDTH),
        lengths=_ints(*lengths),
        starts=_ints(0, *rows).cumsum(0, dtype=torch.int32),
        key_starts=_ints(0, *lengths).cumsum(0, dtype=torch.int32),
        most_rows=most_rows,
        most_keys=WIDTH * PAGE,
    )
    q = normal(sum(rows), num, size)
    out, logs = load_call()(q, pool[:, 0], pool[:, 1], spans, size**-0.5, logs=True)
    wanted, sums = flash_stand_in.four(
        q,
        pool[:, 0],
        pool[:, 1],
        cu_seqlens_q=spans.starts,
        max_seqlen_q=most_rows,
        max_seqlen_k=WIDTH * PAGE,
        seqused_k=spans.lengths,
        page_table=spans.table,
        softmax_scale=size**-0.5,
        causal=True,
        return_lse=True,
    )
    assert sums is not None
    assert logs is not None
    any_key = torch.isfinite(sums[0])
    assert any_key.sum() >= len(any_key) - 1
    # Outputs of bfloat16 have eight bits, and so have the weights that are summed up.
    torch.testing.assert_close(out[any_key].float(), wanted[any_key].float(), atol=0.02, rtol=0.02)
    torch.testing.assert_close(logs[:, any_key].float(), sums[:, any_key], atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize(("model", "strategy"), [(OURO, "refill"), (TINY, "pipeline")])
def test_engines(model: str, strategy: str, graphs: bool, seed: int, tmp_path: Path) -> None:
    """Prompts in cells beside decode rows, rows that may not store, eager and captured."""
    own = {"model": model, "strategy": strategy, "draft_depth": 1 if model == TINY else None}
    own |= {"dtype": "bfloat16", "policy": "fixed", "graphs": graphs, "chunk_size": 32}
    compare(None, PAGE, seed, tmp_path, 90, 20, **own)
