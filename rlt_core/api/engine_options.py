"""The engine options of LLM and the command line, checked and written as a StageConfig."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from rlt_core.api.option_kinds import read_options
from rlt_core.contract.errors import OptionError
from rlt_core.plugins.plan import ExitMode
from rlt_core.stage.config import DEFAULT_BUILDER, StageConfig

# What a StageConfig calls them.
_FIELDS = {
    "model": "model_path",
    "max_num_seqs": "num_slots",
    "max_num_tokens": "num_rows",
    "max_model_len": "max_len",
}


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
    """A StageConfig; OptionError for what is of another kind than here, or out of range.

    max_num_seqs: resident requests (slots). max_num_tokens: prompt rows in progress. chunk_size:
    rows of one prompt chunk. draft_depth: loops after which strategy pipeline guesses a token, 0
    for no guesses. max_model_len: positions of one request. kv_memory in bytes or
    kv_pages: the pool. prefix_cache: written pages stay for later requests.
    swap_memory: bytes of host memory for pages of preempted requests, 0: they are computed again.
    random_weights: the seed of weights that are drawn, for benchmarks: the folder needs a
    config.json alone. graphs: ticks as CUDA graphs; None: on a GPU, where the model can.
    None: the system picks, and reports it in `LLM.notes`.
    """
    values = read_options(stage_config, locals())
    if kv_memory is not None and kv_pages is not None:
        reason = f"kv_memory {kv_memory} is given too, and only one of them can size the pool"
        raise OptionError("kv_pages", kv_pages, reason)
    values["ops"] = values["ops"] or {}
    return StageConfig(**{_FIELDS.get(name, name): value for name, value in values.items()})
