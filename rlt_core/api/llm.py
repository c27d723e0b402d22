"""LLM: a looped model behind a Python object."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

from rlt_core.api.access import open_model
from rlt_core.api.batch import Batch, Entry
from rlt_core.api.chat_messages import as_conversations
from rlt_core.api.collector import Collector
from rlt_core.api.dispatch import Dispatcher
from rlt_core.api.option_kinds import read_option
from rlt_core.api.outputs import RequestOutput, ScoreOutput
from rlt_core.api.progress import Progress
from rlt_core.api.prompts import Prompt, as_list, check_single, read_prompt, spread_params
from rlt_core.api.requests import RequestBuilder
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.api.scoring import Scoring
from rlt_core.api.stream import RequestStream
from rlt_core.stage.client import Client, StageClient
from rlt_core.stage.local import LocalClient
from rlt_core.stage.messages import StageReport

OnError = Literal["raise", "return"]


class LLM:
    """A looped model and the stage that runs it.

    model: a checkpoint folder, or an installed model's id for its demo; None takes a demo.
    tokenizer: a folder, a tokenizer object, or None for the checkpoint's own (without one,
    prompts are token ids and texts are None). in_process runs the stage's code here instead of
    in a process of its own, for debugging. The other options are those of
    `engine_options.stage_config`; an unknown one is a TypeError. What cannot work, or is of another
    kind, is an RltError before any weight is read.

    A context manager; `close` (or the last reference gone) ends the stage. If the stage dies,
    every waiting call raises StageError; a new LLM works. Calls from several threads are served
    together.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        tokenizer: object = None,
        in_process: bool = False,
        **options: Any,
    ) -> None:
        in_process = read_option("in_process", in_process, bool)
        access = open_model(LLM, model, tokenizer, options)
        config, self.tokenizer, self._chat = access.config, access.tokenizer, access.chat
        self.model_path = config.model_path
        self._client: Client = LocalClient(config) if in_process else StageClient(config)
        self._finalizer = weakref.finalize(self, self._client.close)
        self._builder = RequestBuilder(self._client.report, access.defaults)
        self._dispatcher = Dispatcher(self._client)

    @property
    def report(self) -> StageReport:
        """What the stage serves and how much fits."""
        return self._client.report

    @property
    def loops(self) -> int:
        """The model's own depth D."""
        return self.report.loops

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on everything that the system picked itself."""
        return self.report.notes

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool | None = None,
        on_error: OnError | None = None,
    ) -> list[RequestOutput]:
        """Answers in the order of the prompts.

        prompts: text, {"prompt_token_ids": [...]}, or a list of these. progress: None shows a bar
        in a terminal once the call takes over a second. on_error: a request that is refused or
        fails never stops the others; "return" leaves its error in `RequestOutput.error` (the
        default for a list), "raise" raises the first one after the others have finished (the
        default for a single prompt). StageError when the stage ends.
        """
        on_error = read_option("on_error", on_error, OnError | None)
        items, single = as_list(prompts)
        entries = self._entries(items, spread_params(sampling_params, len(items)))
        batch = Batch(entries, self._builder)
        with Progress(progress, batch) as bar:
            self._finish(batch.collectors, lambda: batch.done, bar.update)
        outputs = batch.outputs()
        if (on_error or ("raise" if single else "return")) == "raise":
            for output in outputs:
                if output.error is not None:
                    raise output.error
        return outputs

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> RequestStream:
        """Increments of one prompt's answers as they come; `.output` holds the whole afterwards.

        RequestError when the request is refused. Leaving the loop early aborts the request.
        """
        (params,) = spread_params(sampling_params, 1)
        batch = Batch(self._entries([prompt], [params]), self._builder)
        return RequestStream(batch, self._dispatcher)

    def chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template: str | os.PathLike[str] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        tools: Sequence[Any] | None = None,
        progress: bool | None = None,
        on_error: OnError | None = None,
    ) -> list[RequestOutput]:
        """The next turn of a conversation, or of each of a list of conversations.

        messages: [{"role": "user", "content": "..."}, ...], or a list of such lists. The
        checkpoint's own chat template writes them out, exactly as transformers does, and the
        result is read as it is: no start token or other text is added.
        `RequestOutput.prompt` is what was written. Reasoning in a think block is in `.reasoning`,
        `.text` is the answer alone; both come of the same tokens as in `generate`, whose other
        arguments count here too. A turn also ends at the tokenizer's own end-of-text token.

        continue_final_message goes on in the last message (with add_generation_prompt=False).
        chat_template: another one, as a file, as text, or by the name that the checkpoint gives
        it. chat_template_kwargs: variables that it reads (enable_thinking). tools: JSON schemas,
        or functions with type hints and docstrings, as transformers takes them.
        CheckpointError without a template, RequestError for options that cannot work; a wrong
        conversation fails alone.
        """
        items, single = as_conversations(messages)
        options: dict[str, Any] = {
            "add_generation_prompt": add_generation_prompt,
            "continue_final_message": continue_final_message,
            "chat_template": chat_template,
            "chat_template_kwargs": chat_template_kwargs,
            "tools": tools,
        }
        prompts = [self._chat.conversation(item, **options) for item in items]
        how = on_error or ("raise" if single else "return")
        return self.generate(prompts, sampling_params, progress=progress, on_error=how)

    def stream_chat(
        self,
        messages: Sequence[Any],
        sampling_params: SamplingParams | None = None,
        **options: Any,
    ) -> RequestStream:
        """Increments of one conversation's next turn; the options are those of `chat`."""
        return self.stream(self._chat.conversation(messages, **options), sampling_params)

    def score(
        self,
        text: Prompt | Sequence[int],
        *,
        prompt_len: int = 0,
        sampling_params: SamplingParams | None = None,
    ) -> ScoreOutput:
        """Log probability, rank and depth of every token of a text given those before it.

        text: text, token ids or {"prompt_token_ids": [...]}. Positions before `prompt_len` run
        all loops; the others leave by the exit options of `sampling_params`, as if they had been
        generated. Its `logprobs` asks for alternatives; its sampling options play no part.
        """
        check_single(text)
        (params,) = spread_params(sampling_params, 1)
        (request_id,) = self._dispatcher.new_ids(1)
        scoring = Scoring(text, prompt_len, params, self._builder, self.tokenizer, request_id)
        self._finish(scoring.collectors, lambda: scoring.done)
        return scoring.output()

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, as `generate` would read it; RequestError without a tokenizer."""
        return [int(token) for token in read_prompt(text, self._builder, self.tokenizer).tokens]

    def close(self) -> None:
        """Ends the stage; may be called again."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _entries(self, items: list[Any], params: list[SamplingParams]) -> list[Entry]:
        return [
            Entry(item, p, self._builder, self.tokenizer, self._dispatcher.new_ids(p.n))
            for item, p in zip(items, params, strict=True)
        ]

    def _finish(
        self,
        collectors: Sequence[Collector],
        done: Callable[[], bool],
        on_wake: Callable[[], None] | None = None,
    ) -> None:
        try:
            self._dispatcher.submit(collectors)
            self._dispatcher.wait(done, on_wake)
        except BaseException:
            # Ctrl-C must not leave work behind in a stage that lives on.
            self._dispatcher.give_up(collectors)
            raise
