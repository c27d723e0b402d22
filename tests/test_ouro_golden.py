"""rlt-ouro against the authors' own code, without the engine: states, gate and logits."""

from __future__ import annotations

import dataclasses
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from rlt_core.contract import ModelShape, RopeSpec, TrackSpec
from rlt_core.contract.protocols import LoopedModel
from rlt_core.runtime import ops_torch
from rlt_core.runtime.operators import OperatorSet
from rlt_core.runtime.rope import RopeTables, prepare_qk
from rlt_core.runtime.weights import load_weights, random_weights
from rlt_ouro.config import OuroConfig, read_config
from rlt_ouro.model import Ouro

GOLDEN = Path(__file__).parent / "golden"
MODELS = ("ouro_a", "ouro_b")
PROMPTS = ("p0", "p1", "p2")
CPU = torch.device("cpu")
OPERATORS = OperatorSet(
    embed=ops_torch.embed,
    linear=ops_torch.linear,
    rms_norm=ops_torch.rms_norm,
    add_rms_norm=ops_torch.add_rms_norm,
    norm_add_norm=ops_torch.norm_add_norm,
    add_norm=ops_torch.add_norm,
    silu_mul=ops_torch.silu_mul,
    linear_silu_mul=ops_torch.linear_silu_mul,
)


@dataclass
class DenseContext:
    """A LoopContext without pool or batch: rows are positions 0 .. R - 1, all at one depth."""

    positions: Tensor
    depth: Tensor
    ops: OperatorSet = OPERATORS
    rope: RopeTables = field(default_factory=lambda: RopeTables(512, "cpu", torch.float32))

    def attend(
        self,
        track: str,
        layer: int,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        rope: RopeSpec | None = None,
        qk_bias: Tensor | None = None,
        qk_norm: tuple[Tensor, Tensor, float] | None = None,
        store: bool = True,
    ) -> Tensor:
        """Softmax over all earlier rows, scale 1 / sqrt(d)."""
        table = None if rope is None else self.rope.get(rope)
        q, k = prepare_qk(q, k, self.positions, table=table, qk_bias=qk_bias, qk_norm=qk_norm)
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
        later = self.positions[None, :] > self.positions[:, None]
        weights = scores.masked_fill(later, -torch.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v)

    def random_bits(self, purpose: int, count: int) -> Tensor:
        """No model of these tests asks."""
        raise NotImplementedError

    def option(self, name: str) -> Tensor:
        """No model of these tests asks."""
        raise NotImplementedError

    def option_table(self, name: str) -> tuple[Tensor, Tensor]:
        """No model of these tests asks."""
        raise NotImplementedError

    def previous(self) -> tuple[Tensor, Tensor]:
        """No model of these tests asks."""
        raise NotImplementedError


def run_loops(model: LoopedModel, tokens: Tensor, loops: int) -> tuple[list[Tensor], DenseContext]:
    """The state of every row after each loop, and a context for signals and head."""
    positions = torch.arange(len(tokens))
    context = DenseContext(positions, torch.zeros_like(positions))
    state = model.prelude(tokens, context)
    states = []
    for depth in range(1, loops + 1):
        context.depth = torch.full_like(positions, depth)
        state = model.loop(state, context)
        states.append(state)
    return states, context


def build(folder: Path) -> Ouro:
    """The model of a checkpoint folder, in float32."""
    shape = read_config(json.loads((folder / "config.json").read_text()), str(folder), frozenset())
    model = Ouro(shape, device=CPU, dtype=torch.float32)
    load_weights(model, folder)
    return model


def close(found: Tensor, wanted: Tensor) -> None:
    """1e-4 absolute, the data's own tolerance."""
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("prompt", PROMPTS)
def test_states_gate_and_logits_of_every_loop(name: str, prompt: str) -> None:
    """Norm after every loop, gate on the normed state, head without a second norm (A7, A16)."""
    model, wanted = build(GOLDEN / name), load_file(GOLDEN / name / "expected.safetensors")
    states, context = run_loops(model, wanted[f"{prompt}.ids"], 4)
    for loop, state in enumerate(states):
        close(state, wanted[f"{prompt}.loop_hidden"][loop])
        close(model.head(state, context), wanted[f"{prompt}.loop_logits"][loop])
        signals = model.signals(state, state, context, frozenset({"gate", "state"}))
        close(signals["gate"], wanted[f"{prompt}.gate_logits"][loop])
        assert signals["gate"].dtype == torch.float32
        assert signals["state"] is state
    assert model.coda(states[-1], context) is states[-1]
    close(model.head(states[-1], context), wanted[f"{prompt}.logits"])


def test_only_the_signals_asked_for() -> None:
    """A policy that needs no gate must not pay for it."""
    model = build(GOLDEN / "ouro_b")
    states, context = run_loops(model, torch.tensor([3, 4]), 1)
    assert model.signals(states[0], states[0], context, frozenset()) == {}


def test_remote_code_is_never_run(tmp_path: Path) -> None:
    """A checkpoint's modeling file that raises must not matter (CASES A3, A27)."""
    folder = tmp_path / "checkpoint"
    shutil.copytree(GOLDEN / "ouro_b", folder)
    for file in ("modeling_ouro.py", "configuration_ouro.py"):
        (folder / file).write_text("raise RuntimeError('remote code was run')\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling_peft.PeftModel"}
    (folder / "config.json").write_text(json.dumps(config))
    build(folder)


def _toy(loops: int) -> Ouro:
    """One layer whose sublayers give zero: a loop is the final norm alone."""
    own = OuroConfig(
        vocab_size=4,
        hidden_size=4,
        intermediate_size=4,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=2,
        rms_norm_eps=0.0,
        rope=RopeSpec(theta=1e4, dim=2),
        tie_word_embeddings=False,
    )
    track = TrackSpec(name="core", num_layers=1, num_kv_heads=1, head_dim=2, per_depth=True)
    shape = ModelShape(
        loops=loops,
        max_loops=loops,
        vocab_size=4,
        state_width=4,
        max_positions=16,
        dtype="float32",
        tracks=(track,),
        eos_token_ids=(),
        config=own,
    )
    model = Ouro(shape, device=CPU, dtype=torch.float32)
    random_weights(model, 0)
    model.layers[0].after_attention.zero_()
    model.layers[0].after_mlp.zero_()
    model.norm.copy_(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    model.embedding.copy_(torch.eye(4) + 1)
    model.lm_head.copy_(torch.eye(4))
    return model


def test_identity_block_has_a_closed_form() -> None:
    """x <- norm(x) after every loop; folding the norm into the head would change it (A16)."""
    weight = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    wanted = torch.tensor([1.0, 1.0, 2.0, 1.0], dtype=torch.float64)
    for loops in (1, 2, 3):
        wanted = wanted / wanted.square().mean().sqrt() * weight
        model = _toy(loops)
        states, context = run_loops(model, torch.tensor([2]), loops)
        torch.testing.assert_close(model.head(states[-1], context)[0], wanted.float())
    # the weight acts once a loop: (1, 2, 3, 4) cubed times the embedding, up to one scale
    torch.testing.assert_close(wanted / wanted[0], torch.tensor([1.0, 8, 54, 64]).double())


def test_tied_head_is_the_embedding() -> None:
    """A tied checkpoint stores one copy, or two equal ones."""
    shape = read_config(
        json.loads((GOLDEN / "ouro_b" / "config.json").read_text()), "here", frozenset()
    )
    assert isinstance(shape.config, OuroConfig)
    tied = dataclasses.replace(shape.config, tie_word_embeddings=True)
    model = Ouro(dataclasses.replace(shape, config=tied), device=CPU, dtype=torch.float32)
    assert model.lm_head is model.embedding
    assert "lm_head.weight" not in model.weight_table()
    assert model.tied_weights() == {"lm_head.weight": "model.embed_tokens.weight"}


def test_shape_of_another_model_is_refused() -> None:
    """The core hands `config` over unread; a foreign one must fail by name."""
    shape = read_config(
        json.loads((GOLDEN / "ouro_b" / "config.json").read_text()), "here", frozenset()
    )
    with pytest.raises(TypeError, match="rlt_ouro"):
        Ouro(dataclasses.replace(shape, config=None), device=CPU, dtype=torch.float32)
