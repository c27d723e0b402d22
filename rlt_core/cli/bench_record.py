"""The results of a benchmark on their way out: JSON lines or a table, and a bar until then."""

from __future__ import annotations

import datetime
import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import typer

from rlt_core.contract.errors import CapacityError

if TYPE_CHECKING:
    from rich.progress import Progress

    from rlt_core.bench.setting import Setting
    from rlt_core.bench.spread import Spread
    from rlt_core.plugins.plan import Plan
    from rlt_core.plugins.registry import Registry


class Recorder:
    """Prints results as JSON lines when they come, and says what was left out."""

    def __init__(
        self,
        bench: str,
        settings: Mapping[str, object],
        device: str,
        registry: Registry,
        *,
        as_json: bool,
    ) -> None:
        import torch

        from rlt_core.bench.machine import machine, versions

        self._setting = settings
        self._machine = machine(torch.device(device))
        self._head = {
            "bench": bench,
            "day": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "command": shlex.join(["rlt", *without_keys(sys.argv[1:])]),
            "machine": self._machine,
            "versions": versions(registry),
        }
        self._as_json = as_json
        self._skipped: list[str] = []

    @classmethod
    def of(
        cls,
        bench: str,
        setting: Setting,
        plan: Plan,
        registry: Registry,
        given: Mapping[str, object],
        *,
        as_json: bool,
    ) -> Recorder:
        """Of a benchmark's subject; `given` stands among the settings, beside the model and its
        parts."""
        from rlt_core.bench.setting import setting_dict

        settings = {**setting_dict(setting, plan), **given}
        return cls(bench, settings, plan.device, registry, as_json=as_json)

    def add(self, result: Mapping[str, object]) -> None:
        """One result."""
        if result.get("halts"):
            sys.stderr.write(
                f"rows parked or requests were preempted {result['halts']} times: the engine stood "
                "still for want of pages, and the times are not a steady state's\n"
            )
        if self._as_json:
            typer.echo(json.dumps({**self._head, "settings": self._setting, "results": result}))

    def skip(self, where: Mapping[str, object], error: CapacityError) -> None:
        """A point that does not fit the machine: the others go on."""
        # The error itself holds frames, and they the memory of an engine.
        self._skipped.append(str(error))
        self.add({**where, "skipped": str(error)})
        named = ", ".join(f"{key} {value}" for key, value in where.items())
        sys.stderr.write(f"{named}: skipped, {str(error).splitlines()[0]}\n")

    def end(self, num_results: int) -> None:
        """Raise where nothing could be measured."""
        if self._skipped and not num_results:
            raise CapacityError(self._skipped[0])

    def heading(self) -> str:
        """Model, machine and the parts that were taken."""
        s, m = self._setting, self._machine
        if "url" in s:
            return f"{s['served']} at {s['url']}"
        where = m.get("gpu", f"{m['cpu']}, {m['cores']} cores")
        weights = "" if s["random_weights"] is None else ", random weights"
        switches = f"exact {'on' if s['exact'] else 'off'}, graphs {'on' if s['graphs'] else 'off'}"
        return (
            f"{s['model']} ({s['folder']}){weights}, {s['loops']} loops, {s['dtype']}, "
            f"{s['kv_layout']}, attention {s['attention']}, {switches}; {where}"
        )


def without_keys(arguments: Sequence[str]) -> list[str]:
    """A command's arguments with its API key left out: records are shown to others."""
    hidden, found = False, []
    for argument in arguments:
        name, equals, _ = argument.partition("=")
        is_key = name == "--api-key"
        found.append("KEY" if hidden else f"{name}=KEY" if is_key and equals else argument)
        hidden = is_key and not equals
    return found


class Steps:
    """A bar of so many steps."""

    def __init__(self, bar: Progress, total: int) -> None:
        self._bar, self._task = bar, bar.add_task("", total=total)

    def begin(self, text: str) -> None:
        """What is measured now."""
        self._bar.update(self._task, description=text)

    def done(self, num: int = 1) -> None:
        """Steps that are behind."""
        self._bar.advance(self._task, num)


@contextmanager
def progress(total: int) -> Iterator[Steps]:
    """A bar on stderr, where that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        yield Steps(bar, total)


def spread(values: Spread, digits: int = 2) -> str:
    """median (least to most)."""
    low, mid, high = (f"{v:.{digits}f}" for v in (values.min, values.median, values.max))
    return f"{mid} ({low} to {high})"
