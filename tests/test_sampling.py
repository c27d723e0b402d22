"""The sampler's meaning: corners by hand, a naive reference row by row, and the distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest
import torch
from torch import Tensor

from rlt_core.runtime.philox import gumbel_noise
from rlt_core.runtime.sampling import (
    Sampled,
    SampleRows,
    changed_logits,
    sample_full,
    sample_plain,
    score_tokens,
)

INF, NAN = math.inf, math.nan


@dataclass(kw_only=True)
class Row:
    """One row's request in Python numbers."""

    logits: Sequence[float]
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()
    bias: dict[int, float] = field(default_factory=dict)
    seed: int = 0
    position: int = 0


def pack(rows: Sequence[Row]) -> SampleRows:
    """Rows of one vocabulary size as the tensors that the tick gathers."""
    vocab = len(rows[0].logits)
    counts = torch.zeros(len(rows), vocab, dtype=torch.int32)
    in_prompt = torch.zeros(len(rows), vocab, dtype=torch.bool)
    bias_ids = torch.full((len(rows), 512), -1)
    bias_values = torch.full((len(rows), 512), 7.0)  # what is unused is not zero
    for i, row in enumerate(rows):
        for token in row.output:
            counts[i, token] += 1
        in_prompt[i, list(row.prompt)] = True
        for n, (token, value) in enumerate(row.bias.items()):
            bias_ids[i, n], bias_values[i, n] = token, value
    return SampleRows(
        logits=torch.tensor([list(row.logits) for row in rows], dtype=torch.float32),
        position=torch.tensor([row.position for row in rows]),
        seed=torch.tensor([row.seed for row in rows]),
        temperature=torch.tensor([row.temperature for row in rows]),
        top_p=torch.tensor([row.top_p for row in rows]),
        min_p=torch.tensor([row.min_p for row in rows]),
        top_k=torch.tensor([row.top_k for row in rows], dtype=torch.int32),
        repetition_penalty=torch.tensor([row.repetition for row in rows]),
        presence_penalty=torch.tensor([row.presence for row in rows]),
        frequency_penalty=torch.tensor([row.frequency for row in rows]),
        token_counts=counts,
        in_prompt=in_prompt,
        bias_ids=bias_ids,
        bias_values=bias_values,
    )


def naive_logits(row: Row) -> list[float]:
    """Bias and penalties, one token at a time."""
    changed = []
    for token, value in enumerate(row.logits):
        value += row.bias.get(token, 0.0)
        if token in row.prompt or token in row.output:
            value = value / row.repetition if value > 0 else value * row.repetition
        made = list(row.output).count(token)
        changed.append(value - row.frequency * made - row.presence * (made > 0))
    return changed


def naive_kept(row: Row) -> list[int]:
    """Token ids that may be drawn, likeliest first."""
    logits = naive_logits(row)
    peak = max(logits)
    if row.temperature == 0:
        return [logits.index(peak)]
    scaled = [(value - peak) / row.temperature for value in logits]
    ids = sorted(range(len(scaled)), key=lambda token: (-scaled[token], token))
    ids = [token for token in ids if math.exp(scaled[token]) >= row.min_p]
    ids = ids[: row.top_k] if row.top_k else ids
    total = sum(math.exp(scaled[token]) for token in ids)
    kept: list[int] = []
    before = 0.0
    for token in ids:
        if kept and row.top_p < 1 and before >= row.top_p * total:
            break
        kept.append(token)
        before += math.exp(scaled[token])
    return kept


def naive_token(row: Row) -> int:
    logits, kept = naive_logits(row), naive_kept(row)
    if len(kept) == 1:
        return kept[0]
    key = torch.tensor([row.seed]), torch.tensor([row.position])
    noise = gumbel_noise(*key, len(logits))[0].tolist()
    return max(kept, key=lambda token: logits[token] / row.temperature + noise[token])


def logs(*probabilities: float) -> list[float]:
    return [math.log(p) for p in probabilities] + [-30.0] * (6 - len(probabilities))


# What each row may draw, by hand.
TABLE: list[tuple[str, Row, set[int]]] = [
    ("greedy", Row(logits=[1, 3, 2, 0, 0, 0], temperature=0), {1}),
    ("greedy tie", Row(logits=[2, 5, 5, 1, 5, 0], temperature=0), {1}),
    ("greedy all equal", Row(logits=[0] * 6, temperature=0), {0}),
    ("greedy zeros of both signs", Row(logits=[-1, -0.0, 0.0, 0.0, -1, -1], temperature=0), {1}),
    ("temperature 0 with top_p", Row(logits=[1, 1, 2, 1, 1, 1], temperature=0, top_p=0.9), {2}),
    ("temperature 0 with top_k", Row(logits=[1, 1, 1, 1, 1, 2], temperature=0, top_k=3), {5}),
    ("tiny temperature", Row(logits=[1, 80, 79, 0, 0, 0], temperature=1e-38), {1}),
    ("all tie at k", Row(logits=[4] * 6, top_k=2), {0, 1}),
    ("tie at the k-th", Row(logits=[0, 4, 4, 4, 5, 0], top_k=3), {1, 2, 4}),
    ("top_k 1 tie", Row(logits=[0, 0, 3, 3, 0, 0], top_k=1), {2}),
    ("top_k above vocab", Row(logits=[1, 1, 1, 1, 1, 2], top_k=1000), {0, 1, 2, 3, 4, 5}),
    ("top_k is vocab", Row(logits=[1, 1, 1, 1, 1, 2], top_k=6), {0, 1, 2, 3, 4, 5}),
    ("top_p 1e-9", Row(logits=[1, 1.2, 1.1, 1, 1, 1], top_p=1e-9), {1}),
    ("top_p 1e-9 tie", Row(logits=[1] * 6, top_p=1e-9), {0}),
    ("top_p reached inside", Row(logits=logs(0.15, 0.6, 0.25), top_p=0.7), {1, 2}),
    ("top_p of what top_k left", Row(logits=[1, 3, 3, 3, 1, 1], top_k=2, top_p=0.5), {1}),
    ("min_p", Row(logits=logs(0.1, 0.2, 0.3, 0.4), min_p=0.6), {2, 3}),
    ("min_p, top_k, top_p", Row(logits=[2] * 5 + [1], min_p=0.5, top_k=3, top_p=0.5), {0, 1}),
    ("masked ids", Row(logits=[-INF, 1, -INF, 1, -INF, -INF], top_k=3, top_p=0.999), {1, 3}),
    ("bias forbids", Row(logits=[1, 1, 9, 1, 1, 1], bias={2: -INF, 0: -200, 5: -INF}), {1, 3, 4}),
]


def test_corners_by_hand() -> None:
    """A61: ties at the k-th logit, top_p 1e-9, top_k above the vocabulary, temperature 0 with
    top_p. Each of the 20 rows is drawn at 300 positions: it gives all of its tokens, no other."""
    rows = [
        Row(**{**vars(row), "position": n, "seed": i})
        for i, (_, row, _) in enumerate(TABLE)
        for n in range(300)
    ]
    sampled = sample_full(pack(rows))
    assert len(TABLE) == 20
    assert not sampled.bad.any()
    for i, (name, _, expected) in enumerate(TABLE):
        assert set(sampled.token[i * 300 : (i + 1) * 300].tolist()) == expected, name


def random_row(random: Random, vocab: int) -> Row:
    pick = random.choice
    steps = pick((2.0, 1e6))  # coarse logits tie often
    return Row(
        logits=[round(random.gauss(0, 2) * steps) / steps for _ in range(vocab)],
        temperature=pick((0.0, 0.3, 0.7, 1.0, 1.7)),
        top_k=pick((0, 0, 1, 2, 5, vocab, 5000)),
        top_p=pick((1.0, 1.0, 1e-9, 0.31, 0.77, 0.953)),
        min_p=pick((0.0, 0.0, 0.013, 0.21)),
        repetition=pick((1.0, 1.3, 0.8)),
        presence=pick((0.0, 0.6, -0.7)),
        frequency=pick((0.0, 0.4, -0.3)),
        prompt=[random.randrange(vocab) for _ in range(pick((0, 3, 9)))],
        output=[random.randrange(vocab) for _ in range(pick((0, 4, 30)))],
        bias={random.randrange(vocab): random.uniform(-4, 4) for _ in range(pick((0, 3)))},
        seed=random.randrange(-(1 << 63), 1 << 63),
        position=random.randrange(1 << 20),
    )


@pytest.mark.parametrize("vocab", [5, 37, 144])
def test_full_agrees_with_naive_rows(vocab: int) -> None:
    """Guards the order of the steps, who is penalised, and a neighbour's parameter or seed."""
    seed = 20 + vocab
    print("seed", seed)
    random = Random(seed)
    rows = [random_row(random, vocab) for _ in range(150)]
    sampled = sample_full(pack(rows))
    assert sampled.token.tolist() == [naive_token(row) for row in rows]
    assert sampled.token.unique().numel() >= min(vocab, 20) // 2


def test_penalties_by_hand() -> None:
    """Guards the two sides of the repetition penalty and what each penalty counts."""
    rows = pack(
        [
            Row(
                logits=[4.0, -4.0, 4.0, -4.0, 4.0, 2.0],
                repetition=2.0,
                presence=0.25,
                frequency=0.5,
                prompt=[0, 1],
                output=[1, 2, 2, 2],
                bias={5: -3.0},
                temperature=0.0,
            )
        ]
    )
    expected = [[2.0, -8.75, 0.25, -4.0, 4.0, -1.0]]
    assert changed_logits(rows.logits, rows).tolist() == expected


def test_a_mask_lets_only_allowed_tokens_through() -> None:
    """Guards a mask before the penalties or behind top-k (which would then keep forbidden tokens
    alone), logprobs that a mask changes, and a row without a token that still gives one."""
    random = Random(6)
    made = [random_row(random, 40) for _ in range(60)]
    rows, generator = pack(made), torch.Generator().manual_seed(6)
    allowed = torch.tensor([[random.random() < 0.15 for _ in range(40)] for _ in made])
    sampled = sample_full(replace(rows, allowed=allowed))
    for i, row in enumerate(made):
        ids = allowed[i].nonzero()[:, 0].tolist()
        assert bool(sampled.bad[i]) == (not ids)
        if not ids:
            continue
        # The same draw among the allowed tokens alone, as a mask of the whole row knows nothing
        # else: forbidden logits changed to anything give the same.
        noise = torch.where(allowed[i], rows.logits[i], torch.randn(40, generator=generator))
        other = replace(pack([row]), logits=noise[None], allowed=allowed[i : i + 1])
        assert int(sample_full(other).token[0]) == int(sampled.token[i])
        assert int(sampled.token[i]) in ids
        if row.temperature == 0:
            naive = naive_logits(row)
            best = max(ids, key=lambda token: (naive[token], -token))
            assert int(sampled.token[i]) == best
    raw = rows.logits.double().log_softmax(-1).gather(1, sampled.token[:, None])[:, 0]
    good = ~sampled.bad
    torch.testing.assert_close(sampled.logprob[good].double(), raw[good], atol=1e-6, rtol=0)


def test_draws_follow_the_probabilities() -> None:
    """Guards noise of a wrong law, and noise shared by positions or by seeds: chi-square with
    three degrees of freedom passes 16.3 once in a thousand; the draws are fixed."""
    weights = torch.tensor([0.5, 0.3, 0.15, 0.05])
    count = 20000
    index = torch.arange(count)
    for seed, position in ((torch.zeros_like(index) + 3, index), (index, index * 0 + 9)):
        rows = SampleRows(
            logits=weights.log().expand(count, 4) * 0.7 + 2.0,
            position=position,
            seed=seed,
            temperature=torch.full((count,), 0.7),
        )
        drawn = torch.bincount(sample_full(rows).token, minlength=4)
        chi_square = float(((drawn - count * weights) ** 2 / (count * weights)).sum())
        assert 0.05 < chi_square < 16.3


def test_temperature_0_is_the_plain_variant() -> None:
    """Guards a greedy row that changes when a neighbour samples: same numbers, to the bit."""
    random = Random(8)
    values = [[round(random.gauss(0, 2), 1) for _ in range(91)] for _ in range(40)]
    plain = sample_plain(torch.tensor(values), 7)
    full = sample_full(pack([Row(logits=row, temperature=0.0) for row in values]), 7)
    assert_same(plain, full)
    assert plain.token.tolist() == [row.index(max(row)) for row in values]


def test_logprobs_are_raw_and_ranked() -> None:
    """Guards logprobs after penalties or temperature, and ties that torch orders as it likes."""
    random = Random(4)
    rows = [random_row(random, 60) for _ in range(30)]
    logits = pack(rows).logits
    sampled = sample_full(pack(rows), 20)
    expected = logits.double().log_softmax(-1)
    at = sampled.token[:, None]
    assert torch.allclose(sampled.logprob.double(), expected.gather(1, at)[:, 0], atol=1e-6)
    order = [sorted(range(60), key=lambda t: (-row.logits[t], t)) for row in rows]
    assert sampled.top_ids.tolist() == [ids[:20] for ids in order]
    top = expected.gather(1, sampled.top_ids)
    assert torch.allclose(sampled.top_logprobs.double(), top, atol=1e-6)
    ranks = [ids.index(int(t)) + 1 for ids, t in zip(order, sampled.token, strict=True)]
    assert sampled.rank.tolist() == ranks
    assert max(ranks) > 1


def test_given_tokens_get_their_own_logprob() -> None:
    """Guards a scored text that is given the likeliest token's logprob."""
    logits = torch.tensor([[0.0, 1.0, 2.0], [5.0, 5.0, 5.0]])
    scored = score_tokens(logits, torch.tensor([0, 1]), 2)
    assert scored.rank.tolist() == [3, 2]
    assert torch.allclose(scored.logprob, logits.log_softmax(-1)[[0, 1], [0, 1]])
    assert scored.top_ids.tolist() == [[2, 1], [0, 1]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("poison", [[NAN], [INF], [-INF, INF], [-INF] * 60, [NAN, INF]])
def test_bad_rows_are_told_and_spoil_nobody(temperature: float, poison: list[float]) -> None:
    """A29: non-finite logits of one row fail that row; its neighbours are bit-equal to before."""
    random = Random(6)
    rows = [random_row(random, 60) for _ in range(5)]
    before = sample_full(pack(rows), 3)
    rows[2].logits = [*poison, *rows[2].logits[len(poison) :]]
    rows[2].temperature = temperature
    after = sample_full(pack(rows), 3)
    assert after.bad.tolist() == [False, False, True, False, False]
    assert sample_plain(pack(rows).logits).bad.tolist() == after.bad.tolist()
    assert_same(_without(before, 2), _without(after, 2))
    assert 0 <= int(after.token[2]) < 60
    assert torch.isfinite(after.logprob).all()


def test_overflow_by_a_penalty_is_bad() -> None:
    """Guards infinite logits that our own arithmetic made: no draw from inf - inf."""
    rows = [Row(logits=[3e38, 1.0], repetition=1e-3, prompt=[0]), Row(logits=[1.0, 2.0])]
    assert sample_full(pack(rows)).bad.tolist() == [True, False]


def test_limits_are_told() -> None:
    """Guards a silent wrong answer past what the integer sums and the wire can hold."""
    with pytest.raises(ValueError, match="num_top is 21"):
        sample_plain(torch.zeros(1, 50), 21)
    with pytest.raises(ValueError, match="262145 logits"):
        sample_plain(torch.zeros(1, 262145))
    assert sample_plain(torch.zeros(2, 3), 20).top_ids.tolist() == [[0, 1, 2], [0, 1, 2]]


def test_scores_keep_no_logits() -> None:
    """An empty view of the logits kept all of them, for every part of a long prompt, and in every
    captured tick."""
    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(2))
    for scored in (score_tokens(logits, torch.tensor([1, 2, 3]), 0), sample_plain(logits)):
        for name in Sampled.__dataclass_fields__:
            kept = getattr(scored, name).untyped_storage().nbytes()
            assert kept < logits.untyped_storage().nbytes(), name


def assert_same(a: Sampled, b: Sampled) -> None:
    for name in Sampled.__dataclass_fields__:
        first, second = getattr(a, name), getattr(b, name)
        assert torch.equal(first, second), name


def _without(sampled: Sampled, row: int) -> Sampled:
    rest: Tensor = torch.arange(sampled.token.shape[0]) != row
    return Sampled(**{n: getattr(sampled, n)[rest] for n in Sampled.__dataclass_fields__})
