"""The sampler's exactness: no neighbour, place, thread or unused option changes a row's bits."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rlt_core.runtime.sampling import (
    Sampled,
    SampleRows,
    sample_full,
    sample_plain,
    score_tokens,
)
from rlt_core.runtime.sampling_filters import keep_min_p, keep_top, key_ids, order_keys
from rlt_core.testing.checks.host_reads import LightMode
from tests.selection import mostly_slow

NUM_ROWS = 256


# Thread count and vocabulary size: only the large shapes are cut between threads.
SHAPES = [(1, 5), (1, 144), (1, 1000), (1, 1003), (2, 1003)]


def make_rows(vocab: int, count: int = NUM_ROWS, seed: int = 17) -> SampleRows:
    """Random parameters, coarse logits in every other row (ties), every seventh row greedy."""
    generator = torch.Generator().manual_seed(seed)

    def choose(*values: float) -> Tensor:
        return torch.tensor(values)[torch.randint(len(values), (count,), generator=generator)]

    logits = torch.randn(count, vocab, generator=generator) * 3
    logits[::2] = (logits[::2] * 2).round() / 2
    temperature = choose(0.4, 1.0, 1.3)
    temperature[::7] = 0.0
    bias_ids = torch.randint(-1, 3, (count, 1), generator=generator).expand(count, 512).clone()
    bias_ids[:, 1:] = -1
    return SampleRows(
        logits=logits,
        position=torch.randint(1 << 20, (count,), generator=generator),
        seed=torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator),
        temperature=temperature,
        top_p=choose(1.0, 1e-9, 0.5, 0.9),
        min_p=choose(0.0, 0.02, 0.2),
        top_k=choose(0, 1, 4, 50, 5000).to(torch.int32),
        repetition_penalty=choose(1.0, 1.2),
        presence_penalty=choose(0.0, 0.7),
        frequency_penalty=choose(0.0, 0.3),
        token_counts=torch.randint(0, 3, (count, vocab), generator=generator, dtype=torch.int32),
        in_prompt=torch.rand(count, vocab, generator=generator) < 0.2,
        bias_ids=bias_ids,
        bias_values=torch.randn(count, 512, generator=generator),
        allowed=some_allowed(count, vocab, generator),
    )


def some_allowed(count: int, vocab: int, generator: torch.Generator) -> Tensor:
    """Masks bool [count, vocab]: from one token to all of them."""
    share = torch.tensor((0.0, 0.05, 0.6, 1.0))[torch.randint(4, (count,), generator=generator)]
    allowed = torch.rand(count, vocab, generator=generator) < share[:, None]
    allowed[torch.arange(count), torch.randint(vocab, (count,), generator=generator)] = True
    return allowed


def select(rows: SampleRows, index: Tensor) -> SampleRows:
    return SampleRows(**{f.name: getattr(rows, f.name)[index] for f in fields(rows)})


def assert_row(got: Sampled, i: int, expected: Sampled, j: int) -> None:
    for f in fields(got):
        a, b = getattr(got, f.name)[i], getattr(expected, f.name)[j]
        assert torch.equal(a, b), f"{f.name} of row {i}: {a} and {b}"


@pytest.mark.parametrize(("threads", "vocab"), mostly_slow(SHAPES, SHAPES[0]))
def test_a_row_is_the_same_alone_and_in_any_batch(threads: int, vocab: int) -> None:
    """A79: same seed, other neighbours, other text. Sums, logarithms, sorts and cumulative sums
    may change with the shape or the thread count; tokens, logprobs and their bits may not."""
    torch.set_num_threads(threads)
    rows = make_rows(vocab)
    alone = {i: sample_full(select(rows, torch.tensor([i])), 5) for i in (*range(9), 32, 255)}
    for count in (1, 3, 7, 33, NUM_ROWS):
        for index in (torch.arange(count), torch.arange(NUM_ROWS).flip(0)[-count:]):
            batch = sample_full(select(rows, index), 5)
            for place, i in enumerate(index.tolist()):
                if i in alone:
                    assert_row(batch, place, alone[i], 0)
            plain = sample_plain(rows.logits[index], 5)
            scored = score_tokens(rows.logits[index], plain.token, 5)
            one = sample_plain(rows.logits[index[-1:]], 5)
            assert_row(plain, count - 1, one, 0)
            assert_row(scored, count - 1, one, 0)


@pytest.mark.slow
def test_threads_change_nothing() -> None:
    """Guards a reduction that is cut differently for one thread and for two: torch halves the
    sum of a single long row."""
    rows = make_rows(70001, count=2)
    expected = sample_full(rows, 5), sample_plain(rows.logits, 5)
    torch.set_num_threads(2)
    for count in (1, 2):
        part = select(rows, torch.arange(count))
        for i in range(count):
            assert_row(sample_full(part, 5), i, expected[0], i)
            assert_row(sample_plain(part.logits, 5), i, expected[1], i)


def test_neutral_values_are_the_same_as_none() -> None:
    """Guards a request whose draw changes when a neighbour makes the batch carry an option."""
    count = 64
    rows = make_rows(500, count)
    ones, zeros = torch.ones(count), torch.zeros(count)
    neutral = replace(
        rows,
        top_p=ones,
        min_p=zeros,
        top_k=zeros.to(torch.int32),
        repetition_penalty=ones,
        presence_penalty=zeros,
        frequency_penalty=zeros,
        bias_ids=torch.full((count, 512), -1),
        allowed=torch.ones(count, 500, dtype=torch.bool),
    )
    bare = SampleRows(
        logits=rows.logits,
        position=rows.position,
        seed=rows.seed,
        temperature=rows.temperature,
    )
    expected = sample_full(bare, 3)
    variants = [neutral, replace(neutral, top_k=None), replace(neutral, top_p=None)]
    for got in (sample_full(variant, 3) for variant in variants):
        for i in range(count):
            assert_row(got, i, expected, i)


class NoHostRead(LightMode):
    """Counts operators; raises on one that waits for the device or whose shape needs data."""

    forbidden = ("_local_scalar_dense", "nonzero", "masked_select", "item", "unique", "index.")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if any(word in name for word in self.forbidden):
            raise RuntimeError(f"{name} reads the device on the host")
        self.names.append(name)
        return func(*args, **(kwargs or {}))


def test_the_host_reads_nothing_and_does_nothing_per_row() -> None:
    """Guards synchronisation and Python per row: the same operators for 1, 3 and 256 rows."""
    rows = make_rows(144)
    seen = []
    for count in (1, 3, NUM_ROWS):
        part = select(rows, torch.arange(count))
        with NoHostRead() as mode:
            sample_full(part, 20)
            sample_plain(part.logits, 20)
            score_tokens(part.logits, part.position % 144)
        seen.append(mode.names)
    assert seen[0] == seen[1] == seen[2]
    assert len(seen[0]) < 450
    with NoHostRead(), pytest.raises(RuntimeError, match="_local_scalar_dense"):
        int(rows.seed[0])


def test_order_keys_follow_value_then_id() -> None:
    """Guards the order of negative numbers, of infinities and of zeros of both signs."""
    values = torch.tensor([[-1.0, 0.0, -0.0, 2.5, -torch.inf, torch.inf, 2.5, -1e-40, -1.5]])
    ordered = order_keys(values).sort(dim=-1, descending=True).values
    assert key_ids(ordered).tolist() == [[5, 3, 6, 1, 2, 7, 0, 8, 4]]


def test_filters_that_are_off_keep_everything() -> None:
    """Guards top_p 1 dropping what weighs nothing beside the likeliest token."""
    scaled = torch.tensor([[-80.0, 0.0, -35.0]])
    off, one = torch.zeros(1, dtype=torch.int32), torch.ones(1)
    assert torch.equal(keep_top(scaled, off, one), scaled)
    assert torch.equal(keep_min_p(scaled, one * 0), scaled)
