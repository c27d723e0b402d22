"""Huginn: scaled embedding and prelude | adapter and core, looped on a latent | norm, coda, norm
and the tied head. A block norms the sum of residual and sublayer, so the stream itself is normed.

The state packs [latent ; prelude output], [R, 2E]: every loop reads the same prelude output.

Shapes: R rows, E n_embd, H heads, d = E / H, F intermediate_size, V vocab_size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlt_huginn.config import CODA, CORE, PRELUDE, STATE_TABLE, HuginnConfig
from rlt_huginn.start import PURPOSE, random_latent

if TYPE_CHECKING:
    from rlt_core.contract import ModelShape
    from rlt_core.contract.protocols import LoopContext

# The authors' names of the three groups of blocks.
_GROUPS = {PRELUDE: "prelude", CORE: "core_block", CODA: "coda"}
_NORMS = 4


@dataclass(frozen=True, slots=True)
class Block:
    """One block: qkv [3 E, E], out [E, E], fc [2 F, E] (gate first), proj [E, F], norms 4 x [E],
    qk_bias [2, 1, H, d] (query's, key's) or None."""

    qkv: Tensor
    out: Tensor
    fc: Tensor
    proj: Tensor
    norms: tuple[Tensor, ...]
    qk_bias: Tensor | None

    @classmethod
    def empty(cls, c: HuginnConfig, device: torch.device, dtype: torch.dtype) -> Block:
        """Unfilled weights."""

        def empty(*sizes: int) -> Tensor:
            return torch.empty(sizes, device=device, dtype=dtype)

        width, inner = c.n_embd, c.intermediate_size
        return cls(
            qkv=empty(3 * width, width),
            out=empty(width, width),
            fc=empty(2 * inner, width),
            proj=empty(width, inner),
            norms=tuple(empty(width) for _ in range(_NORMS)),
            qk_bias=empty(2, 1, c.n_heads, c.head_dim) if c.qk_bias else None,
        )

    def named(self) -> Iterator[tuple[str, Tensor]]:
        """The checkpoint's name of each tensor, after the block's own."""
        yield from (("attn.Wqkv.weight", self.qkv), ("attn.proj.weight", self.out))
        yield from (("mlp.fc.weight", self.fc), ("mlp.proj.weight", self.proj))
        for number, norm in enumerate(self.norms, start=1):
            yield f"norm_{number}.weight", norm
        if self.qk_bias is not None:
            yield "attn.qk_bias", self.qk_bias


class Huginn:
    """The five methods of protocols.LoopedModel, and the weight table of the checkpoint."""

    def __init__(self, shape: ModelShape, *, device: torch.device, dtype: torch.dtype) -> None:
        if not isinstance(shape.config, HuginnConfig):
            raise TypeError(f"not a shape of rlt_huginn.config: {type(shape.config).__name__}")
        c = self.config = shape.config
        self.dtype = dtype

        def empty(*sizes: int) -> Tensor:
            return torch.empty(sizes, device=device, dtype=dtype)

        self.wte = empty(c.vocab_size, c.n_embd)
        self.lm_head = self.wte if c.tie_embeddings else empty(c.vocab_size, c.n_embd)
        self.adapter = empty(c.n_embd, 2 * c.n_embd)
        self.adapter_bias = empty(c.n_embd) if c.adapter_bias else None
        self.ln_f = empty(c.n_embd)
        counts = {PRELUDE: c.prelude_layers, CORE: c.core_layers, CODA: c.coda_layers}
        self.blocks = {
            track: [Block.empty(c, device, dtype) for _ in range(count)]
            for track, count in counts.items()
        }

    def prelude(self, tokens: Tensor, ctx: LoopContext) -> Tensor:
        """tokens int64 [R] -> [start latent ; embedding x sqrt(E) through the prelude], [R, 2E]."""
        # Not in place: the head reads the unscaled table.
        scaled = ctx.ops.embed(tokens, self.wte) * math.sqrt(self.config.n_embd)
        return torch.cat((self._start(ctx), self._run(PRELUDE, scaled, ctx)), dim=1)

    def loop(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """The adapter on [latent ; prelude output], then the core: [R, 2E] -> [R, 2E]."""
        mixed = ctx.ops.linear(state, self.adapter, self.adapter_bias)
        return torch.cat((self._run(CORE, mixed, ctx), self._injected(state)), dim=1)

    def signals(
        self, state: Tensor, before: Tensor, ctx: LoopContext, names: frozenset[str]
    ) -> Mapping[str, Tensor]:
        """`state`: the latent as the loop left it, before ln_f, [R, E]."""
        return {"state": self._latent(state)} if "state" in names else {}

    def coda(self, state: Tensor, ctx: LoopContext, *, store: bool = True) -> Tensor:
        """ln_f on the latent, then the coda; the prelude output stays beside it."""
        normed = self._norm(self._latent(state), ctx)
        out = self._run(CODA, normed, ctx, store=store)
        return torch.cat((out, self._injected(state)), dim=1)

    def head(self, state: Tensor, ctx: LoopContext) -> Tensor:
        """ln_f once more, then logits float32 [R, V]."""
        return ctx.ops.linear(self._norm(self._latent(state), ctx), self.lm_head).float()

    def weight_table(self) -> Mapping[str, Tensor]:
        """Checkpoint name -> the tensor that it fills."""
        table = {
            "transformer.wte.weight": self.wte,
            "transformer.adapter.weight": self.adapter,
            "transformer.ln_f.weight": self.ln_f,
        }
        if self.adapter_bias is not None:
            table["transformer.adapter.bias"] = self.adapter_bias
        if not self.config.tie_embeddings:
            table["lm_head.weight"] = self.lm_head
        for track, blocks in self.blocks.items():
            for index, block in enumerate(blocks):
                start = f"transformer.{_GROUPS[track]}.{index}"
                table |= {f"{start}.{name}": tensor for name, tensor in block.named()}
        return table

    def ignored_weights(self) -> frozenset[str]:
        """The saved table of rotary angles, which equals its formula."""
        return frozenset({"freqs_cis"})

    def tied_weights(self) -> Mapping[str, str]:
        """The head where the configuration ties it; a checkpoint may hold one copy or two."""
        if not self.config.tie_embeddings:
            return {}
        return {"lm_head.weight": "transformer.wte.weight"}

    def _start(self, ctx: LoopContext) -> Tensor:
        """[R, E]: random, or the request's table, or the normed final latent of the row before."""
        c = self.config
        bits = ctx.random_bits(PURPOSE, c.n_embd)
        start = random_latent(bits, c.start_std, ctx.option("state_scale"), self.dtype)
        table, given = ctx.option_table(STATE_TABLE)
        start = torch.where(given.unsqueeze(1), table, start)
        previous, known = ctx.previous()
        warm = self._norm(self._latent(previous), ctx)
        return torch.where(known.unsqueeze(1), warm, start)

    def _run(self, track: str, x: Tensor, ctx: LoopContext, *, store: bool = True) -> Tensor:
        """x [R, E] through one group of blocks."""
        ops, eps = ctx.ops, self.config.norm_eps
        for index, block in enumerate(self.blocks[track]):
            n1, n2, n3, n4 = block.norms
            q, k, v = self._heads(ops.linear(ops.rms_norm(x, n1, eps), block.qkv))
            bias = None if block.qk_bias is None else block.qk_bias.squeeze(1)
            mixed = ctx.attend(
                track, index, q, k, v, rope=self.config.rope, qk_bias=bias, store=store
            )
            x = ops.add_norm(ops.linear(mixed.flatten(1), block.out), x, n2, eps)
            inner = ops.linear_silu_mul(ops.rms_norm(x, n3, eps), block.fc)
            x = ops.add_norm(ops.linear(inner, block.proj), x, n4, eps)
        return x

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[R, 3E] -> queries, keys and values [R, H, d]."""
        heads = qkv.unflatten(1, (3, self.config.n_heads, self.config.head_dim))
        return heads[:, 0], heads[:, 1], heads[:, 2]

    def _norm(self, x: Tensor, ctx: LoopContext) -> Tensor:
        return ctx.ops.rms_norm(x, self.ln_f, self.config.norm_eps)

    def _latent(self, state: Tensor) -> Tensor:
        # Contiguous: operators may read whole rows only.
        return state[:, : self.config.n_embd].contiguous()

    def _injected(self, state: Tensor) -> Tensor:
        return state[:, self.config.n_embd :]
