"""`rlt serve [MODEL]`: a looped model behind an OpenAI-compatible HTTP server."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from rlt_core.cli import options
from rlt_core.cli.options import OnOff


def register(app: typer.Typer) -> None:
    """Add `rlt serve` to the command line."""
    app.command("serve")(serve)


def serve(
    model: options.Model = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; 0.0.0.0: for other machines, with a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: a free one.")] = 8000,
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="The model's name in requests; may be repeated. Default: its folder's."),
    ] = None,
    api_key_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="API keys, one a line; RLT_API_KEYS in the environment adds more."
        ),
    ] = None,
    allow_unauthenticated: Annotated[
        bool,
        typer.Option("--allow-unauthenticated", help="Let other machines in without any API key."),
    ] = False,
    ssl_certfile: Annotated[
        str | None, typer.Option(metavar="FILE", help="TLS: the certificate chain, PEM.")
    ] = None,
    ssl_keyfile: Annotated[
        str | None, typer.Option(metavar="FILE", help="TLS: its private key, PEM.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="A web page's origin that may use the server; may be repeated."),
    ] = None,
    max_waiting: Annotated[
        int | None,
        typer.Option(help="Answers that may wait for a slot; more get 429. Default: 4 x slots."),
    ] = None,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds of a request, queue included; 0: no limit.")
    ] = 600.0,
    hang_timeout: Annotated[
        float,
        typer.Option(help="Seconds after which a silent stage is started again; 0: never."),
    ] = 120.0,
    drain_timeout: Annotated[
        float, typer.Option(help="Seconds that requests in work get when the server ends.")
    ] = 30.0,
    max_body_bytes: Annotated[int, typer.Option(help="Of one request.")] = 8 << 20,
    max_prompts: Annotated[int, typer.Option(help="Prompts of one request.")] = 128,
    max_tokens: Annotated[
        int | None, typer.Option(help="The most tokens an answer may ask for.")
    ] = None,
    chat_template: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Another chat template, or one of the checkpoint's by name."
        ),
    ] = None,
    tool_parser: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="How the model writes tool calls: tool_call, or your package.module:Class. "
            "Default: as its chat template does.",
        ),
    ] = None,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Let logs hold what users wrote.")
    ] = False,
    access_log: Annotated[
        bool, typer.Option(help="A line of JSON on stderr for each request.")
    ] = True,
    otlp_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="Where OpenTelemetry spans are sent.")
    ] = None,
    exit_policy: options.Policy = None,
    exit_mode: options.Mode = "skip",
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
    debug: Annotated[bool, typer.Option("--debug", help="Poison free pages of KV.")] = False,
) -> None:
    """Serve a looped model by HTTP, as OpenAI's clients expect it.

    Without a model the embedded demo is served. Ctrl-C drains: requests in work are answered, for
    up to --drain-timeout seconds; a second Ctrl-C ends them.
    """
    values: dict[str, Any] = dict(locals())
    from rlt_core.cli.serve_session import ServeSession

    engine = {name: values[name] for name in _ENGINE}
    engine.update(
        prompts=prompt_mode,
        ignore_config=ignore_config or (),
        ops=options.parse_ops(op),
        exact=exact is OnOff.ON,
    )
    engine.update(hang_s=hang_timeout or None)
    server = {name: values[name] for name in _SERVER}
    server.update(
        served_names=tuple(served_model_name or ()),
        cors_origins=tuple(cors_origin or ()),
        request_timeout_s=request_timeout or None,
        drain_s=drain_timeout,
    )
    session = ServeSession(model, engine, server, api_key_file=api_key_file)
    code = session.run(access_log=access_log)
    if code:
        raise typer.Exit(code)


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
    "tokenizer",
    "max_waiting",
)
_SERVER = (
    "host",
    "port",
    "allow_unauthenticated",
    "ssl_certfile",
    "ssl_keyfile",
    "max_body_bytes",
    "max_prompts",
    "max_tokens",
    "chat_template",
    "tool_parser",
    "log_prompts",
    "otlp_endpoint",
)
