"""Random numbers: the published vectors, and independence from everything but key and counter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlt_core.runtime.philox import gumbel_noise, philox4x32, split_seed, uniform
from rlt_core.runtime.philox_ints import MASK, Purpose, philox_rounds, sibling_seed

# Known answers of Philox-4x32-10 published with Random123: (key, counter, result).
KNOWN = [
    ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (MASK, MASK),
        (MASK, MASK, MASK, MASK),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0xA4093822, 0x299F31D0),
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

Key = tuple[int, int]
Counter = tuple[int, int, int, int]


# Thread count and vocabulary size: only the large shapes are cut between threads.
SHAPES = [(1, 5), (1, 144), (1, 1000), (1, 1003), (2, 1003)]


@pytest.mark.parametrize(("key", "counter", "result"), KNOWN)
def test_known_answers(key: Key, counter: Counter, result: Counter) -> None:
    """Guards the rounds and the signed multipliers: a wrong carry changes every word."""
    words = [torch.tensor([word]) for word in (*key, *counter)]
    assert tuple(int(word) for word in philox4x32(*words)) == result
    assert philox_rounds(*key, *counter) == result


def test_tensors_agree_with_ints_and_leave_arguments_alone() -> None:
    """Guards the in-place steps: they may touch nothing that the caller still holds."""
    generator = torch.Generator().manual_seed(5)
    words = [torch.randint(0, 1 << 32, (50,), generator=generator) for _ in range(6)]
    words[2][:2] = torch.tensor([MASK, 1 << 31])
    before = [word.clone() for word in words]
    result = philox4x32(*words)
    assert all(torch.equal(a, b) for a, b in zip(before, words, strict=True))
    for i in range(50):
        expected = philox_rounds(*(int(word[i]) for word in words))
        assert tuple(int(word[i]) for word in result) == expected


def test_broadcast_is_elementwise() -> None:
    """Guards against a counter word that is mixed up with another's axis."""
    row, lane = torch.tensor([[3], [9]]), torch.arange(5)[None, :]
    one = torch.tensor([[7]])
    words = philox4x32(row, one, row + 1, one, lane, one)
    assert all(word.shape == (2, 5) for word in words)
    expected = philox_rounds(9, 7, 10, 7, 4, 7)
    assert tuple(int(word[1, 4]) for word in words) == expected


def test_uniform_stays_inside_the_open_interval() -> None:
    """Guards log(0) and log(1): the extremes of the bits give exact, finite noise."""
    u = uniform(torch.tensor([0, 511, 512, MASK]))
    assert u.dtype == torch.float32
    assert u.tolist() == [2.0**-24, 2.0**-24, 3 * 2.0**-24, 1 - 2.0**-24]
    assert torch.isfinite(-(-u.log()).log()).all()


def test_seeds_of_siblings() -> None:
    """Guards n > 1 giving one text n times, and a sibling that meets another request's seed."""
    seeds = {sibling_seed(seed, i) for seed in range(50) for i in range(20)}
    assert len(seeds) == 1000
    assert all(0 <= seed < 1 << 63 for seed in seeds)
    assert sibling_seed(123456789012345678, 0) == 123456789012345678
    low, high, _, _ = philox_rounds(7, 1, 3, int(Purpose.SIBLING), 0, 0)
    assert sibling_seed((1 << 32) + 7, 3) == (high << 32 | low) & (1 << 63) - 1


def test_seeds_of_siblings_are_those_of_the_tensors() -> None:
    """Guards the client's ints: a seed that is reported must give the same text as ever."""
    assert sibling_seed(7, 1) == 1083837620075162896
    seed, i = torch.tensor([0, 7, (1 << 63) - 1, 123456789012345678]), torch.tensor([1, 2, 127, 5])
    zero = torch.zeros_like(i)
    low, high, _, _ = philox4x32(*split_seed(seed), i, zero + int(Purpose.SIBLING), zero, zero)
    expected = ((high << 32 | low) & (1 << 63) - 1).tolist()
    assert [sibling_seed(int(s), int(k)) for s, k in zip(seed, i, strict=True)] == expected


def test_split_seed_keeps_all_64_bits() -> None:
    """Guards seeds that differ only above bit 31, and negative ones, falling together."""
    assert split_seed((5 << 32) | 9) == (9, 5)
    low, high = split_seed(torch.tensor([-1, 1 << 62]))
    assert low.tolist() == [MASK, 0]
    assert high.tolist() == [MASK, 1 << 30]


def _rows(count: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(count)
    return index * 7919 + 3, index * 5 + 11


@pytest.mark.parametrize(("threads", "vocab"), SHAPES)
def test_noise_knows_no_neighbours(threads: int, vocab: int) -> None:
    """A79: same seed, other neighbours, other text. A logarithm's vector body and its tail may
    differ; noise must not change with rows, place, threads or the size of the vocabulary."""
    torch.set_num_threads(threads)
    seed, position = _rows(256)
    for rows in (1, 3, 7, 33, 256):
        first = 256 - rows
        noise = gumbel_noise(seed[first:], position[first:], vocab)
        for i in {first, (first + 255) // 2, 254, 255} - {first - 1}:
            alone = gumbel_noise(seed[i : i + 1], position[i : i + 1], vocab)
            assert torch.equal(noise[i - first], alone[0])
    wider = gumbel_noise(seed[-1:], position[-1:], vocab + 22)
    assert torch.equal(wider[0, :vocab], gumbel_noise(seed, position, vocab)[-1])


def test_noise_is_keyed_by_seed_position_and_token() -> None:
    """Guards a key that drops a part: any two of these must differ, and be as documented."""
    seed = torch.tensor([1, 1 << 32 | 1, 2, 1])
    position = torch.tensor([0, 0, 0, 1])
    noise = gumbel_noise(seed, position, 64)
    assert noise.flatten().unique().numel() == 4 * 64
    words = philox_rounds(1, 0, 1, int(Purpose.SAMPLE), 9, 0)
    u = uniform(torch.tensor([words[2]]))
    assert torch.allclose(noise[3, 38], -(-u.log()).log())


def test_noise_has_the_gumbel_distribution() -> None:
    """Guards a sign or a missing logarithm: mean 0.5772, variance pi**2 / 6."""
    seed, position = _rows(40)
    noise = gumbel_noise(seed, position, 5000).double()
    assert abs(float(noise.mean()) - 0.57722) < 0.01
    assert abs(float(noise.var()) - 1.64493) < 0.02
