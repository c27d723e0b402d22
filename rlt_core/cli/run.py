"""`rlt run [MODEL] [PROMPT]`: answers prompts, and says how many loops each token took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rlt_core.cli import options
from rlt_core.cli.options import OnOff
from rlt_core.contract.errors import OptionError

if TYPE_CHECKING:
    from rlt_core.cli.run_request import ChatRequest, RunRequest


def register(app: typer.Typer) -> None:
    """Add `rlt run` to the command line."""
    app.command("run")(run)


def run(
    model: options.Model = None,
    prompt: Annotated[str | None, typer.Argument(help="Text.")] = None,
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", help="Text; may be repeated.")
    ] = None,
    prompt_token_ids: Annotated[
        list[str] | None, typer.Option(help="Token ids, as 5,17,3; may be repeated.")
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="Prompts are messages of a user; without one, a session in a terminal."
        ),
    ] = False,
    system: Annotated[str | None, typer.Option(help="The system message of a chat.")] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Another chat template, or one of the checkpoint's by name."
        ),
    ] = None,
    chat_option: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="A variable of the chat template; may be repeated."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per request.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="The most tokens of an answer.")] = 128,
    num_answers: Annotated[int, typer.Option("--n", help="Answers per prompt.")] = 1,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end.")] = False,
    stop: Annotated[
        list[str] | None, typer.Option(help="A string that ends an answer; may be repeated.")
    ] = None,
    stop_token_ids: Annotated[
        str | None, typer.Option(help="Token ids that end an answer, as 5,17.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="0: greedy. Default: generation_config.json, else 1; the demo: 0."),
    ] = None,
    top_p: Annotated[float | None, typer.Option(help="Above 0, at most 1.")] = None,
    top_k: Annotated[int | None, typer.Option(help="0: off.")] = None,
    min_p: Annotated[float | None, typer.Option(help="0 to 1; 0: off.")] = None,
    repetition_penalty: Annotated[float | None, typer.Option(help="1: off.")] = None,
    presence_penalty: Annotated[float, typer.Option(help="-2 to 2.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(help="-2 to 2.")] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(help="Of the sampling; without model and prompt also the problem's number."),
    ] = None,
    json_schema: Annotated[
        str | None,
        typer.Option(metavar="FILE|TEXT", help="Answers are JSON of this schema, and no other."),
    ] = None,
    regex: Annotated[str | None, typer.Option(help="Answers match this, whole.")] = None,
    logprobs: Annotated[
        int | None, typer.Option(help="Alternatives shown per token, 0 to 20 (with --json).")
    ] = None,
    exit_policy: options.Policy = None,
    exit_threshold: Annotated[
        float | None, typer.Option(help="When the policy lets a token leave; default: its own.")
    ] = None,
    exit_mode: options.Mode = "skip",
    trace: Annotated[
        str | None, typer.Option(help="With --exit-policy trace: each output's depth, as 4,1,3.")
    ] = None,
    loops: Annotated[int | None, typer.Option(help="Depth; default: the model's own.")] = None,
    min_loops: Annotated[int | None, typer.Option(help="No token exits before.")] = None,
    max_loops: Annotated[int | None, typer.Option(help="Every token exits by then.")] = None,
    extra: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE",
            help="An option of the model's own (rlt explain lists them); may be repeated.",
        ),
    ] = None,
    max_depth: options.MaxDepth = None,
    kv_layout: options.Layout = None,
    strategy: options.Strategy = None,
    draft_depth: options.DraftDepth = None,
    prompt_mode: options.Prompts = None,
    attention: options.Attention = None,
    op: options.Ops = None,
    device: options.Device = "cpu",
    dtype: options.Dtype = None,
    exact: options.Exact = OnOff.ON,
    graphs: options.Graphs = None,
    ignore_config: options.IgnoreConfig = None,
    page_size: options.PageSize = None,
    chunk_size: Annotated[int | None, typer.Option(help="Rows of one prompt chunk.")] = None,
    kv_pages: Annotated[int | None, typer.Option(help="Pages of the KV pool.")] = None,
    prefix_cache: options.PrefixCache = True,
    swap_memory: options.SwapMemory = None,
    kv_memory: Annotated[int | None, typer.Option(help="Bytes of the KV pool.")] = None,
    max_num_seqs: Annotated[int | None, typer.Option(help="Requests resident at once.")] = None,
    max_num_tokens: Annotated[int | None, typer.Option(help="Prompt rows in progress.")] = None,
    max_model_len: Annotated[int | None, typer.Option(help="Tokens of one request.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="Folder of another tokenizer.")] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Without a stage process, for debugging.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Poison free pages of KV.")] = False,
) -> None:
    """Answer prompts with a looped model, and say how many loops each token took.

    One argument alone is MODEL when it is a folder, a model's id or has no space in it, and else
    a PROMPT for the demo. Without a model the embedded demo answers; without a prompt too it gets
    problem number --seed of its held-out file, and the expected answer is printed beside its own.
    """
    values = dict(locals())
    from rlt_core.cli.run_form import read_form
    from rlt_core.cli.run_request import RunRequest, read_ids

    request = RunRequest(
        model=model,
        prompt=prompt,
        prompts=prompts or [],
        token_ids=[read_ids("--prompt-token-ids", text) for text in prompt_token_ids or []],
        seed=seed,
        options={name: values[name] for name in _ENGINE},
        params={name: values[name] for name in _PARAMS},
        chat=_chat(chat, system, chat_template, chat_option),
    )
    request.options.update(
        prompts=prompt_mode,
        ignore_config=ignore_config or (),
        ops=options.parse_ops(op),
        exact=exact is OnOff.ON,
    )
    request.params.update(n=num_answers, stop=stop or (), extra=options.parse_extra(extra))
    request.params.update(structured=read_form(json_schema, regex))
    if trace is not None:
        request.params.update(trace=read_ids("--trace", trace))
    if stop_token_ids is not None:
        request.params.update(stop_token_ids=read_ids("--stop-token-ids", stop_token_ids))
    if _answer(request, as_json=as_json, in_process=in_process, tokenizer=tokenizer):
        raise typer.Exit(2)


def _chat(
    wanted: bool, system: str | None, template: str | None, variables: list[str] | None
) -> ChatRequest | None:
    given = {"--system": system, "--chat-template": template, "--chat-option": variables}
    if not wanted:
        for name, value in given.items():
            if value not in (None, []):
                raise OptionError(name, value, "it belongs to a chat", "Fix: add --chat")
        return None
    from rlt_core.cli.run_chat import read_variables
    from rlt_core.cli.run_request import ChatRequest

    return ChatRequest(system=system, template=template, variables=read_variables(variables))


def _answer(request: RunRequest, *, as_json: bool, **options: Any) -> bool:
    """Runs the request; True when one of its prompts failed."""
    from rlt_core.cli.run_output import JsonOutput, TextOutput
    from rlt_core.cli.run_session import answer

    output = JsonOutput() if as_json else TextOutput()
    return answer(request, output, **options)


_ENGINE = (
    "dtype",
    "device",
    "kv_layout",
    "exit_policy",
    "exit_mode",
    "strategy",
    "draft_depth",
    "attention",
    "max_depth",
    "page_size",
    "chunk_size",
    "kv_pages",
    "kv_memory",
    "prefix_cache",
    "swap_memory",
    "max_num_seqs",
    "max_num_tokens",
    "max_model_len",
    "graphs",
    "debug",
)
_PARAMS = (
    "max_tokens",
    "ignore_eos",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "logprobs",
    "exit_threshold",
    "loops",
    "min_loops",
    "max_loops",
)
