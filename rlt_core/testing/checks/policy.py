"""Checks of an exit policy: a pure tensor function, row by row, and what it does in an engine."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rlt_core.contract.protocols import StateSpec
from rlt_core.contract.specs import ExitPolicySpec
from rlt_core.testing.checks.check import check, expect
from rlt_core.testing.checks.host_reads import NoHostReads
from rlt_core.testing.checks.plugin import check_factories_load, check_parameters_valid
from rlt_core.testing.checks.policy_inputs import (
    LOOPS,
    NUM_ROWS,
    VOCAB,
    WIDTH,
    Asked,
    default_of,
    loops_of_signals,
    start_state,
    values_of,
)
from rlt_core.testing.checks.stand_in import StandIn
from rlt_core.testing.checks.subjects import SEED, PartSubject
from rlt_core.testing.checks.trial import Trial, expect_same, requests_of

Policy = PartSubject[ExitPolicySpec]
_DTYPES = ("float32", "int64", "bool")


@check("policy", after=(check_factories_load, check_parameters_valid))
def check_policy_state(policy: Policy) -> None:
    """state(vocab_size, state_width) declares tensors with a name, a shape and a known dtype.

    If this fails: return StateSpecs; the core keeps those tensors row by row and resets them to
    `initial` when a row enters at depth 1.
    """
    specs = policy.make().state(VOCAB, WIDTH)
    strange = [type(spec).__name__ for spec in specs if not isinstance(spec, StateSpec)]
    expect(not strange, "StateSpecs from state()", ", ".join(strange))
    names = [spec.name for spec in specs]
    expect(len({*names}) == len(names), "one state a name", ", ".join(names))
    for spec in specs:
        expect(spec.dtype in _DTYPES, f"{spec.name} in {' or '.join(_DTYPES)}", spec.dtype)
        sizes = all(type(size) is int and size > 0 for size in spec.shape)
        expect(sizes, f"whole sizes of {spec.name}", spec.shape)
    again = [*policy.make().state(VOCAB, WIDTH)]
    expect(again == [*specs], "the same state every time", "another")


@check("policy", after=(check_policy_state,))
def check_policy_answers(policy: Policy) -> None:
    """decide gives bool [rows] and every state it declared, from the signals that it needs.

    If this fails: return (exit, new state): a bool tensor, and a mapping with a tensor of the
    declared shape and dtype per StateSpec. Add a signal that it reads to `needs`.
    """
    made = policy.make()
    specs = made.state(VOCAB, WIDTH)
    for where in ("default", "low", "high"):
        for asked, says, new in _run(policy, made, where):
            _expect_answer(specs, asked, says, new, f"parameters at their {where}")


@check("policy", after=(check_policy_answers,))
def check_policy_pure(policy: Policy) -> None:
    """decide changes none of its arguments: the core uses them again.

    If this fails: no operation that ends in `_`, and no assignment into an argument.
    """
    made = policy.make()
    for signals in loops_of_signals(policy.spec):
        asked = _asked(policy, made, signals, "mixed")
        before = {name: value.clone() for name, value in asked.tensors().items()}
        asked.decide(made)
        for name, value in asked.tensors().items():
            same = torch.equal(before[name], value)
            expect(same, f"decide to leave {name} alone", "it changed")


@check("policy", after=(check_policy_answers,))
def check_policy_repeats(policy: Policy) -> None:
    """The same question has the same answer: a policy keeps nothing outside its state.

    If this fails: what it remembers of a row belongs in a StateSpec.
    """
    made = policy.make()
    first = [(says, new) for _, says, new in _run(policy, made, "mixed")]
    again = [(says, new) for _, says, new in _run(policy, made, "mixed")]
    for (says, new), (other, more) in zip(first, again, strict=True):
        same = torch.equal(says, other) and all(torch.equal(new[name], more[name]) for name in new)
        expect(same, "the same answer to the same question", "another one")


@check("policy", after=(check_policy_answers,))
def check_policy_reads_nothing_back(policy: Policy) -> None:
    """decide reads no value back to the host, and no shape depends on data.

    If this fails: `.item()`, `if tensor:` and indexing with a mask stall the device; torch.where
    over all rows does the same work without.
    """
    made = policy.make()
    for signals in loops_of_signals(policy.spec):
        asked = _asked(policy, made, signals, "mixed")
        with NoHostReads("decide"):
            asked.decide(made)


@check("policy", after=(check_policy_pure, check_policy_repeats))
def check_policy_rows(policy: Policy) -> None:
    """A row's answer depends on no other row, on its place or on the row count, to the bit.

    If this fails: compute over the last dimension only; torch.sigmoid and sums over a dimension
    of varying length change bits with an element's place (1 / (1 + exp(-x)) does not).
    """
    made = policy.make()
    order = torch.randperm(NUM_ROWS, generator=torch.Generator().manual_seed(SEED))
    for asked, says, new in _run(policy, made, "mixed"):
        for what, at in (("another place", order), ("7 rows", order[:7]), ("1 row", order[:1])):
            other, more = asked.rows(at).decide(made)
            _expect_rows(says, new, other, more, at, what)
        spoilt = _spoilt(asked)
        other, more = spoilt.decide(made)
        mine = torch.arange(0, NUM_ROWS, 2)
        _expect_rows(says, new, other[mine], _take(more, mine), mine, "NaN in every other row")


@check("policy", after=(check_policy_answers,))
def check_policy_parameters_used(policy: Policy) -> None:
    """Each parameter matters: at the two ends of its range decide says something else somewhere.

    If this fails: the parameter is declared and not read, or its range is so narrow that it
    changes nothing.
    """
    for param in policy.spec.params:
        answers = []
        for where in ("low", "high"):
            made = policy.make()
            values = {**values_of(policy.spec, "default"), param.name: _end(policy, param, where)}
            answers.append([says for _, says, _ in _run(policy, made, values)])
        differ = any(not torch.equal(a, b) for a, b in zip(*answers, strict=True))
        expect(differ, f"{param.name} to change a decision", "none over its whole range")


@check("policy", after=(check_policy_rows, check_policy_reads_nothing_back))
def check_policy_tokens(policy: Policy) -> None:
    """In an engine, requests together get what each gets alone: tokens, depths, logits.

    If this fails: the answer depends on when it is asked; all a policy may know of a row is its
    state, its parameters, its signals and its depth.
    """
    own = StandIn(policy.bench.registry)
    plan = own.plan(exit_policy=policy.name)
    given = {p.name: default_of(p) for p in policy.spec.params if p.kind != "depths"}
    requests = requests_of(plan, (6, 3, 2), 6, SEED, exit_params=given)
    alone = Trial(plan=plan, model=own.model).run_alone(requests)
    together = Trial(plan=plan, model=own.model, chunk_size=4).run(requests)
    expect_same(alone, together, "requests together to get what each gets alone", "together")


Run = list[tuple[Asked, Any, Any]]


def _run(policy: Policy, made: Any, values: str | dict[str, Tensor]) -> Run:
    """The answers of four loops in a row, each with the state of the one before."""
    run: Run = []
    state = start_state(made.state(VOCAB, WIDTH))
    for loop, signals in enumerate(loops_of_signals(policy.spec), 1):
        params = values_of(policy.spec, values) if isinstance(values, str) else values
        depth = torch.full((NUM_ROWS,), loop)
        asked = Asked(signals, state, params, depth)
        says, new = asked.decide(made)
        run.append((asked, says, new))
        state = {**state, **new}
    return run


def _asked(policy: Policy, made: Any, signals: dict[str, Tensor], where: str) -> Asked:
    state = start_state(made.state(VOCAB, WIDTH))
    depth = 1 + torch.arange(NUM_ROWS) % LOOPS
    return Asked(signals, state, values_of(policy.spec, where), depth)


def _expect_answer(specs: Any, asked: Asked, says: Any, new: Any, what: str) -> None:
    fits = isinstance(says, Tensor) and says.shape == (NUM_ROWS,) and says.dtype == torch.bool
    told = f"{list(says.shape)} {says.dtype}" if isinstance(says, Tensor) else type(says).__name__
    expect(fits, f"bool [{NUM_ROWS}] from decide ({what})", told)
    names = {spec.name for spec in specs}
    expect(names == {*new}, f"the states {sorted(names)} from decide", sorted(new))
    for spec in specs:
        given, kept = new[spec.name], asked.state[spec.name]
        same = given.shape == kept.shape and given.dtype == kept.dtype
        wanted = f"{spec.name} {list(kept.shape)} {kept.dtype}"
        expect(same, wanted, f"{list(given.shape)} {given.dtype}")


def _expect_rows(says: Tensor, new: Any, other: Tensor, more: Any, at: Tensor, what: str) -> None:
    expect(torch.equal(says[at], other), f"the same decisions with {what}", "others")
    for name, value in new.items():
        same = torch.equal(value[at], more[name])
        expect(same, f"the same bits of state {name} with {what}", "others")


def _spoilt(asked: Asked) -> Asked:
    """NaN in the signals of every second row."""
    odd = torch.arange(NUM_ROWS) % 2 == 1
    signals = {n: value.clone() for n, value in asked.signals.items()}
    for value in signals.values():
        value[odd] = torch.nan
    return Asked(signals, asked.state, asked.params, asked.depth)


def _take(tensors: Any, at: Tensor) -> dict[str, Tensor]:
    return {name: value[at] for name, value in tensors.items()}


def _end(policy: Policy, param: Any, where: str) -> Tensor:
    return values_of(policy.spec, where)[param.name]
