"""The tiny model's mathematics. All rows are [R, width]; KV and batching belong to the context."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlt_core.contract.protocols import LoopContext, RopeSpec
from rlt_core.contract.specs import ModelShape
from rlt_core.testing.tiny import VARIANTS, TinyConfig, tiny_shape

SEED = 4  # tokens vary most with it
_START_STATE = 1  # purpose of the random numbers of the start state


class TinyModel:
    """contract.protocols.WeightedModel. The state packs [latent ; prelude output], [R, 2E]."""

    def __init__(self, shape: ModelShape, *, device: torch.device, dtype: torch.dtype) -> None:
        config = shape.config
        if not isinstance(config, TinyConfig):
            raise TypeError(f"a TinyConfig is needed, not {type(config).__name__}")
        self.config = config
        self.rope = RopeSpec(
            theta=config.rope_theta, dim=config.rope_dim, interleaved=config.interleaved
        )
        self.weights = {
            name: torch.zeros(size, device=device, dtype=dtype)
            for name, size in _weight_sizes(config).items()
        }

    def prelude(self, tokens: Tensor, ctx: LoopContext) -> Tensor:
        """[start latent ; embedding after the prelude's layers]."""
        x = ctx.ops.embed(tokens, self.weights["embed"])
        for layer in range(self.config.prelude_layers):
            x = self._layer("prelude", layer, x, ctx)
        return torch.cat((self._start(x, ctx), x), dim=-1)

    def loop(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """The adapter takes latent and prelude output, then the core's layers run."""
        x = ctx.ops.linear(state, self.weights["adapter"])
        for layer in range(self.config.core_layers):
            x = self._layer("core", layer, x, ctx)
        if not self.config.norm_sum:
            x = self._norm(x, "loop_norm", ctx)
        return torch.cat((x, self._injected(state)), dim=-1)

    def signals(
        self, state: Tensor, before: Tensor, ctx: LoopContext, names: frozenset[str]
    ) -> Mapping[str, Tensor]:
        """`gate`: raw logit [R] of the normed latent; `state`: the latent [R, E]."""
        latent = self._latent(state)
        found = {}
        if "gate" in names:
            normed = self._norm(latent, "gate_norm", ctx)
            gate = ctx.ops.linear(normed, self.weights["gate"], self.weights["gate_bias"])
            found["gate"] = gate[:, 0]
        if "state" in names:
            found["state"] = latent
        return found

    def coda(self, state: Tensor, ctx: LoopContext, *, store: bool = True) -> Tensor:
        """The latent through the coda's layers; the width stays."""
        x = self._norm(self._latent(state), "coda_norm", ctx)
        for layer in range(self.config.coda_layers):
            x = self._layer("coda", layer, x, ctx, store=store)
        return torch.cat((x, self._injected(state)), dim=-1)

    def head(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """Logits float32 [R, V]."""
        x = self._norm(self._latent(state), "head_norm", ctx)
        return ctx.ops.linear(x, self.weights["head"]).float()

    def weight_table(self) -> Mapping[str, Tensor]:
        """Every tensor by its name in the checkpoint."""
        return self.weights

    def ignored_weights(self) -> frozenset[str]:
        """None."""
        return frozenset()

    def tied_weights(self) -> Mapping[str, str]:
        """None."""
        return {}

    def _layer(
        self, track: str, layer: int, x: Tensor, ctx: LoopContext, *, store: bool = True
    ) -> Tensor:
        name, ops, eps = f"{track}.{layer}", ctx.ops, self.config.norm_eps
        mixed = self._attend(track, layer, self._norm(x, f"{name}.attn_norm", ctx), ctx, store)
        if self.config.norm_sum:
            x = ops.add_norm(mixed, x, self.weights[f"{name}.attn_sum_norm"], eps)
            sub = self._mlp(name, self._norm(x, f"{name}.mlp_norm", ctx), ctx)
            return ops.add_norm(sub, x, self.weights[f"{name}.mlp_sum_norm"], eps)
        normed, x = ops.add_rms_norm(mixed, x, self.weights[f"{name}.mlp_norm"], eps)
        return x + self._mlp(name, normed, ctx)

    def _attend(self, track: str, layer: int, x: Tensor, ctx: LoopContext, store: bool) -> Tensor:
        c, name = self.config, f"{track}.{layer}"
        qkv = ctx.ops.linear(x, self.weights[f"{name}.qkv"])
        heads = qkv.unflatten(-1, (c.heads + 2 * c.kv_heads, c.head_dim))
        q, k, v = heads.split((c.heads, c.kv_heads, c.kv_heads), dim=1)
        bias = self.weights[f"{name}.qk_bias"] if c.qk_bias else None
        norm = None
        if c.qk_norm:
            names = (f"{name}.q_norm", f"{name}.k_norm")
            norm = (self.weights[names[0]], self.weights[names[1]], c.norm_eps)
        out = ctx.attend(
            track, layer, q, k, v, rope=self.rope, qk_bias=bias, qk_norm=norm, store=store
        )
        return ctx.ops.linear(out.flatten(1), self.weights[f"{name}.out"])

    def _mlp(self, name: str, x: Tensor, ctx: LoopContext) -> Tensor:
        inner = ctx.ops.linear_silu_mul(x, self.weights[f"{name}.gate_up"])
        return ctx.ops.linear(inner, self.weights[f"{name}.down"])

    def _norm(self, x: Tensor, name: str, ctx: LoopContext) -> Tensor:
        return ctx.ops.rms_norm(x, self.weights[name], self.config.norm_eps)

    def _start(self, x: Tensor, ctx: LoopContext) -> Tensor:
        if not self.config.keyed_state:
            return torch.zeros_like(x)
        bits = ctx.random_bits(_START_STATE, self.config.hidden_size)
        scale = ctx.option("state_scale").double()[:, None]
        drawn = ((bits.double() / 2**31 - 1.0) * scale).to(x.dtype)
        table, given = ctx.option_table("state_table")
        start = torch.where(given[:, None], table, drawn)
        before, warm = ctx.previous()
        return torch.where(warm[:, None], self._norm(self._latent(before), "head_norm", ctx), start)

    def _latent(self, state: Tensor) -> Tensor:
        # Contiguous: operators may read whole rows only.
        return state[:, : self.config.hidden_size].contiguous()

    def _injected(self, state: Tensor) -> Tensor:
        return state[:, self.config.hidden_size :]


def make_tiny(
    variant: str,
    *,
    seed: int = SEED,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> tuple[ModelShape, TinyModel]:
    """A variant with random weights, the same values in every dtype, on any device."""
    shape = tiny_shape(variant)
    model = TinyModel(shape, device=torch.device(device), dtype=dtype)
    draw_weights(model, seed)
    return shape, model


def draw_weights(model: TinyModel, seed: int) -> None:
    """Random weights under which tokens vary and rows leave at every depth.

    Norm weights near 1, products that keep their input's scale; head and gate are scaled so that
    logits have a standard deviation of about 2 and gate probabilities lie between 0.05 and 0.9.
    """
    draw = torch.Generator().manual_seed(seed)
    num_qk = (model.config.heads + model.config.kv_heads) * model.config.head_dim
    for name, weight in sorted(model.weight_table().items()):
        values = torch.randn(weight.shape, generator=draw)
        weight.copy_(_scaled(name, values, num_qk))


def write_checkpoint(folder: Path, variant: str, *, seed: int = SEED) -> Path:
    """config.json and model.safetensors of a tiny model; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _, model = make_tiny(variant, seed=seed)
    text = json.dumps(dict(VARIANTS[variant]), indent=2)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    save_file(dict(model.weight_table()), str(folder / "model.safetensors"))
    return folder


_LOGIT_STD = 2.0
_GATE_STD, _GATE_MEAN = 1.2, -0.9
# Queries and keys larger than usual, or attention would average all contexts into one; a latent
# smaller than what is injected, or float32's rounding would grow from loop to loop.
_SHARPNESS, _LATENT = 1.2, 0.6
_GAIN = {"embed": 4.0, "head": _LOGIT_STD, "gate": _GATE_STD, "out": 1.5, "down": 1.5}


def _scaled(name: str, values: Tensor, num_qk: int) -> Tensor:
    last = name.rpartition(".")[2]
    if last in ("q_norm", "k_norm"):
        return _SHARPNESS * (1.0 + 0.25 * values)
    if last.endswith("norm"):
        return 1.0 + 0.25 * values
    if last == "gate_bias":
        return torch.full_like(values, _GATE_MEAN)
    if last == "qk_bias":
        return values * 0.3
    if last == "embed":
        return values * _GAIN["embed"]
    scaled: Tensor = values * _GAIN.get(last, 1.0) * values.shape[-1] ** -0.5
    if last == "qkv":
        scaled[:num_qk] *= _SHARPNESS
    if last == "adapter":
        scaled[:, : values.shape[0]] *= _LATENT
    return scaled


def _weight_sizes(config: TinyConfig) -> dict[str, tuple[int, ...]]:
    width = config.hidden_size
    sizes: dict[str, tuple[int, ...]] = {
        "embed": (config.vocab_size, width),
        "adapter": (width, 2 * width),
        "gate": (1, width),
        "gate_bias": (1,),
        "head": (config.vocab_size, width),
    }
    sizes |= dict.fromkeys(("gate_norm", "coda_norm", "head_norm"), (width,))
    if not config.norm_sum:
        sizes["loop_norm"] = (width,)
    for track in ("prelude", "core", "coda"):
        for layer in range(getattr(config, f"{track}_layers")):
            parts = _layer_sizes(config).items()
            sizes |= {f"{track}.{layer}.{name}": size for name, size in parts}
    return sizes


def _layer_sizes(config: TinyConfig) -> dict[str, tuple[int, ...]]:
    width, size, mlp = config.hidden_size, config.head_dim, config.mlp_size
    sizes: dict[str, tuple[int, ...]] = {
        "attn_norm": (width,),
        "mlp_norm": (width,),
        "qkv": ((config.heads + 2 * config.kv_heads) * size, width),
        "out": (width, config.heads * size),
        "gate_up": (2 * mlp, width),
        "down": (width, mlp),
    }
    if config.norm_sum:
        sizes |= {"attn_sum_norm": (width,), "mlp_sum_norm": (width,)}
    if config.qk_bias:
        sizes["qk_bias"] = (2, config.heads, size)
    if config.qk_norm:
        sizes |= {"q_norm": (size,), "k_norm": (size,)}
    return sizes
