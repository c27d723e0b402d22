"""Every pair of a draft that cannot work, decided by words and limits, never by ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rlt_core.contract.capabilities import Word
from rlt_core.contract.errors import Conflict
from rlt_core.contract.specs import Entry, Spec
from rlt_core.plugins.draft import DTYPES, Draft
from rlt_core.plugins.kinds import KEEPERS, kind_of
from rlt_core.plugins.limits import PAGE_SIZES, head_dims, limit_faults
from rlt_core.plugins.registry import Registry

POOL = "the page pool (rlt-core)"


def find_conflicts(draft: Draft, registry: Registry) -> list[Conflict]:
    """All conflicts of a draft at once; empty when it may be built."""
    return [
        *_needs(draft, registry),
        *_refusals(draft, registry),
        *_mode(draft, registry),
        *_peek(draft, registry),
        *_guesses(draft, registry),
        *_depth(draft, registry),
        *_dtype(draft),
        *_page_size(draft),
        *_attention(draft, registry),
        *_operators(draft, registry),
        *_graphs(draft, registry),
    ]


def _parts(draft: Draft) -> list[Spec]:
    parts: list[Spec] = [draft.model, draft.layout, draft.policy, draft.strategy]
    parts += [draft.prompts, draft.attention]
    return parts + [spec for spec in draft.ops.values() if spec is not None]


def _needs(draft: Draft, registry: Registry) -> Iterator[Conflict]:
    parts = _parts(draft)
    for part in parts:
        lacking: dict[int, list[str]] = {}
        for word in sorted(part.needs):
            keepers = [other for other in parts if other is not part and _keeps(other, word)]
            if not any(word in keeper.provides for keeper in keepers):
                side = _answerable(word, keepers, registry)
                lacking.setdefault(parts.index(side) if side else -1, []).append(word)
        for index, words in lacking.items():
            yield _lack(part, words, parts[index] if index >= 0 else None, registry)


def _keeps(spec: Spec, word: str) -> bool:
    """Whether it is this kind's business to provide the word (any kind's, for a coined one)."""
    return KEEPERS.get(word, type(spec)) is type(spec)


def _answerable(word: str, keepers: list[Spec], registry: Registry) -> Spec | None:
    """The part to name: the word's keeper; for a coined word one whose kind can provide it."""
    if word in KEEPERS:
        return keepers[0] if keepers else None
    for part in keepers:
        kind = type(part)
        if any(type(spec) is kind and word in spec.provides for spec in registry.specs):
            return part
    return None


def _lack(part: Spec, words: list[str], side: Spec | None, registry: Registry) -> Conflict:
    needed = f"the {kind_of(part).label} needs {', '.join(words)}"
    if side is None:
        reason = f"{needed}, which nothing installed provides"
        return Conflict(left=registry.named(part), right="the rest of the choice", reason=reason)
    reason = f"{needed}; the {kind_of(side).label} provides {_listed(side.provides)}"
    return Conflict(left=registry.named(part), right=registry.named(side), reason=reason)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(sorted(words)) or "nothing"


def _refusals(draft: Draft, registry: Registry) -> Iterator[Conflict]:
    parts = _parts(draft)
    for part in parts:
        for other in parts:
            words = part.refuses & other.provides
            if other is not part and words:
                reason = f"the {kind_of(part).label} refuses {_listed(words)}"
                yield Conflict(
                    left=registry.named(part), right=registry.named(other), reason=reason
                )


def _mode(draft: Draft, registry: Registry) -> Iterator[Conflict]:
    if draft.choice.exit_mode == "full" and Word.FULL_DEPTH_KV not in draft.layout.provides:
        yield Conflict(
            left="exit mode 'full'",
            right=registry.named(draft.layout),
            reason="rows go on to full depth, and the layout does not keep the KV of every depth",
        )


def _peek(draft: Draft, registry: Registry) -> Iterator[Conflict]:
    """Logits after a loop need coda without storing, where a model has coda layers."""
    peeks = Word.LOGITS in draft.policy.needs and draft.shape.has_coda_layers
    if peeks and Word.STORE_FALSE not in draft.attention.provides:
        yield Conflict(
            left=registry.named(draft.policy),
            right=registry.named(draft.attention),
            reason="logits after a loop run the coda without storing, which it cannot",
        )


def _guesses(draft: Draft, registry: Registry) -> Iterator[Conflict]:
    """What rows that run ahead of their predecessors' codas cannot do."""
    asked, entry = draft.choice.draft_depth, draft.strategy.entry
    if entry is not Entry.ON_GUESS:
        if asked is not None:
            reason = "it guesses no tokens (entry rule on_guess does)"
            left = f"option --draft-depth {asked}"
            yield Conflict(left=left, right=registry.named(draft.strategy), reason=reason)
        return
    if draft.draft_depth >= max(draft.max_depth, 2):
        reason = f"a token is guessed before its last loop of {draft.max_depth}"
        left = f"option --draft-depth {draft.draft_depth}"
        yield Conflict(left=left, right=registry.named(draft.model), reason=reason)
    if Word.LOGITS in draft.policy.needs and draft.shape.has_coda_layers:
        reason = "its logits need the coda's KV of earlier positions, whose tokens are guesses yet"
        yield Conflict(
            left=registry.named(draft.strategy), right=registry.named(draft.policy), reason=reason
        )


def _depth(draft: Draft, registry: Registry) -> Iterator[Conflict]:
    asked, shape = draft.max_depth, draft.shape
    left, right = f"option --max-depth {asked}", registry.named(draft.model)
    if asked > shape.max_loops:
        reason = f"the model takes at most {shape.max_loops} loops"
        yield Conflict(left=left, right=right, reason=reason)
    elif asked != shape.loops and Word.LOOPS_OVERRIDE not in draft.model.provides:
        reason = f"the model takes {shape.loops} loops and no other number (loops_override)"
        yield Conflict(left=left, right=right, reason=reason)


def _dtype(draft: Draft) -> Iterator[Conflict]:
    if draft.dtype not in DTYPES:
        asked = draft.choice.dtype is not None
        yield Conflict(
            left=f"option --dtype {draft.dtype}" if asked else f"checkpoint dtype {draft.dtype}",
            right="the engine (rlt-core)",
            reason=f"its range is too small for looped states; use {' or '.join(DTYPES)}",
        )


def _page_size(draft: Draft) -> Iterator[Conflict]:
    size = draft.choice.kv_page_size
    if size not in PAGE_SIZES:
        allowed = ", ".join(map(str, PAGE_SIZES))
        reason = f"a page holds a power of two of positions; it allows {allowed}"
        yield Conflict(left=f"option --page-size {size}", right=POOL, reason=reason)


def _attention(draft: Draft, registry: Registry) -> Iterator[Conflict]:
    left = registry.named(draft.attention)
    dims = head_dims(draft.shape)
    for right, reason in limit_faults(draft.attention, draft.choice, draft.dtype, dims):
        yield Conflict(left=left, right=right, reason=reason)


def _operators(draft: Draft, registry: Registry) -> Iterator[Conflict]:
    missing = [op for op, spec in draft.ops.items() if spec is None]
    if missing:
        exact = " with exact results" if draft.choice.exact else ""
        yield Conflict(
            left=f"operators {', '.join(missing)}",
            right=f"device {draft.device_type}, dtype {draft.dtype}",
            reason=f"no installed candidate serves them{exact}",
        )
    for spec in filter(None, draft.ops.values()):
        for right, reason in limit_faults(spec, draft.choice, draft.dtype, ()):
            yield Conflict(left=registry.named(spec), right=right, reason=reason)


def _graphs(draft: Draft, registry: Registry) -> Iterator[Conflict]:
    if not draft.choice.graphs:
        return
    if draft.device_type != "cuda":
        reason = "graphs are captured on a CUDA device only"
        yield Conflict(left="option --graphs", right=f"device {draft.device_type}", reason=reason)
    if Word.GRAPH_SAFE not in draft.model.provides:
        reason = "the model does not promise graph_safe"
        yield Conflict(left="option --graphs", right=registry.named(draft.model), reason=reason)
