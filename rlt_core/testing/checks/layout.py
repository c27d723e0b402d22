"""Checks of a KV layout: its tables by themselves, then in an engine against plain tensors."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from rlt_core.contract.capabilities import Word
from rlt_core.contract.layouts import LayoutTables, PlaneRule
from rlt_core.contract.specs import KVLayoutSpec
from rlt_core.kv.layouts import checked_tables
from rlt_core.plugins.plan import ExitMode
from rlt_core.testing.checks.check import check, expect
from rlt_core.testing.checks.dense import DenseText
from rlt_core.testing.checks.plugin import check_factories_load
from rlt_core.testing.checks.stand_in import StandIn
from rlt_core.testing.checks.subjects import SEED, PartSubject
from rlt_core.testing.checks.trial import Trial, requests_of

Layout = PartSubject[KVLayoutSpec]
LOOPS = range(1, 7)
TOLERANCE = 1e-3


@check("layout", after=(check_factories_load,))
def check_layout_tables(layout: Layout) -> None:
    """The tables of 1 to 6 loops can be run, and are the same whenever they are asked for.

    If this fails: the message says which table; LayoutTables and PlaneRule in docs/hooks.md say
    what each entry means.
    """
    made = layout.make()
    for loops in LOOPS:
        tables = made.tables(loops)
        expect(isinstance(tables, LayoutTables), "LayoutTables", type(tables).__name__)
        checked_tables(layout.name, made, loops)
        again = layout.make().tables(loops)
        expect(again == tables, f"the same tables for {loops} loops every time", "others")


@check("layout", after=(check_layout_tables,))
def check_layout_reads_written(layout: Layout) -> None:
    """Every plane that a loop reads was written, or filled by the exit, at each earlier position.

    If this fails: add the plane to `fill` of that exit, read another one, or keep it after the
    prompt; without variable_depth only exits at full depth are looked at.
    """
    exits = layout.promises(Word.VARIABLE_DEPTH)
    for loops in LOOPS:
        for fault in _unwritten(layout.make().tables(loops), loops, exits=exits):
            expect(False, f"{loops} loops: only planes that hold values are read", fault)


@check("layout", after=(check_layout_tables,))
def check_layout_planes_used(layout: Layout) -> None:
    """No page is kept for a plane that nobody reads: memory is what the tables say.

    If this fails: lower num_planes, or leave the plane out of `kept`.
    """
    for loops in LOOPS:
        tables = layout.make().tables(loops)
        unread = {*range(tables.num_planes)} - {*tables.prompt.read} - {*tables.decode.read}
        expect(not unread, f"{loops} loops: every plane to be read", f"{sorted(unread)} are not")
        idle = {*tables.kept} - {*tables.decode.read}
        expect(not idle, f"{loops} loops: every kept plane to be read", f"{sorted(idle)} are not")


@check("layout", after=(check_layout_tables,))
def check_layout_words(layout: Layout) -> None:
    """The words that the layout provides are what its tables do.

    If this fails: leave the word out of `provides`, or change the tables to keep its promise.
    """
    for loops in LOOPS:
        tables = layout.make().tables(loops)
        for word, holds, wants in _promises(tables, loops):
            kept = holds or not layout.promises(word)
            expect(kept, f"{word.value} at {loops} loops: {wants}", _summary(tables))


@check("layout", after=(check_layout_reads_written, check_layout_planes_used, check_layout_words))
def check_layout_tokens(layout: Layout) -> None:
    """In an engine, in chunks and a pool for one, it gives what its tables say in plain tensors.

    If this fails: an engine asks once for the tables of every number of loops and keeps them, so
    those of one must not change with another's; the rules are those of docs/hooks.md (PlaneRule).
    """
    modes: tuple[ExitMode, ...] = ("skip", "full")
    for mode in modes if layout.promises(Word.FULL_DEPTH_KV) else modes[:1]:
        _expect_tokens(layout, mode)


def _expect_tokens(layout: Layout, mode: ExitMode) -> None:
    own, exits = StandIn(layout.bench.registry), layout.promises(Word.VARIABLE_DEPTH)
    policy = "trace" if exits else "fixed"
    plan = own.plan(kv_layout=layout.name, exit_mode=mode, exit_policy=policy)
    requests = requests_of(plan, (6, 3), 5, SEED, temperature=0.0)
    answers = Trial(plan=plan, model=own.model, chunk_size=4, smallest=True).run(requests)
    for request in requests:
        answer, tables = answers[request.request_id], layout.make().tables(request.loops)
        expect(not answer.error, f"mode {mode} to run", answer.error)
        depths = [request.loops] * 5 if request.trace is None else request.trace.tolist()
        depths = [request.loops, *depths[1:]] if mode == "skip" else depths
        text = DenseText(own.model, tables, len(request.prompt) + 5)
        tokens, logits = text.generate(request.prompt.tolist(), depths, full=mode == "full")
        what = f"mode {mode}, exits at {depths}"
        expect(answer.depths == depths, f"{what}: these depths", answer.depths)
        apart = float((torch.tensor(np.array(answer.logits)) - logits).abs().max())
        close = answer.tokens == tokens and apart < TOLERANCE
        expect(close, f"{what}: tokens {tokens}", f"{answer.tokens}, logits {apart:.1e} apart")


def _unwritten(tables: LayoutTables, loops: int, *, exits: bool) -> Iterator[str]:
    prompt, hidden = tables.prompt, tables.missing == "hidden"
    for depth in range(1, loops + 1):
        # An earlier position of the same chunk has run no more loops than the reader.
        done = depth if tables.prompt_order == "depth" else loops
        if prompt.read[depth - 1] not in prompt.write[:done]:
            yield f"prompt loop {depth} reads plane {prompt.read[depth - 1]} before it is written"
    for left in range(1 if exits else loops, loops + 1):
        for depth in range(1, loops + 1):
            plane = tables.decode.read[depth - 1]
            seen = not hidden or plane < left
            if seen and plane not in _holds(tables.decode, left):
                yield f"loop {depth} reads plane {plane} of a token that left at {left}"
    held = {*prompt.write} & {*tables.kept}
    for depth, plane in enumerate(tables.decode.read, 1):
        if plane not in held:
            yield f"loop {depth} of a generated token reads plane {plane} of the prompt"


def _holds(rule: PlaneRule, left: int) -> set[int]:
    return {*rule.write[:left], *rule.fill[left - 1]}


def _promises(tables: LayoutTables, loops: int) -> Iterator[tuple[Word, bool, str]]:
    decode = tables.decode
    apart = not tables.replay_is_serial
    yield Word.DEPTHS_APART, apart, "each depth of a generated token has a plane of its own"
    whole = apart and {*decode.write} <= {*tables.kept}
    yield Word.FULL_DEPTH_KV, whole, "every depth has a plane of its own, and it is kept"
    by_depth = tables.prompt_order == "depth"
    yield Word.PROMPT_BY_DEPTH, by_depth, "prompt_order is 'depth'"


def _summary(tables: LayoutTables) -> str:
    rule = tables.decode
    kept, order = tables.kept, tables.prompt_order
    return f"decode writes {rule.write}, reads {rule.read}; kept {kept}; prompt_order {order!r}"
