"""The host is not in the loop: a tick reads nothing back, copies no number to the device, and no
shape depends on data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlt_core.runtime.tick import TickProgram
from rlt_core.runtime.tick_rows import TickTensors
from rlt_core.testing.checks.host_reads import HostNumbers, LightMode
from tests.engines import Built, Setup, build, collect, greedy
from tests.selection import mostly_slow

MAX_LEN = 64
FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "item")


class NoHostReads(LightMode):
    """Counts operators; raises on host reads, on numbers that would be copied to a GPU and on
    shapes that depend on data."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it bare
        self.count, self._numbers = 0, HostNumbers()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in FORBIDDEN:
            raise AssertionError(f"the tick calls {name}")
        # A mask among the indices hides its nonzero inside the operator.
        if name in ("index", "index_put", "index_put_") and any(
            isinstance(i, torch.Tensor) and i.dtype == torch.bool for i in args[1]
        ):
            raise AssertionError(f"the tick calls {name} with a mask")
        self.count += 1
        out = func(*args, **(kwargs or {}))
        if self._numbers.copied(name, args, out):
            raise AssertionError(f"the tick calls {name} with a number of the host's")
        return out


def watched(built: Built, seen: list[int]) -> Callable[[TickTensors], Any]:
    """The engine's tick program under the mode; `seen` gets the operators of pure decode ticks."""
    program: TickProgram = built.executor.program

    def run(tick: TickTensors) -> Any:
        with NoHostReads() as mode:
            out = program(tick)
        if not tick.has_prompt:
            seen.append(mode.count)
        return out

    return run


def decode_counts(num_rows: int, setup: Setup) -> list[int]:
    """Operators of each decode tick with `num_rows` resident requests."""
    built, seen = build(setup), list[int]()
    built.executor.program = watched(built, seen)  # type: ignore[assignment]
    for i in range(num_rows):
        built.engine.add(greedy(i, [1 + i % 7, 2], 4, setup, exit_params={"exit_threshold": 0.6}))
    while built.engine.has_work:
        collect({}, built.engine.step())
    return seen


CASES = [
    ("ouro_b", "last_exited", "skip", "gate", "refill"),
    ("tiny_a", "last_exited", "full", "gate", "cohort"),
    ("tiny_b", "last_step", "skip", "gate", "refill"),
    ("ouro_a", "shared", "skip", "gate", "cohort"),
    ("tiny_b", "no_fill", "skip", "minp_kl", "refill"),
    ("ouro_b", "no_fill", "skip", "latent", "cohort"),
    ("tiny_b", "last_exited", "full", "argmax", "refill"),
    ("ouro_b", "last_exited", "skip", "gate", "pipeline"),
    ("huginn_a", "last_exited", "full", "latent", "pipeline"),
]


@pytest.mark.parametrize(
    ("model", "layout", "mode", "policy", "strategy"), mostly_slow(CASES, CASES[0], CASES[5])
)
def test_a_tick_reads_nothing_back(
    model: str, layout: str, mode: Any, policy: str, strategy: str
) -> None:
    """One value read in a tick stalls the device and cannot be captured in a graph, nor can
    `tensor[index] = number`, which copies the number from the host."""
    setup = Setup(
        model=model, layout=layout, mode=mode, policy=policy, strategy=strategy, max_len=MAX_LEN
    )
    assert decode_counts(6, setup)


@pytest.mark.slow
def test_operator_count_is_the_same_at_8_and_256_rows() -> None:
    """A Python loop over rows, slots or tiles would show as more operators."""
    counts = {
        rows: set(
            decode_counts(
                rows, Setup(model="ouro_b", num_slots=rows, num_places=2 * rows, max_len=MAX_LEN)
            )
        )
        for rows in (8, 256)
    }
    assert counts[8] == counts[256]
    assert len(counts[8]) == 1


@pytest.mark.parametrize("kind", ["generate", "score"])
def test_prompts_alone_run_what_they_need(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ticks of a prompt between its first loop and its last ran prelude, coda and head of no row:
    nearly half of their operators."""
    setup, called = Setup(policy="fixed", ticks_in_flight=1, max_len=MAX_LEN), list[str]()
    built = build(setup)
    model = built.executor.program.model
    for name in ("prelude", "loop", "coda", "head"):
        monkeypatch.setattr(model, name, _noted(getattr(model, name), name, called))
    request = greedy(0, [3, 1, 2], 0 if kind == "score" else 1, setup, kind=kind)
    built.engine.add(request)
    ticks = []
    for _ in range(request.loops):
        built.engine.step()
        ticks.append(" ".join(dict.fromkeys(called)))
        called.clear()
    middle = ["loop"] * (request.loops - 2)
    assert ticks == ["prelude loop", *middle, "loop coda head"]


def _noted(method: Callable[..., Any], name: str, called: list[str]) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        called.append(name)
        return method(*args, **options)

    return run
