"""Fixes for a choice that cannot work: each was checked as a whole, and passes.

A fix suggested rule by rule is often wrong, because it breaks another rule. So options are
changed one at a time over the installed names, then two at a time, then as many as it takes, and
only what passes the whole check is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any

from rlt_core.contract.specs import (
    AttentionSpec,
    Entry,
    ExitPolicySpec,
    KVLayoutSpec,
    PromptModeSpec,
    Spec,
    StrategySpec,
)
from rlt_core.plugins.draft import DTYPES, Draft
from rlt_core.plugins.plan import Choice
from rlt_core.plugins.registry import Registry

LIMIT = 4
_PAGE_SIZE = 16


@dataclass(frozen=True, slots=True)
class Change:
    """One option set to another value; `flag` is how it is typed."""

    option: str
    value: Any
    flag: str

    def apply(self, choice: Choice) -> Choice:
        return replace(choice, **{self.option: self.value})


def find_fixes(
    draft: Draft, registry: Registry, count: Callable[[Choice], int | None]
) -> tuple[str, ...]:
    """Up to four changes that pass, as command-line flags: single options, else pairs, else more.

    `count` runs the whole check: the number of conflicts of a choice, None for an invalid one.
    """
    changes = list(_changes(draft, registry))
    choice = draft.asked
    singles = [change.flag for change in changes if count(change.apply(choice)) == 0]
    if singles:
        return tuple(singles[:LIMIT])
    pairs = (
        f"{one.flag} {two.flag}"
        for one, two in combinations(changes, 2)
        if one.option != two.option and count(two.apply(one.apply(choice))) == 0
    )
    found = tuple(islice(pairs, LIMIT))
    return found or _descend(choice, changes, count)


def _descend(
    choice: Choice, changes: list[Change], count: Callable[[Choice], int | None]
) -> tuple[str, ...]:
    """One fix of three or more changes: each time the change that leaves the fewest conflicts."""
    flags: list[str] = []
    left = count(choice)
    while left:
        counts = [(count(change.apply(choice)), change) for change in changes]
        better = [(n, change) for n, change in counts if n is not None and n < left]
        if not better:
            return ()
        left, best = min(better, key=lambda pair: pair[0])
        choice = best.apply(choice)
        flags.append(best.flag)
        changes = [change for change in changes if change.option != best.option]
    return (" ".join(flags),)


def _changes(draft: Draft, registry: Registry) -> Iterator[Change]:
    """Every single change worth trying, the ones that alter least first."""
    choice = draft.asked
    if choice.graphs:
        yield Change("graphs", False, "--no-graphs")
    for size in (*draft.attention.page_sizes, _PAGE_SIZE):
        if size != choice.kv_page_size:
            yield Change("page_size", size, f"--page-size {size}")
    if draft.max_depth != draft.shape.loops:
        yield Change("max_depth", draft.shape.loops, f"--max-depth {draft.shape.loops}")
    if choice.draft_depth is not None:
        picked = max(1, draft.shape.loops // 4)
        if draft.strategy.entry is Entry.ON_GUESS and picked != choice.draft_depth:
            yield Change("draft_depth", picked, f"--draft-depth {picked}")
        yield Change("draft_depth", None, "(without --draft-depth)")
    for dtype in DTYPES:
        if dtype != draft.dtype:
            yield Change("dtype", dtype, f"--dtype {dtype}")
    for op in choice.ops:
        rest = {name: spec for name, spec in choice.ops.items() if name != op}
        yield Change("ops", rest, f"(without --op {op}={choice.ops[op]})")
    yield from _installed_changes(draft, registry)
    if choice.exact:
        yield Change("exact", False, "--exact off")
    if draft.device_type != "cpu":
        yield Change("device", "cpu", "--device cpu")


def _installed_changes(draft: Draft, registry: Registry) -> Iterator[Change]:
    yield from _others("attention", draft.attention, registry.all(AttentionSpec))
    other_mode = "skip" if draft.choice.exit_mode == "full" else "full"
    yield Change("exit_mode", other_mode, f"--exit-mode {other_mode}")
    yield from _others("prompts", draft.prompts, registry.all(PromptModeSpec))
    yield from _others("strategy", draft.strategy, registry.all(StrategySpec))
    yield from _others("kv_layout", draft.layout, registry.all(KVLayoutSpec))
    # A policy that wants data with every request (recorded depths) repairs nobody's choice.
    policies = registry.all(ExitPolicySpec)
    plain = tuple(p for p in policies if all(param.kind != "depths" for param in p.params))
    yield from _others("exit_policy", draft.policy, plain)


def _others(option: str, current: Spec, installed: tuple[Spec, ...]) -> Iterator[Change]:
    for spec in installed:
        if spec.id != current.id:
            yield Change(option, spec.id, f"--{option.replace('_', '-')} {spec.id}")
