"""One `rlt run`: model up, prompts in, answers out."""

from __future__ import annotations

import time
from typing import Any, Protocol

from rlt_core.api.llm import LLM
from rlt_core.api.outputs import Increment, RequestOutput
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.api.tokenizer import load_tokenizer
from rlt_core.cli.run_request import RunRequest
from rlt_core.contract.errors import RequestError

MAX_SEQS = 64


class Output(Protocol):
    """Where answers go."""

    streams: bool

    def started(self, request: RunRequest, llm: LLM) -> None: ...

    def grew(self, increment: Increment) -> None:
        """A streamed answer has more (only when `streams`)."""
        ...

    def finished(self, output: RequestOutput, request: RunRequest, seconds: float) -> None: ...


def answer(request: RunRequest, output: Output, *, in_process: bool, tokenizer: str | None) -> bool:
    """True when one of several prompts failed (a single one raises)."""
    request.resolve()
    params = _params(request)
    texts = load_tokenizer(tokenizer or request.folder)
    if texts is None and (request.texts or tokenizer is not None):
        raise RequestError(
            "prompt",
            f"{tokenizer or request.folder} has no tokenizer, so text cannot be read\n"
            "Fix: --prompt-token-ids 5,17,3, or --tokenizer FOLDER",
        )
    prompts = request.all_prompts()
    options = dict(request.options)
    if options["max_num_seqs"] is None:
        # No slots, and so no pages, for requests that will never come.
        options["max_num_seqs"] = min(MAX_SEQS, len(prompts) * params.n)
    with LLM(request.folder, tokenizer=texts, in_process=in_process, **options) as llm:
        output.started(request, llm)
        if len(prompts) == 1 and output.streams and params.n == 1:
            return _stream(llm, prompts[0], params, output, request)
        return _generate(llm, prompts, params, output, request)


def _stream(
    llm: LLM, prompt: Any, params: SamplingParams, output: Output, request: RunRequest
) -> bool:
    begin = time.perf_counter()
    stream = llm.stream(prompt, params)
    for increment in stream:
        output.grew(increment)
    output.finished(stream.output, request, time.perf_counter() - begin)
    return False


def _generate(
    llm: LLM, prompts: list[Any], params: SamplingParams, output: Output, request: RunRequest
) -> bool:
    begin = time.perf_counter()
    results = llm.generate(prompts, params, on_error="raise" if len(prompts) == 1 else "return")
    seconds = time.perf_counter() - begin
    for result in results:
        output.finished(result, request, seconds)
    return any(result.error for result in results)


def _params(request: RunRequest) -> SamplingParams:
    values = dict(request.params)
    if request.is_demo and values["temperature"] is None:
        values["temperature"] = 0.0  # its answers are right or wrong; sampling only adds mistakes
    return SamplingParams(**values)
