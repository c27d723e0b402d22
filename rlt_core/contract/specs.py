"""What a plugin declares: frozen data, read before torch is imported.

`factory` and `reader` fields are "package.module:Name" strings, resolved only when chosen. Words
in `provides`, `needs` and `refuses` come from capabilities.Word or are a plugin's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

Words = frozenset[str]
NO_WORDS: Words = frozenset()
# A model's int option of this name keys LoopContext.random_bits, apart from the sampling seed.
STATE_SEED = "state_seed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParamSpec:
    """A typed request parameter of a policy, or option of a model (ModelSpec.options).

    kind "float" and "int" are scalars; "depths", for policies, is one int per output token
    (`trace`). For models there are "flag" (true or false) and "table": the path of a file with
    one row of numbers per position, ModelShape.table_widths[name] wide.
    `minimum` and `maximum` are inclusive unless `exclusive_minimum`. `default` None means for a
    policy that the checkpoint gives it (ModelShape.exit_defaults, if the policy is the
    checkpoint's own) or, failing that, that it is required; a model's scalars
    have a default, its tables have none and are optional.
    chains: a request that sets it reads its predecessor's final state (LoopContext.previous), so
    known rows past its prompt are replayed one by one, and a strategy that guesses refuses it.
    """

    name: str
    kind: Literal["float", "int", "depths", "flag", "table"]
    summary: str
    default: float | int | bool | None = None
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: bool = False
    chains: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackSpec:
    """A group of layers that keeps KV. `per_depth`: one plane per loop, else a single plane."""

    name: str
    num_layers: int
    num_kv_heads: int
    head_dim: int
    per_depth: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What a model's reader takes from config.json: all that planning needs, no torch.

    `config` is the model's own parsed configuration (any frozen object); the core hands it to
    the factory unread. `dtype` is a torch dtype's name. `exit_defaults` holds the checkpoint's
    values for the parameters of `exit_policy` and of no other, e.g. {"exit_threshold": 1.0}.
    `table_widths` holds the columns of every "table" option that the model declares.
    """

    loops: int
    max_loops: int
    vocab_size: int
    state_width: int
    max_positions: int
    dtype: str
    tracks: tuple[TrackSpec, ...]
    eos_token_ids: tuple[int, ...]
    config: object
    exit_policy: str = "fixed"
    exit_defaults: Mapping[str, float] = field(default_factory=dict)
    table_widths: Mapping[str, int] = field(default_factory=dict)
    has_prelude_layers: bool = False
    has_coda_layers: bool = False
    min_leave_fraction: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A model. `reader(config: dict, path: str, ignore: frozenset[str]) -> ModelShape`, without
    torch; `factory(shape: ModelShape, device, dtype) -> LoopedModel`. `options` are what a request
    may set of the model's own, given by users as `extra` and read with LoopContext.option. `demo`
    is a folder inside the plugin's package ("package/folder") with a checkpoint that needs no
    download. `example` is
    "package.module:function", `() -> dict`: the config.json of a small model of this kind, from
    which `rlt check` builds one with random weights."""

    id: str
    summary: str
    model_types: tuple[str, ...]
    architectures: tuple[str, ...]
    reader: str
    factory: str
    provides: Words
    needs: Words = NO_WORDS
    refuses: Words = NO_WORDS
    options: tuple[ParamSpec, ...] = ()
    demo: str | None = None
    example: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KVLayoutSpec:
    """A KV layout; `factory() -> KVLayout` (protocols)."""

    id: str
    summary: str
    factory: str
    provides: Words
    needs: Words = NO_WORDS
    refuses: Words = NO_WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitPolicySpec:
    """An exit policy; `factory() -> ExitPolicy`. `needs` names the signals it reads (and
    variable_depth when it may stop rows early)."""

    id: str
    summary: str
    factory: str
    params: tuple[ParamSpec, ...] = ()
    provides: Words = NO_WORDS
    needs: Words = NO_WORDS
    refuses: Words = NO_WORDS


class Entry(str, Enum):
    """The closed set of device entry rules that the tick program runs."""

    ON_LEAVE = "on_leave"
    ALL_LEFT = "all_left"
    ON_GUESS = "on_guess"
    HOSTED = "hosted"


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategySpec:
    """A scheduling strategy: `entry` is its device half, `factory() -> Strategy` its host half.
    With the entry rule on_guess tokens are guessed after `draft_depth` loops. adapts: its plans may
    forbid guesses, so that ticks of one row a slot are needed too."""

    id: str
    summary: str
    factory: str
    entry: Entry
    adapts: bool = False
    provides: Words = NO_WORDS
    needs: Words = NO_WORDS
    refuses: Words = NO_WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptModeSpec:
    """An order of prompt cells; `factory() -> PromptMode`. overlaps: it is asked for a prompt's
    next chunk while earlier ones run; else only when there is none."""

    id: str
    summary: str
    factory: str
    overlaps: bool = False
    provides: Words = NO_WORDS
    needs: Words = NO_WORDS
    refuses: Words = NO_WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """What a backend or operator needs beside its plugin: a package that is not a dependency, a
    library built on request. Looked for at discovery, without importing torch.

    `found` says what is there ("flash-attn 2.8.3", "built"), None when nothing is: the spec is then
    listed and not chosen. `lack` says what is wrong then, and `fix` is the command that gets it.
    """

    found: str | None
    lack: str
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionSpec:
    """An attention backend; `factory() -> Attention`. Empty tuples mean no limit, but for pages of
    more than 128 positions: a backend that takes such a size names it, and walks page tables itself
    (PagedAttention). `capability` is the lowest CUDA compute capability, `capability_below` the
    first one that is too high."""

    id: str
    summary: str
    factory: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    head_dims: tuple[int, ...] = ()
    page_sizes: tuple[int, ...] = ()
    capability: tuple[int, int] | None = None
    capability_below: tuple[int, int] | None = None
    extra: Extra | None = None
    priority: int = 0
    provides: Words = NO_WORDS
    needs: Words = NO_WORDS
    refuses: Words = NO_WORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class OpSpec:
    """One candidate for an operator. `op` is the operator ("linear", "rms_norm", ...), `id` the
    candidate's own name ("torch.linear"), `factory` the callable itself."""

    id: str
    op: str
    factory: str
    devices: tuple[str, ...]
    dtypes: tuple[str, ...]
    exact: bool
    capability: tuple[int, int] | None = None
    extra: Extra | None = None
    priority: int = 0
    provides: Words = NO_WORDS
    needs: Words = NO_WORDS
    refuses: Words = NO_WORDS


Spec = (
    ModelSpec
    | KVLayoutSpec
    | ExitPolicySpec
    | StrategySpec
    | PromptModeSpec
    | AttentionSpec
    | OpSpec
)
