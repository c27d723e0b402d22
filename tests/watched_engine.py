"""The real engine of the demo, with a diary of what it was told and what its ticks held."""

from __future__ import annotations

from typing import cast

from rlt_core.runtime.batch import TickInput
from rlt_core.runtime.executor import Executor
from rlt_core.schedule.engine import Engine
from rlt_core.stage.build import build_engine
from rlt_core.stage.config import StageConfig
from rlt_core.stage.stage import BuiltEngine

# Of the engine made last: ("tick", ids of the requests in it) or ("abort", {id}).
DIARY: list[tuple[str, frozenset[int]]] = []


def build(config: StageConfig) -> BuiltEngine:
    """Named by `engine_factory`; in the test's own process, so that the diary can be read."""
    DIARY.clear()
    built = build_engine(config)
    engine = cast(Engine, built.engine)
    _watch_ticks(engine, cast(Executor, engine._executor))
    _watch_aborts(engine)
    return built


def _watch_ticks(engine: Engine, executor: Executor) -> None:
    submit, table = executor.submit, engine._scheduler._residency.table

    def watched(tick: TickInput) -> None:
        slots = {*tick.decode_slots.tolist(), *tick.prompt.slot.tolist()}
        owners = frozenset(int(table.request_id[slot]) for slot in slots)
        DIARY.append(("tick", owners))
        submit(tick)

    executor.submit = watched  # type: ignore[method-assign]


def _watch_aborts(engine: Engine) -> None:
    abort = engine.abort

    def watched(request_id: int) -> None:
        DIARY.append(("abort", frozenset({request_id})))
        abort(request_id)

    engine.abort = watched  # type: ignore[method-assign]
