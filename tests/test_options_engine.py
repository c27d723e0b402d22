"""A model's own options in the engine: start states, tables and warm starts, on variant "a"."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlt_core.contract.errors import PluginError, RequestError
from rlt_core.plugins.plan import ExitMode
from rlt_core.runtime.context import Launch
from rlt_core.runtime.option_columns import MAX_TABLES
from rlt_core.runtime.table_file import TableFile, read_table
from rlt_core.schedule.request import EngineRequest
from rlt_core.testing.tiny_model import TinyModel
from tests.dense import Options
from tests.engines import (
    Answer,
    Built,
    Setup,
    build,
    collect,
    greedy,
    run_alone,
    run_together,
)
from tests.reference import Exit, generate
from tests.selection import mostly_slow
from tests.start_states import start_states
from tests.test_reference import COMBINATIONS, wide_model

PROMPT, NUM_OUTPUTS, WIDTH = [3, 77, 140, 9, 5], 5, 32
THRESHOLD = {"exit_threshold": 0.5}
SETUP = Setup(chunk_size=3, page_size=4)


def ask(request_id: int, setup: Setup = SETUP, **fields: Any) -> EngineRequest:
    return greedy(request_id, PROMPT, NUM_OUTPUTS, setup, exit_params=THRESHOLD, **fields)


def variants() -> list[dict[str, Any]]:
    """Request fields that give different texts, each option alone and together."""
    file = {"state_table": start_states(WIDTH, 1)}
    return [
        {},
        {"options": {"state_scale": 0.0}},
        {"tables": file},
        {"options": {"warm_start": True, "state_scale": 0.5}, "state_seed": 2},
        {"options": {"warm_start": True}, "tables": file},
    ]


def dense_options(fields: dict[str, Any]) -> Options:
    files = fields.get("tables", {}).items()
    values = fields.get("options", {})
    return Options(
        state_seed=fields.get("state_seed", 0),
        values=values,
        tables={n: torch.as_tensor(read_table(n, file.path).values) for n, file in files},
        chains=values.get("warm_start", False),
    )


def same(found: Answer, wanted: Answer) -> bool:
    bits = [row.tobytes() for row in found.logits] == [row.tobytes() for row in wanted.logits]
    return bits and (found.tokens, found.depths) == (wanted.tokens, wanted.depths)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "mode"), COMBINATIONS)
def test_options_against_the_reference(layout: str, mode: ExitMode) -> None:
    """Scale, table and the state handed on, all together in chunks, per layout and mode; a warm
    start that reads a wrong predecessor or misses the prompt's last one gives other tokens (A47).
    """
    setup, given = replace(SETUP, layout=layout, mode=mode), variants()
    found = run_together(build(setup), [ask(i, setup, **f) for i, f in enumerate(given)])
    model, exits = wide_model("tiny_a"), Exit(policy="gate", threshold=0.5, loops=5)
    rules: dict[str, Any] = {"layout": layout, "full": mode == "full"}
    for i, fields in enumerate(given):
        own = dense_options(fields)
        wanted = generate(model, PROMPT, NUM_OUTPUTS, exits, options=own, **rules)
        assert (found[i].tokens, found[i].depths) == (wanted.tokens, wanted.depths), fields
        # A state handed on hands float32's rounding on too; a wrong one is off by 0.1 and more.
        right = torch.stack(wanted.logits).numpy()
        assert np.abs(np.stack(found[i].logits) - right).max() < 1e-2, fields
    # So different that a mixed-up option would have shown.
    assert len({answer.logits[-1].tobytes() for answer in found.values()}) == len(given)


def _with_preemptions(built: Built, requests: list[EngineRequest]) -> dict[int, Answer]:
    """Each request loses its slot whenever it has got two further outputs."""
    answers: dict[int, Answer] = {}
    for request in requests:
        built.engine.add(request)
    seen = dict.fromkeys((request.request_id for request in requests), 0)
    while built.engine.has_work:
        collect(answers, built.engine.step())
        for request_id, answer in answers.items():
            if len(answer.tokens) >= seen[request_id] + 2:
                seen[request_id] = len(answer.tokens)
                built.scheduler.preempt(request_id)
    return answers


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "mode"), COMBINATIONS)
def test_a_replay_hands_on_the_same_states(layout: str, mode: ExitMode) -> None:
    """A preempted request is recomputed to the bit: forced rows of a warm start run one by one,
    each from the state of the one before, and tables stay where they are (A16)."""
    setup = replace(SETUP, layout=layout, mode=mode, num_slots=3)
    # The plain one in between takes places that the others' rows lay in.
    given = [variants()[i] for i in (3, 0, 4)]
    requests = [ask(i, setup, **fields) for i, fields in enumerate(given)]
    built = build(setup)
    alone = {r.request_id: run_alone(built, r) for r in requests}
    found = _with_preemptions(built, requests)
    assert built.engine.counts.preemptions >= 2 * len(requests)
    assert [i for i in alone if not same(found[i], alone[i])] == []


def test_only_chained_requests_are_replayed_one_by_one() -> None:
    """A serial replay costs a tick a loop and token: the others must keep their chunks."""
    built = build(SETUP)
    residency = built.scheduler._residency
    given: tuple[dict[str, Any], ...] = ({}, {"options": {"warm_start": True}})
    for i, fields in enumerate(given):
        built.engine.add(ask(i, **fields))
        record = residency.records[i]
        record.tokens = np.array([4, 5, 6], np.int32)
        record.depths = np.array([5, 1, 2], np.int32)
        forced = residency._forced(record)
        assert (forced.one_by_one(5), forced.segment_end(0)) == ((False, 7), (True, 5))[i]
        assert not forced.one_by_one(0)


def test_an_option_left_out_changes_nothing() -> None:
    """Explicit defaults are the same request, bit for bit."""
    defaults = {"state_scale": 1.0, "warm_start": False}
    found = run_together(build(SETUP), [ask(0), ask(1, options=defaults, state_seed=0)])
    assert same(found[0], found[1])


def test_siblings_share_the_start_states() -> None:
    """The sampling seed is apart from the state seed: another one draws other tokens, from logits
    that are the same to the bit (A47)."""
    seeds = [ask(i, temperature=1.0, seed=i) for i in range(4)]
    found = run_together(build(SETUP), seeds)
    first = {found[i].logits[0].tobytes() for i in range(4)}
    assert len(first) == 1
    assert len({tuple(answer.tokens) for answer in found.values()}) > 1


@pytest.mark.parametrize("layout", mostly_slow(["last_exited", "shared", "last_step"]))
def test_score_with_a_warm_start(layout: str) -> None:
    """Scored positions past the prompt start from their predecessors, like generated ones; a
    text without a prompt begins with none. Chunk size and company change no bit."""
    setup = replace(SETUP, layout=layout)
    text = np.array([*PROMPT, 17, 201, 64, 8], np.int64)
    file = {"state_table": start_states(WIDTH, 2, len(text))}
    requests = [
        EngineRequest(
            request_id=i,
            prompt=text,
            kind="score",
            prompt_len=border,
            loops=5,
            max_loops=5,
            exit_params=THRESHOLD,
            options={"warm_start": True},
            tables=file if border else {},
        )
        for i, border in enumerate((5, 0))
    ]
    found = run_together(build(setup), requests)
    wanted = generate(
        wide_model("tiny_a"),
        text[:5].tolist(),
        4,
        Exit(policy="gate", threshold=0.5, loops=5),
        layout=layout,
        known=text[5:].tolist(),
        options=dense_options({"options": {"warm_start": True}, "tables": file}),
    )
    assert [found[0].scored[p][0] for p in range(4, 8)] == wanted.depths
    for position, right in zip(range(4, 8), wanted.logits, strict=True):
        assert np.abs(found[0].scored[position][2] - right.numpy()).max() < 1e-2
    other = build(replace(setup, chunk_size=1, page_size=16))
    for request in requests:
        alone = run_alone(other, request)
        for position, (depth, _, logits) in found[request.request_id].scored.items():
            assert alone.scored[position][0] == depth
            assert alone.scored[position][2].tobytes() == logits.tobytes()


@pytest.mark.slow
def test_tables_are_kept_apart_and_given_up() -> None:
    """Requests with different tables run together and again in the places of those before; an
    abort gives a place back as well. A place that is not released would run out (A25)."""
    built = build(SETUP)
    files = [start_states(WIDTH, seed) for seed in range(2 * MAX_TABLES)]
    alone = [run_alone(build(SETUP), ask(0, tables={"state_table": f})) for f in files[:3]]
    for turn in range(0, len(files), MAX_TABLES):
        # In reverse in the second turn: those that are looked at get other places.
        mine = [*files[:3], *files[turn + 3 : turn + MAX_TABLES]][:: 1 if not turn else -1]
        for i, file in enumerate(mine):
            built.engine.add(ask(i, tables={"state_table": file}))
        answers: dict[int, Answer] = {}
        collect(answers, built.engine.step())
        for i, file in enumerate(mine):
            if file not in files[:3]:
                built.engine.abort(i)
        while built.engine.has_work:
            collect(answers, built.engine.step())
        assert all(same(answers[mine.index(files[i])], alone[i]) for i in range(3))
        assert len(built.scheduler._residency.options.tables) == 0
    assert len({tuple(answer.tokens) for answer in alone}) == 3


def test_a_table_more_than_there_are_places() -> None:
    """The limit is an error of that request alone; a table in use is shared, not counted twice."""
    built = build(SETUP)
    files = [start_states(WIDTH, seed, 12) for seed in range(MAX_TABLES + 1)]
    for i, file in enumerate(files[:-1]):
        built.engine.add(ask(i, tables={"state_table": file}))
    with pytest.raises(RequestError, match=f"state_table: {MAX_TABLES} other tables are in use"):
        built.engine.add(ask(50, tables={"state_table": files[-1]}))
    built.engine.add(ask(51, tables={"state_table": files[3]}))
    for i in range(MAX_TABLES):
        built.engine.abort(i)
    built.engine.add(ask(50, tables={"state_table": files[-1]}))
    answers: dict[int, Answer] = {}
    while built.engine.has_work:
        collect(answers, built.engine.step())
    assert len(answers[50].tokens) == len(answers[51].tokens) == NUM_OUTPUTS


def test_files_that_the_stage_cannot_use(tmp_path: Path) -> None:
    """What changed or went away between client and stage fails its request and holds no place."""
    built, good = build(SETUP), start_states(WIDTH, 1)
    short = start_states(WIDTH, 2, 9)
    gone = TableFile(path=str(tmp_path / "gone.npy"), digest="")
    for file, reason in (
        (gone, "there is no file"),
        (replace(good, digest="other"), "changed after the request was made"),
        (short, "has 9 rows; prompt and outputs may take 10 positions"),
    ):
        with pytest.raises(RequestError, match=reason) as caught:
            built.engine.add(ask(0, tables={"state_table": file}))
        assert caught.value.field == "state_table"
    assert len(built.scheduler._residency.options.tables) == 0
    assert len(run_alone(built, ask(0, tables={"state_table": good})).tokens) == NUM_OUTPUTS


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"options": {"warmstart": True}}, "warmstart"),
        ({"options": {"state_scale": float("nan")}}, "state_scale"),
        ({"tables": {"start": TableFile(path="x", digest="")}}, "start"),
    ],
)
def test_options_that_the_engine_refuses(fields: dict[str, Any], field: str) -> None:
    """Another client may send anything: an unknown name must not be ignored."""
    with pytest.raises(RequestError) as caught:
        build(SETUP).engine.add(ask(0, **fields))
    assert caught.value.field == field
    with pytest.raises(RequestError, match="declares no such"):
        build(replace(SETUP, model="tiny_b")).engine.add(ask(0, loops=3, options={"x": 1}))


@pytest.mark.parametrize("mode", ["skip", "full"])
def test_a_strategy_that_guesses_leaves_chains_alone(mode: ExitMode) -> None:
    """A guess would enter before the state that it starts from exists: chained requests get what
    plain refill gives them, and nothing is guessed for them."""
    setup = replace(SETUP, mode=mode, layout="last_exited")
    asked = ask(0, options={"warm_start": True})
    wanted = run_alone(build(setup), asked)
    built = build(replace(setup, strategy="pipeline"))
    found = run_alone(built, asked)
    assert (found.tokens, found.depths) == (wanted.tokens, wanted.depths)
    assert built.engine.counts.guesses_checked == 0


def test_a_model_asks_for_what_it_did_not_declare(monkeypatch: pytest.MonkeyPatch) -> None:
    """A misspelt option in a model is its plugin's error, with the names that there are; the
    state before is there in the prelude alone, where it still is one."""
    wrong = {
        "it declares state_seed, state_scale, warm_start": lambda ctx: ctx.option("scale"),
        "the table 'state_scale'; it declares state_table": lambda ctx: ctx.option_table(
            "state_scale"
        ),
    }
    for reason, asks in wrong.items():
        monkeypatch.setattr(TinyModel, "_start", lambda self, x, ctx, asks=asks: asks(ctx))
        with pytest.raises(PluginError, match=reason):
            run_alone(build(SETUP), ask(0))
    monkeypatch.undo()
    monkeypatch.setattr(TinyModel, "head", lambda self, state, ctx: ctx.previous())
    with pytest.raises(PluginError, match="outside the prelude"):
        run_alone(build(SETUP), ask(0))


def test_without_options_nothing_is_kept() -> None:
    """A model without options pays nothing: no tensor, no column, no copy of a last state."""
    built = build(replace(SETUP, model="tiny_b"))
    assert built.executor.slots.options is None
    built.engine.add(ask(0, loops=3))
    tick = built.scheduler.next_tick()
    assert tick is not None
    assert tick.admitted is not None
    assert tick.admitted.options is None
    assert built.executor.inputs(tick).tail is None


def test_the_state_before_is_zeros_where_it_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of other requests, and prompt rows, must not see a state that is not theirs."""
    right, shown = Launch.previous, []

    def previous(self: Launch) -> Any:
        state, given = right(self)
        shown.append((self.positions[given], state[~given]))
        return state, given

    monkeypatch.setattr(Launch, "previous", previous)
    longer = greedy(0, PROMPT * 2, 2, SETUP, exit_params=THRESHOLD)
    run_together(build(SETUP), [longer, ask(1, options={"warm_start": True})])
    assert {int(p) for positions, _ in shown for p in positions} == {5, 6, 7, 8, 9}
    assert all(not hidden.any() for _, hidden in shown)
