"""Everything a stage is started with. Imports no torch."""

from __future__ import annotations

import msgspec

from rlt_core.plugins.plan import Choice, ExitMode

DEFAULT_BUILDER = "rlt_core.stage.build:build_engine"


class StageConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The choice of parts and the sizes of one stage; None asks the system to pick.

    num_slots: resident requests. num_rows: prompt rows in progress (each keeps its place for all
    its loops). chunk_size: rows of one prompt chunk. max_len: positions of one request.
    kv_memory (bytes) or kv_pages: the pool. prefix_cache: written pages stay for later requests.
    swap_memory: bytes of host memory for the pages of preempted requests, 0 for none.
    random_weights: the seed of weights that are drawn, so
    that the model folder needs a config.json alone. engine_factory: "package.module:function" that
    takes this config and returns a BuiltEngine; tests put their own there.
    """

    model_path: str | None = None
    model: str | None = None
    kv_layout: str | None = None
    exit_policy: str | None = None
    exit_mode: ExitMode = "skip"
    strategy: str | None = None
    draft_depth: int | None = None
    prompts: str | None = None
    attention: str | None = None
    ops: dict[str, str] = {}
    device: str = "cpu"
    dtype: str | None = None
    exact: bool = True
    graphs: bool | None = None
    page_size: int | None = None
    max_depth: int | None = None
    ignore_config: tuple[str, ...] = ()
    num_slots: int | None = None
    num_rows: int | None = None
    chunk_size: int | None = None
    max_len: int | None = None
    kv_memory: int | None = None
    kv_pages: int | None = None
    prefix_cache: bool = True
    swap_memory: int | None = None
    ticks_in_flight: int = 2
    debug: bool = False
    keep_logits: bool = False
    random_weights: int | None = None
    engine_factory: str = DEFAULT_BUILDER

    def choice(self) -> Choice:
        """The part that `resolve` checks."""
        return Choice(
            model_path=self.model_path,
            model=self.model,
            kv_layout=self.kv_layout,
            exit_policy=self.exit_policy,
            exit_mode=self.exit_mode,
            strategy=self.strategy,
            draft_depth=self.draft_depth,
            prompts=self.prompts,
            attention=self.attention,
            ops=self.ops,
            device=self.device,
            dtype=self.dtype,
            exact=self.exact,
            graphs=self.graphs,
            page_size=self.page_size,
            max_depth=self.max_depth,
            ignore_config=frozenset(self.ignore_config),
        )
