"""One `rlt run`: model up, prompts in, answers out."""

from __future__ import annotations

import time
from typing import Any

from rlt_core.api.chat import ChatFormat
from rlt_core.api.llm import LLM
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.api.tokenizer import load_tokenizer
from rlt_core.cli.run_chat import Dialog, talk
from rlt_core.cli.run_output import Output
from rlt_core.cli.run_request import RunRequest
from rlt_core.contract.errors import RequestError

MAX_SEQS = 64


def answer(request: RunRequest, output: Output, *, in_process: bool, tokenizer: str | None) -> bool:
    """True when one of several prompts failed (a single one raises)."""
    request.resolve()
    params = _params(request)
    texts = load_tokenizer(tokenizer or request.folder)
    if texts is None and (request.texts or request.chat or tokenizer is not None):
        raise RequestError(
            "prompt",
            f"{tokenizer or request.folder} has no tokenizer, so text cannot be read\n"
            "Fix: --prompt-token-ids 5,17,3, or --tokenizer FOLDER",
        )
    dialog = _dialog(request, ChatFormat(texts, request.folder))
    prompts = request.all_prompts() if dialog is None else _conversations(dialog, request)
    options = dict(request.options)
    if options["max_num_seqs"] is None:
        # No slots, and so no pages, for requests that will never come.
        options["max_num_seqs"] = max(1, min(MAX_SEQS, len(prompts) * params.n))
    with LLM(request.folder, tokenizer=texts, in_process=in_process, **options) as llm:
        output.started(request, llm)
        if dialog is not None and request.is_session:
            talk(llm, dialog, params, output, request)
            return False
        if len(prompts) == 1 and output.streams and params.n == 1:
            return _stream(llm, prompts[0], params, output, request)
        return _generate(llm, prompts, params, output, request)


def _dialog(request: RunRequest, form: ChatFormat) -> Dialog | None:
    chat = request.chat
    if chat is None:
        return None
    dialog = Dialog(
        format=form, system=chat.system, template=chat.template, variables=chat.variables
    )
    dialog.conversation("")  # that there is a template, before any weight is read
    return dialog


def _conversations(dialog: Dialog, request: RunRequest) -> list[Any]:
    found = [dialog.conversation(text) for text in request.texts]
    if len(found) == 1:
        found[0].rendered  # noqa: B018 - what is wrong with it is said before a weight is read
    return found


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
