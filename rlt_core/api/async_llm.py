"""AsyncLLM: a looped model behind an object of an event loop, for servers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rlt_core.api.access import open_model
from rlt_core.api.async_requests import AsyncRequests
from rlt_core.api.async_stream import AsyncStream
from rlt_core.api.chat import ChatFormat
from rlt_core.api.observer import NoObserver, Observer
from rlt_core.api.option_kinds import read_option, read_options
from rlt_core.api.outputs import RequestOutput, ScoreOutput
from rlt_core.api.prompts import Prompt, check_single, spread_params
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.api.served_stage import NOT_STARTED, ServedStage
from rlt_core.api.tokenizer import Tokenizer, decode_all
from rlt_core.contract.errors import OptionError, RequestError, StageError
from rlt_core.schedule.stats import EngineStats
from rlt_core.stage.messages import StageReport

HANG_S = 120.0


class AsyncLLM:
    """A looped model, the stage that runs it, and what keeps both up.

    model, tokenizer, in_process and the other options are those of `LLM`. max_waiting: answers
    that may wait for a slot beyond those that run (None: four times the slots); more are refused
    with a BusyError. restart: a stage that ends is started again, with growing pauses while it
    keeps ending. hang_s: a stage process that answers nothing for so long is taken for hung, and
    ended.

    `start` and everything after it belong to one event loop; in another one they are refused with
    a StageError, until `start` has run there. Prompts are read in threads, and answers become text
    in another.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        tokenizer: object = None,
        max_waiting: int | None = None,
        restart: bool = True,
        hang_s: float | None = HANG_S,
        in_process: bool = False,
        **options: Any,
    ) -> None:
        own = {"max_waiting": max_waiting, "restart": restart, "hang_s": hang_s}
        read = read_options(AsyncLLM.__init__, {**own, "in_process": in_process})
        if read["hang_s"] is not None and read["hang_s"] <= 0:
            raise OptionError("hang_s", hang_s, "it must be above 0")
        self._access = open_model(AsyncLLM, model, tokenizer, options)
        self._name = "demo" if model is None else Path(os.fspath(model)).name or os.fspath(model)
        self._stage = ServedStage(
            self._access.config,
            in_process=read["in_process"],
            restart=read["restart"],
            hang_s=read["hang_s"],
        )
        self._max_waiting = read["max_waiting"]
        self._observer: Observer = NoObserver()
        self._requests: AsyncRequests | None = None

    @property
    def name(self) -> str:
        """What the model is called: its id, or its folder's name; "demo" for the embedded one."""
        return self._name

    @property
    def model_path(self) -> str | None:
        """The checkpoint's folder."""
        return self._access.config.model_path

    @property
    def tokenizer(self) -> Tokenizer | None:
        """What reads prompts and writes answers."""
        return self._access.tokenizer

    @property
    def chat(self) -> ChatFormat:
        """Makes prompts of conversations: `stream(llm.chat.conversation(messages))`."""
        return self._access.chat

    @property
    def report(self) -> StageReport:
        """What the stage serves and how much fits; StageError before it has ever served."""
        if self._stage.report is None:
            raise StageError(self.reason or "the stage is starting")
        return self._stage.report

    @property
    def known_report(self) -> StageReport | None:
        """The report, or None before a stage has ever served."""
        return self._stage.report

    @property
    def loops(self) -> int:
        """The model's own depth D."""
        return self.report.loops

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on everything that the system picked itself."""
        return self.report.notes

    @property
    def ready(self) -> bool:
        """Whether requests are taken and a stage serves them."""
        return not self.reason

    @property
    def reason(self) -> str:
        """Why it is not ready; empty when it is."""
        if self._requests is not None and self._requests.closed:
            return "the server is shutting down"
        return self._stage.reason

    @property
    def num_open(self) -> int:
        """Answers in work, those that wait included."""
        return 0 if self._requests is None else self._requests.num_open

    @property
    def num_running(self) -> int:
        """Answers in work that have a slot, as far as the number of slots tells."""
        return min(self.num_open, self.report.num_slots)

    @property
    def num_waiting(self) -> int:
        """Answers in work beyond the slots."""
        return self.num_open - self.num_running

    @property
    def num_restarts(self) -> int:
        """Stages beyond the first."""
        return self._stage.num_restarts

    @property
    def stage_pid(self) -> int | None:
        """The stage's process id; None with in_process."""
        return self._stage.pid

    def observe(self, observer: Observer) -> None:
        """From now on this one is told of requests, instead of the one before."""
        self._observer = observer
        if self._requests is not None:
            self._requests.observer = observer

    async def start(self) -> AsyncLLM:
        """Starts the stage and waits until it serves; itself. The first start-up that fails
        raises its error, and nothing is left running. What an earlier call started is closed."""
        while self._requests is not None and not self._requests.ended:
            await self.close()  # in a loop that is gone, maybe, or of a call that still waits
        requests = AsyncRequests(self._access, self._max_waiting, self._observer)
        self._requests = requests
        try:
            await self._stage.start(requests)
            if requests.closed:
                raise StageError("it was closed while it started")
        except BaseException as error:
            requests.closed = True
            if not isinstance(error, GeneratorExit):  # which lets nothing be waited for
                await requests.drain(0.0)
                requests.shut()
            raise
        return self

    async def close(self, drain_s: float = 0.0) -> None:
        """Takes no more requests, waits up to `drain_s` seconds for those in work, aborts the
        rest with a StageError and ends the stage; may be called again."""
        requests = self._requests
        if requests is None:
            return
        await requests.drain(drain_s)
        await self._stage.end()
        requests.shut()

    def hurry(self) -> None:
        """Ends what a `close` still waits for."""
        if self._requests is not None:
            self._requests.end_all()

    def stream(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        deadline: float | None = None,
    ) -> AsyncStream:
        """Increments of one prompt's answers as they come; see AsyncStream.

        deadline: seconds from `open` on; a request that takes longer is aborted and fails with a
        DeadlineError.
        """
        deadline = read_option("deadline", deadline, float | None)
        (params,) = spread_params(sampling_params, 1)
        return AsyncStream(self._started, prompt, params, deadline)

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        deadline: float | None = None,
    ) -> RequestOutput:
        """One prompt's answers once all have ended; a cancelled caller aborts them. RequestError,
        BusyError, DeadlineError, StageError."""
        async with self.stream(prompt, sampling_params, deadline=deadline) as stream:
            async for _ in stream:
                pass
            return stream.output

    async def score(
        self,
        text: Prompt | Sequence[int],
        *,
        prompt_len: int = 0,
        sampling_params: SamplingParams | None = None,
        deadline: float | None = None,
    ) -> ScoreOutput:
        """What `LLM.score` gives."""
        check_single(text)
        deadline = read_option("deadline", deadline, float | None)
        requests, (params,) = self._started, spread_params(sampling_params, 1)
        with requests.hold(1, deadline) as inbox:
            scoring = await requests.send_score(inbox, text, prompt_len, params)
            while await inbox.next() is not None:
                pass
            return scoring.output()

    async def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, as `stream` would read it; RequestError without a tokenizer."""
        return await self._started.encode(text)

    async def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens on their own; RequestError without a tokenizer."""
        tokenizer = self.tokenizer
        if tokenizer is None:
            raise RequestError("tokens", "this checkpoint has no tokenizer")
        return await self._started.off_loop(lambda: decode_all(tokenizer, tokens))

    async def stats(self) -> EngineStats:
        """How the stage is now; what it said last where it does not answer within 2 s."""
        return await self._stage.stats()

    async def __aenter__(self) -> AsyncLLM:
        return await self.start()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def _started(self) -> AsyncRequests:
        if self._requests is None:
            raise StageError(NOT_STARTED)
        self._stage.check_loop()
        return self._requests
