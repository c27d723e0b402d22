"""`rlt run [MODEL] [PROMPT]`: answers prompts, and says how many loops each token took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rlt_core.cli.run_request import RunRequest

_MODEL = "Choice of parts"
_SIZES = "Sizes"
_DEPTH = "Depth"
_SAMPLING = "Sampling"


def register(app: typer.Typer) -> None:
    """Add `rlt run` to the command line."""
    app.command("run")(run)


def run(
    model: Annotated[
        str | None,
        typer.Argument(help="Checkpoint folder, or a model's id for its demo.", show_default=False),
    ] = None,
    prompt: Annotated[str | None, typer.Argument(help="Text.", show_default=False)] = None,
    prompts: Annotated[
        list[str] | None, typer.Option("--prompt", help="Text; may be repeated.")
    ] = None,
    prompt_token_ids: Annotated[
        list[str] | None, typer.Option(help="Token ids, as 5,17,3; may be repeated.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object per request on stdout.")
    ] = False,
    tokenizer: Annotated[str | None, typer.Option(help="Folder of another tokenizer.")] = None,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Without a stage process, for debugging.")
    ] = False,
    max_tokens: Annotated[int, typer.Option(help="Tokens to generate.")] = 128,
    n: Annotated[int, typer.Option("--n", help="Answers per prompt.")] = 1,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Go on past the end.")] = False,
    stop: Annotated[
        list[str] | None, typer.Option(help="String that ends an answer; may be repeated.")
    ] = None,
    stop_token_ids: Annotated[
        str | None, typer.Option(help="Token ids that end an answer, as 5,17.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(
            help="0 is greedy. Default: generation_config.json, else 1; the demo: 0.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    top_p: Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    top_k: Annotated[int | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    min_p: Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    repetition_penalty: Annotated[float | None, typer.Option(rich_help_panel=_SAMPLING)] = None,
    presence_penalty: Annotated[float, typer.Option(rich_help_panel=_SAMPLING)] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(rich_help_panel=_SAMPLING)] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(
            help="Of the sampling; without model and prompt also the problem's number.",
            rich_help_panel=_SAMPLING,
        ),
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(help="Alternatives per token, 0 to 20.", rich_help_panel=_SAMPLING),
    ] = None,
    exit_policy: Annotated[str | None, typer.Option(rich_help_panel=_DEPTH)] = None,
    exit_threshold: Annotated[float | None, typer.Option(rich_help_panel=_DEPTH)] = None,
    exit_mode: Annotated[str, typer.Option(help="skip or full.", rich_help_panel=_DEPTH)] = "skip",
    loops: Annotated[int | None, typer.Option(rich_help_panel=_DEPTH)] = None,
    min_loops: Annotated[int | None, typer.Option(rich_help_panel=_DEPTH)] = None,
    max_loops: Annotated[int | None, typer.Option(rich_help_panel=_DEPTH)] = None,
    max_depth: Annotated[
        int | None, typer.Option(help="Largest --loops served.", rich_help_panel=_DEPTH)
    ] = None,
    kv_layout: Annotated[str | None, typer.Option(rich_help_panel=_MODEL)] = None,
    strategy: Annotated[str | None, typer.Option(rich_help_panel=_MODEL)] = None,
    prompt_mode: Annotated[str | None, typer.Option("--prompts", rich_help_panel=_MODEL)] = None,
    attention: Annotated[str | None, typer.Option(rich_help_panel=_MODEL)] = None,
    device: Annotated[str, typer.Option(rich_help_panel=_MODEL)] = "cpu",
    dtype: Annotated[
        str | None, typer.Option(help="Default: the checkpoint's.", rich_help_panel=_MODEL)
    ] = None,
    ignore_config: Annotated[
        list[str] | None,
        typer.Option(help="Field of config.json to ignore.", rich_help_panel=_MODEL),
    ] = None,
    page_size: Annotated[int, typer.Option(rich_help_panel=_SIZES)] = 16,
    chunk_size: Annotated[int | None, typer.Option(rich_help_panel=_SIZES)] = None,
    kv_pages: Annotated[int | None, typer.Option(rich_help_panel=_SIZES)] = None,
    kv_memory: Annotated[int | None, typer.Option(help="Bytes.", rich_help_panel=_SIZES)] = None,
    max_num_seqs: Annotated[int | None, typer.Option(rich_help_panel=_SIZES)] = None,
    max_num_tokens: Annotated[int | None, typer.Option(rich_help_panel=_SIZES)] = None,
    max_model_len: Annotated[int | None, typer.Option(rich_help_panel=_SIZES)] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Poison free pages.", rich_help_panel=_SIZES)
    ] = False,
) -> None:
    """Answer prompts with a looped model, and say how many loops each token took.

    One argument alone is MODEL when it is a folder, a model's id or has no space in it, and else
    a PROMPT for the demo. Without a model the embedded demo answers; without a prompt too it gets
    problem number --seed of its held-out file, and the expected answer is printed beside its own.
    """
    values = dict(locals())
    from rlt_core.cli.run_request import RunRequest, read_ids

    request = RunRequest(
        model=model,
        prompt=prompt,
        prompts=prompts or [],
        token_ids=[read_ids("--prompt-token-ids", text) for text in prompt_token_ids or []],
        seed=seed,
        options={name: values[name] for name in _ENGINE},
        params={name: values[name] for name in _PARAMS},
    )
    request.options.update(prompts=prompt_mode, ignore_config=ignore_config or ())
    request.params.update(stop=stop or ())
    if stop_token_ids is not None:
        request.params.update(stop_token_ids=read_ids("--stop-token-ids", stop_token_ids))
    if _answer(request, as_json=as_json, in_process=in_process, tokenizer=tokenizer):
        raise typer.Exit(2)


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
    "attention",
    "max_depth",
    "page_size",
    "chunk_size",
    "kv_pages",
    "kv_memory",
    "max_num_seqs",
    "max_num_tokens",
    "max_model_len",
    "debug",
)
_PARAMS = (
    "n",
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
