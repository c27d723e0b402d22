"""Random workloads for the equality matrix: requests, arrivals, aborts, one configuration each."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from rlt_core.contract.errors import ConflictError
from rlt_core.kv.accounting import request_pages
from rlt_core.schedule.record import State
from rlt_core.schedule.request import ABORT, EngineRequest, TickCounts
from tests.engines import (
    DEVICE,
    MODELS,
    Answer,
    Built,
    Setup,
    build,
    collect,
    deepest,
    load_model,
    plan_of,
)
from tests.pairwise import Row, cover
from tests.start_states import start_states

# What decides the tokens.
MEANING = {
    "model": MODELS,
    "layout": ("last_exited", "shared", "last_step", "no_fill"),
    "mode": ("skip", "full"),
    "policy": ("gate", "fixed", "trace", "latent", "kl", "argmax"),
    "dtype": ("float32", "bfloat16"),
}
# At which random models leave at every depth.
THRESHOLDS: dict[object, tuple[float, ...]] = {
    "gate": (0.3, 0.5, 0.7, 0.9, 1.0),
    "latent": (0.9, 0.6, 0.3),
    "cosine": (0.6, 0.3, 0.05),
    "entropy": (0.8, 0.4, 0.1),
    "kl": (1.5, 0.8, 0.3),
    "minp_kl": (0.6, 0.4, 0.1),
    "argmax": (1, 1, 2),
}
# What must not.
SCHEDULE: dict[str, tuple[object, ...]] = {
    "strategy": ("refill", "cohort", "pipeline", "adaptive"),
    "prompts": ("chunked", "wavefront"),
    "chunk_size": (1, 7, 16, 64),
    "page_size": (4, 16),
    "num_slots": (3, 4, 6),
    "num_places": (7, 64),
    "pool": ("large", "tiny"),
    "ticks_in_flight": (1, 2),
    "prefix_cache": (True, False),
    "swap_pages": (0, 40, 1000),
    "aborts": (False, True),
    "leave": ((1, 0), (2, 1), (3, 2)),  # min_leave, leave_places
}
if DEVICE.startswith("cuda"):
    SCHEDULE["graphs"] = (False, True)
POOL_SIZE = 8  # different requests per meaning
NUM_REQUESTS = 8  # more than there are slots
MOST_TICKS = 18  # of a prompt alone
RESIDENT = (State.PROMPT, State.DECODE)
# A request that is to be preempted always is; one that is to wait may get a slot at once.
OUTSIDE = 4 * (State.WAITING,) + 3 * (State.PREEMPTED,)
# Of the steps in which a resident loses its slot, beside what the pool forces.
PREEMPT_SHARE = 0.015
# Of the requests that ask a policy; about a third of the decode rows is to leave before D.
USE_POLICY = 0.8


def meanings(draw: random.Random) -> list[Row]:
    """A pairwise cover of what decides the tokens, without the pairs that resolve refuses."""
    return cover(MEANING, lambda row: _is_legal(Setup(**row)), draw)  # type: ignore[arg-type]


@lru_cache(maxsize=1024)
def _is_legal(setup: Setup) -> bool:
    try:
        plan_of(setup)
    except ConflictError:  # it looks for fixes, which takes long
        return False
    return True


def workable(meaning: Row, schedule: Row) -> Row:
    """The schedule, with the plain strategy or prompt mode where resolve refuses its own."""
    refill, chunked = {"strategy": "refill"}, {"prompts": "chunked"}
    for plain in ({}, refill, chunked, {**refill, **chunked}):
        row: Row = {**schedule, **plain}
        chosen = {name: row[name] for name in ("prompts", "strategy")}
        if _is_legal(Setup(**meaning, **chosen)):  # type: ignore[arg-type]  # drawn
            return row
    raise ValueError(f"no schedule for {meaning}")


def configurations(found: list[Row], count: int, draw: random.Random) -> list[Row]:
    """At least `count` rows: a pairwise cover of everything, then random ones."""
    # Meanings are one factor here: every one meets every value of every other factor.
    numbers: dict[str, tuple[object, ...]] = {"meaning": tuple(range(len(found))), **SCHEDULE}

    def legal(row: Row) -> bool:
        meaning = found[int(str(row["meaning"]))]
        chosen = {name: row[name] for name in ("prompts", "strategy")}
        return _is_legal(Setup(**meaning, **chosen))  # type: ignore[arg-type]  # drawn

    rows = cover(numbers, legal, draw)
    while len(rows) < count:
        row: Row = {name: draw.choice(values) for name, values in numbers.items()}
        if legal(row):
            rows.append(row)
    return [{**found[int(str(row.pop("meaning")))], **row} for row in rows]


@dataclass(slots=True)
class Workload:
    """Requests with the step each arrives at, and the state in which some are to be aborted."""

    setup: Setup
    requests: list[EngineRequest]
    template: dict[int, int]  # request id -> number of its template
    arrival: dict[int, int]
    abort_in: dict[int, State] = field(default_factory=dict)


def templates(meaning: Row, seed: int) -> list[EngineRequest]:
    """The different requests of one meaning; the last ones score a text."""
    draw = random.Random(f"{seed} {sorted(meaning.items(), key=str)}")
    shape, _ = load_model(str(meaning["model"]))
    stem = [draw.randrange(shape.vocab_size) for _ in range(64)]
    return [_template(meaning, i, draw, stem) for i in range(POOL_SIZE)]


def workload(row: Row, made: list[EngineRequest], draw: random.Random) -> Workload:
    """Draw one workload for a configuration."""
    row = dict(row)
    aborts, pool, leave = bool(row.pop("aborts")), row.pop("pool"), row.pop("leave")
    assert isinstance(leave, tuple)
    setup = Setup(**row, min_leave=leave[0], leave_places=leave[1])  # type: ignore[arg-type]
    fit = [t for t, request in enumerate(made) if _is_quick(setup, request, pool == "tiny")]
    chosen = [draw.choice(fit) for _ in range(NUM_REQUESTS)]
    first = draw.randrange(1000)
    requests = [
        replace(made[t], request_id=first + 7 * i, priority=draw.choice((0, 0, 0, 1)))
        for i, t in enumerate(chosen)
    ]
    ids = [request.request_id for request in requests]
    gap = draw.choice((0, 0, 0, 2) if aborts else (0, 0, 1, 3))
    load = Workload(
        setup=replace(setup, num_pages=_tiny_pool(setup, requests, draw))
        if pool == "tiny"
        else setup,
        requests=requests,
        template=dict(zip(ids, chosen, strict=True)),
        arrival={id_: gap * i + draw.randrange(gap + 1) for i, id_ in enumerate(ids)},
    )
    if aborts:
        # The last ones are those that wait.
        load.abort_in = {id_: draw.choice(RESIDENT) for id_ in draw.sample(ids[:4], 3)}
        load.abort_in |= {id_: draw.choice(OUTSIDE) for id_ in ids[4:]}
    return load


def run(load: Workload, built: Built | None = None) -> tuple[dict[int, Answer], TickCounts]:
    """Run a workload step by step; what every request got, and what the run contained."""
    built = built or build(load.setup)
    engine, answers, step = built.engine, dict[int, Answer](), 0
    waiting = sorted(load.requests, key=lambda r: load.arrival[r.request_id], reverse=True)
    draw = random.Random(f"{sorted(load.arrival)}")
    while waiting or engine.has_work:
        while waiting and load.arrival[waiting[-1].request_id] <= step:
            engine.add(waiting.pop())
        _disturb(load, built, step, draw)
        collect(answers, engine.step())
        step += 1
    pages = built.scheduler.pages
    pages.check()
    assert pages.num_free == pages.num_usable, "pages are lost"
    return answers, engine.counts


def _disturb(load: Workload, built: Built, step: int, draw: random.Random) -> None:
    """Aborts in the states asked for, and a preemption now and then."""
    records = built.scheduler.records
    for id_, state in load.abort_in.items():
        record = records.get(id_)
        if record is None or (id_ + step) % 2:
            continue
        if state is State.PREEMPTED and record.state is State.DECODE:
            built.scheduler.preempt(id_)
        if record.state is state:
            built.engine.abort(id_)
    if records and draw.random() < PREEMPT_SHARE:
        built.scheduler.preempt(draw.choice(sorted(records)))


def differences(load: Workload, found: dict[int, Answer], alone: list[Answer]) -> list[str]:
    """How answers differ from those of the same requests alone: tokens, depths, bits of logits.

    Of an aborted request the outputs so far are compared.
    """
    wrong = []
    for request in load.requests:
        id_ = request.request_id
        got, wanted = found.get(id_, Answer()), alone[load.template[id_]]
        stopped = got.finish == ABORT and id_ in load.abort_in
        if not stopped and got.finish != wanted.finish:
            wrong.append(f"{id_}: finish {got.finish}, alone {wanted.finish} {got.error}")
        length = len(got.tokens) if stopped else len(wanted.tokens)
        for name in ("tokens", "depths", "logprobs"):
            if getattr(got, name) != getattr(wanted, name)[:length]:
                wrong.append(f"{id_}: {name} {getattr(got, name)}, alone {getattr(wanted, name)}")
        if not _same_bits(got.logits, wanted.logits[:length]):
            wrong.append(f"{id_}: the logits differ in bits")
        wrong += _score_differences(id_, got, wanted, stopped)
    return wrong


def _score_differences(id_: int, got: Answer, wanted: Answer, stopped: bool) -> list[str]:
    if not stopped and set(got.scored) != set(wanted.scored):
        return [f"{id_}: scored {sorted(got.scored)}, alone {sorted(wanted.scored)}"]
    wrong = []
    for position, (depth, logprob, logits) in got.scored.items():
        same = wanted.scored[position]
        if (depth, logprob) != same[:2] or not _same_bits([logits], [same[2]]):
            wrong.append(f"{id_}: the score at {position} differs")
    return wrong


def _same_bits(found: list[Any], wanted: list[Any]) -> bool:
    if len(found) != len(wanted):
        return False
    return all(a.tobytes() == b.tobytes() for a, b in zip(found, wanted, strict=True))


def _tiny_pool(setup: Setup, requests: list[EngineRequest], draw: random.Random) -> int:
    """Pages for the largest request and little more, so that others wait and are preempted."""
    kv = build(replace(setup, num_pages=None)).kv
    most = max(
        request_pages(kv, r.loops, r.prompt_len or len(r.prompt), len(r.prompt) + r.max_tokens)
        for r in requests
    )
    return 1 + int(most * draw.choice((1.0, 1.0, 1.1)))


def _is_quick(setup: Setup, request: EngineRequest, tiny_pool: bool) -> bool:
    """Whether its prompt takes few ticks; in a tiny pool, whether it is small, for large ones
    would make the pool large, and generates (but for one): only what grows has to park."""
    length = len(request.prompt)
    chunk = 1 if setup.layout == "shared" else min(setup.chunk_size, setup.num_places)
    ticks = -(-length // chunk) * request.loops
    if not tiny_pool:
        return ticks <= MOST_TICKS
    grows = request.kind != "score" or request.request_id == POOL_SIZE - 1
    return ticks <= MOST_TICKS and grows and length <= setup.page_size + 2


def _template(meaning: Row, number: int, draw: random.Random, stem: list[int]) -> EngineRequest:
    """Prompts begin with the stem, most of them beyond a page, and go on by themselves."""
    shape, _ = load_model(str(meaning["model"]))
    serial = meaning["layout"] == "shared"
    # Around page borders; a prompt that runs position by position costs length x loops ticks.
    lengths = (3, 4, 1, 5, 2, 6, 4, 5) if serial else (3, 4, 1, 5, 17, 33, 9, 18)
    length = lengths[number]
    own = [draw.randrange(shape.vocab_size) for _ in range(length)]
    alike = min(length, draw.choice((0, 8, 33, 33)))
    prompt = np.array(stem[:alike] + own[alike:], np.int64)
    loops = shape.loops if draw.random() < 0.7 else draw.randint(2, deepest(shape))
    least = draw.choice((1, 1, 1, 2))
    most = loops if draw.random() < 0.85 else draw.randint(least, loops)
    outputs = draw.randint(5, 7) if number < 3 else draw.randint(2, 3)
    fields: dict[str, Any] = {
        "loops": loops,
        "min_loops": least,
        "max_loops": most,
        "use_policy": draw.random() < USE_POLICY,
        "state_seed": draw.choice((0, 0, 0, 1, 2)),
    }
    if meaning["policy"] in THRESHOLDS:
        threshold = draw.choice(THRESHOLDS[meaning["policy"]])
        fields["exit_params"] = {"exit_threshold": threshold}
    if meaning["policy"] == "trace":
        deep = [
            draw.choice((draw.randint(1, loops), loops, loops)) for _ in range(length + outputs)
        ]
        fields["trace"] = np.array(deep, np.int32)
    fields |= _options(meaning, draw)
    if number >= POOL_SIZE - 2:
        border = draw.randint(0, length)
        return EngineRequest(
            request_id=number, prompt=prompt, kind="score", prompt_len=border, **fields
        )
    return EngineRequest(
        request_id=number, prompt=prompt, max_tokens=outputs, **fields, **_sampling(shape, draw)
    )


def _options(meaning: Row, draw: random.Random) -> dict[str, Any]:
    """Options of a model that has them, for half of its requests: warm starts and tables too."""
    plan = plan_of(Setup(**meaning))  # type: ignore[arg-type]
    if not plan.model.options or draw.random() < 0.5:
        return {}
    options: dict[str, bool | float] = {"state_scale": draw.choice((0.0, 0.5, 1.0))}
    options["warm_start"] = draw.random() < 0.6
    widths = plan.shape.table_widths.items() if draw.random() < 0.4 else ()
    return {
        "options": options,
        "tables": {name: start_states(width, draw.randrange(3)) for name, width in widths},
    }


def _sampling(shape: Any, draw: random.Random) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if draw.random() < 0.5:
        fields |= {"temperature": draw.choice((0.5, 1.0, 1.5)), "seed": draw.randrange(-9, 9)}
        fields |= {"top_k": draw.choice((0, 5)), "top_p": draw.choice((1.0, 0.9))}
    if draw.random() < 0.4:
        fields["repetition_penalty"] = 1.3
        fields["presence_penalty"] = draw.choice((0.0, 0.5))
        fields["frequency_penalty"] = draw.choice((0.0, 0.4))
    if draw.random() < 0.2:
        fields["logit_bias"] = {draw.randrange(shape.vocab_size): 3.0}
    if draw.random() < 0.3:
        fields["stop_ids"] = tuple(draw.sample(range(shape.vocab_size), 12))
    return fields
