"""The engine options of LLM and the command line, checked and written as a StageConfig."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from rlt_core.contract.errors import OptionError
from rlt_core.plugins.plan import ExitMode
from rlt_core.stage.config import DEFAULT_BUILDER, StageConfig

_POSITIVE = (
    "max_num_seqs",
    "max_num_tokens",
    "chunk_size",
    "max_depth",
    "max_model_len",
    "kv_memory",
    "kv_pages",
    "page_size",
)


def stage_config(
    model: str | os.PathLike[str] | None = None,
    *,
    dtype: str | None = None,
    device: str = "cpu",
    kv_layout: str | None = None,
    exit_policy: str | None = None,
    exit_mode: ExitMode = "skip",
    strategy: str | None = None,
    draft_depth: int | None = None,
    prompts: str | None = None,
    attention: str | None = None,
    ops: Mapping[str, str] | None = None,
    max_num_seqs: int | None = None,
    max_num_tokens: int | None = None,
    chunk_size: int | None = None,
    max_depth: int | None = None,
    max_model_len: int | None = None,
    kv_memory: int | None = None,
    kv_pages: int | None = None,
    page_size: int | None = None,
    prefix_cache: bool = True,
    swap_memory: int | None = None,
    random_weights: int | None = None,
    ignore_config: Iterable[str] = (),
    exact: bool = True,
    graphs: bool | None = None,
    debug: bool = False,
    engine_factory: str = DEFAULT_BUILDER,
) -> StageConfig:
    """A StageConfig; OptionError for sizes that are no positive whole numbers.

    max_num_seqs: resident requests (slots). max_num_tokens: prompt rows in progress. chunk_size:
    rows of one prompt chunk. draft_depth: loops after which strategy pipeline guesses a token, 0
    for no guesses. max_model_len: positions of one request. kv_memory in bytes or
    kv_pages: the pool. prefix_cache: written pages stay for later requests.
    swap_memory: bytes of host memory for pages of preempted requests, 0: they are computed again.
    random_weights: the seed of weights that are drawn, for benchmarks: the folder needs a
    config.json alone. graphs: ticks as CUDA graphs; None: on a GPU, where the model can.
    None: the system picks, and reports it in `LLM.notes`.
    """
    values = locals()
    for name in _POSITIVE:
        _check_positive(name, values[name])
    if swap_memory != 0:  # for none
        _check_positive("swap_memory", swap_memory)
    if kv_memory is not None and kv_pages is not None:
        reason = f"kv_memory {kv_memory} is given too, and only one of them can size the pool"
        raise OptionError("kv_pages", kv_pages, reason)
    if exit_mode not in ("skip", "full"):
        raise OptionError("exit_mode", exit_mode, "it is skip or full")
    if isinstance(ignore_config, str):
        ignore_config = (ignore_config,)
    return StageConfig(
        model_path=None if model is None else os.fspath(model),
        kv_layout=kv_layout,
        exit_policy=exit_policy,
        exit_mode=exit_mode,
        strategy=strategy,
        draft_depth=draft_depth,
        prompts=prompts,
        attention=attention,
        ops=dict(ops or {}),
        device=device,
        dtype=dtype,
        exact=exact,
        graphs=graphs,
        page_size=page_size,
        max_depth=max_depth,
        ignore_config=tuple(ignore_config),
        num_slots=max_num_seqs,
        num_rows=max_num_tokens,
        chunk_size=chunk_size,
        max_len=max_model_len,
        kv_memory=kv_memory,
        kv_pages=kv_pages,
        prefix_cache=prefix_cache,
        random_weights=random_weights,
        swap_memory=swap_memory,
        debug=debug,
        engine_factory=engine_factory,
    )


def _check_positive(name: str, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise OptionError(name, value, "it must be a whole number of 1 or more")
