"""The engine under a load without HTTP: an AsyncLLM of this process."""

from __future__ import annotations

from collections.abc import AsyncIterator

from rlt_core.api.async_llm import AsyncLLM
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.bench.offered import Ask, Served
from rlt_core.bench.open_load import AskError, Piece
from rlt_core.contract.errors import RltError


class InProcess:
    """Fits open_load.Target; the stage is a process of its own, as under a server."""

    def __init__(self, llm: AsyncLLM, *, exit_threshold: float | None = None) -> None:
        self._llm, self._exit_threshold = llm, exit_threshold

    async def served(self) -> Served:
        """From the stage's report."""
        report = self._llm.report
        return Served(
            name=report.model,
            max_len=report.max_len,
            loops=report.loops,
            token_ids=[i for i in range(report.vocab_size) if i not in report.eos_token_ids],
        )

    async def ask(self, ask: Ask) -> AsyncIterator[Piece]:
        """Greedy, of exactly the length that is asked for."""
        params = SamplingParams(
            max_tokens=ask.num_tokens,
            temperature=0.0,
            ignore_eos=True,
            exit_threshold=self._exit_threshold,
            trace=ask.trace,
        )
        try:
            async with self._llm.stream({"prompt_token_ids": ask.prompt}, params) as stream:
                async for increment in stream:
                    if increment.token_ids:
                        yield Piece(len(increment.token_ids), increment.exit_depths)
        except RltError as error:
            raise AskError(type(error).__name__, str(error)) from error
