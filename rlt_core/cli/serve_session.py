"""One `rlt serve`: settings checked, port bound, model loaded, served until the end."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from typing import Any

import typer

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.contract.errors import OptionError
from rlt_core.server.keys import VARIABLE, read_keys
from rlt_core.server.logs import set_up_logs
from rlt_core.server.run import Service, bind
from rlt_core.server.settings import ServerSettings, check_seconds

# Options of the engine that the command calls otherwise.
_TYPED = {"hang_s": "hang-timeout", "ops": "op", "prompts": "prompt-mode"}


class ServeSession:
    """What was asked for is checked here, before a port is bound or a weight is read."""

    def __init__(
        self,
        model: str | None,
        engine: dict[str, Any],
        server: dict[str, Any],
        *,
        api_key_file: str | None,
    ) -> None:
        keys = read_keys(api_key_file, os.environ)
        # The stage is a process of its own and needs none.
        os.environ.pop(VARIABLE, None)
        self._is_demo = model is None
        self._settings = ServerSettings(keys=keys, **server)
        self._llm = _engine(model, engine)
        if self._settings.chat_template is not None:
            self._llm.chat.checked_template(self._settings.chat_template)

    def run(self, *, access_log: bool) -> int:
        """Serves; the exit code."""
        listening = bind(self._settings)
        self._settings = replace(self._settings, port=listening.getsockname()[1])
        set_up_logs(access=access_log)
        self._announce()
        return asyncio.run(self._serve(Service(self._llm, self._settings, listening)))

    async def _serve(self, service: Service) -> int:
        return await service.run(self._is_ready, self._ends)

    def _announce(self) -> None:
        if self._is_demo:
            _say("no model named: the embedded demo is served")
        settings = self._settings
        _say(f"{settings.url} (loading {self._llm.name})")
        if settings.is_public and not settings.keys:
            _say("everybody who reaches this machine may use it: there is no API key")

    def _is_ready(self) -> None:
        report, settings = self._llm.report, self._settings
        for note in self._llm.notes:
            _say(note)
        num_keys = len(settings.keys)
        keys = f"{num_keys} API key{'s' * (num_keys > 1)}" if num_keys else "no API key is needed"
        _say(
            f"ready: {report.model} ({report.loops} loops, {report.device}, {report.dtype}) at "
            f"{settings.url}, {keys}"
        )

    def _ends(self, num_open: int) -> None:
        answers = f"{num_open} answer{'s' * (num_open != 1)} in work"
        if not num_open:
            _say("ending: no answer is in work")
        elif not self._settings.drain_s:
            _say(f"ending: {answers}, not waited for (--drain-timeout 0)")
        else:
            seconds = f"{self._settings.drain_s:g} s"
            _say(f"ending: waiting up to {seconds} for {answers}; Ctrl-C again ends at once")


def _engine(model: str | None, options: dict[str, Any]) -> AsyncLLM:
    """OptionErrors name the options as they are typed."""
    if options["hang_s"] is not None:
        check_seconds("--hang-timeout", options["hang_s"], none=True)
    try:
        return AsyncLLM(model, **options)
    except OptionError as error:
        if error.option not in options:
            raise
        name = _TYPED.get(error.option, error.option.replace("_", "-"))
        raise OptionError(f"--{name}", error.value, error.reason, error.fix) from error


def _say(text: str) -> None:
    typer.echo(text, err=True)
