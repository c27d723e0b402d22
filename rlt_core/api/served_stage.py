"""The stage behind an AsyncLLM: started, kept up, asked how it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from rlt_core.api.asked_stats import AskedStats
from rlt_core.api.async_requests import AsyncRequests
from rlt_core.api.event_loop import check_loop, tell
from rlt_core.api.stage_keeper import StageKeeper, Watcher
from rlt_core.contract.errors import StageError
from rlt_core.schedule.stats import EngineStats
from rlt_core.stage.client import Client, StageClient
from rlt_core.stage.config import StageConfig
from rlt_core.stage.local import LocalClient
from rlt_core.stage.messages import StageReport

NOT_STARTED = "the stage is not started"


class ServedStage:
    """Belongs to the event loop of the last `start`.

    in_process: its code runs here instead of in a process of its own. restart: a stage that ends
    is started again. hang_s: seconds after which one that answers nothing is taken for hung; None:
    never. report: what it serves, None before it has ever served.
    """

    def __init__(
        self, config: StageConfig, *, in_process: bool, restart: bool, hang_s: float | None
    ) -> None:
        self._config, self._in_process, self._restart = config, in_process, restart
        # In this process a step runs where its answer is waited for: it has always answered.
        self._hang_s = None if in_process else hang_s
        self._stats = AskedStats()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._keeper: StageKeeper | None = None
        self.report: StageReport | None = None

    @property
    def reason(self) -> str:
        """Why it does not serve; empty when it does."""
        if self._keeper is None:
            return NOT_STARTED
        return "" if self._keeper.ready else self._keeper.reason

    @property
    def num_restarts(self) -> int:
        """Stages beyond the first."""
        return 0 if self._keeper is None else self._keeper.num_restarts

    @property
    def pid(self) -> int | None:
        """The process id; None in this process."""
        return None if self._keeper is None else self._keeper.pid

    def check_loop(self) -> None:
        """StageError in another event loop than that of `start`, or before it."""
        if self._loop is None:
            raise StageError(NOT_STARTED)
        check_loop(self._loop)

    async def start(self, requests: AsyncRequests) -> None:
        """Starts it for these requests and waits until it serves; a first start-up that fails
        raises its error."""
        loop = self._loop = asyncio.get_running_loop()
        first: asyncio.Future[None] = loop.create_future()

        def started(report: StageReport) -> None:
            requests.serve(report)
            self.report = report

        watcher = Watcher(
            started=started,
            serves=lambda: tell(loop, _settle, first, None),
            failed=lambda error: tell(loop, _settle, first, error),
            counted=lambda stats: tell(loop, self._stats.answered, stats),
        )
        keeper = self._keeper = StageKeeper(
            self._make_client,
            requests.open,
            watcher,
            restart=self._restart,
            hang_s=self._hang_s,
        )
        keeper.start()
        try:
            await first
        except BaseException as error:
            keeper.end_soon()
            if not isinstance(error, GeneratorExit):  # which lets nothing be waited for
                await asyncio.to_thread(keeper.end)
            raise

    async def end(self) -> None:
        """Ends it, and waits for that; may be called again."""
        if self._keeper is not None:
            await asyncio.to_thread(self._keeper.end)

    async def stats(self) -> EngineStats:
        """How it is now; what it said last where it does not answer within 2 s."""
        if self._keeper is None:
            return self._stats.last
        self.check_loop()
        return await self._stats.ask(self._keeper.ask)

    def _make_client(self, given_up: Callable[[], bool]) -> Client:
        if self._in_process:
            return LocalClient(self._config)
        return StageClient(self._config, given_up)


def _settle(first: asyncio.Future[None], error: BaseException | None) -> None:
    """The first start-up ended, well or not; later ones change nothing."""
    if first.done():
        return
    if error is None:
        first.set_result(None)
    else:
        first.set_exception(error)
