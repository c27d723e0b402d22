"""Train the demo model: first the loops, then the gate alone.

    cd plugins/rlt_ouro
    python -m training.train --out DIR [--seed N] [--steps N] [--device cpu|cuda] [--threads N]

Needs torch, safetensors and numpy. Writes a checkpoint folder in the published format
(config.json, model.safetensors, tokenizer files, heldout.jsonl) and evaluates it at the end.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from training.data import facts_hash, heldout_problems, write_heldout
from training.evaluate_plain import print_report
from training.lessons import Lessons
from training.model import Ouro, build_model, demo_config
from training.objective import expected_loss, gate_loss, read_answers
from training.optim import Muon
from training.tokenizer import EOS_ID, write_tokenizer

MUON_RATE, ADAM_RATE, GATE_RATE = 0.004, 0.003, 0.02
RISE_STEPS, PRINT_EVERY, SAVE_EVERY = 40, 20, 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Stage 1 ends `fall_steps` after the highest grade is learnt, or after `steps`; `gate_steps`
    are of stage 2; `batch` counts problems."""

    out: Path
    seed: int = 1
    steps: int = 2000
    fall_steps: int = 300
    gate_steps: int = 100
    batch: int = 64
    device: str = "cpu"
    threads: int = 2


def main() -> None:
    train(read_options())


def train(options: Options) -> Ouro:
    """Both stages, the checkpoint, and the report on the held-out problems."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    config, heldout = demo_config(), heldout_problems()
    options.out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(options.out)
    write_heldout(options.out / "heldout.jsonl", heldout)
    model = build_model(config).to(options.device)
    rejected = {facts_hash(problem.facts) for problem in heldout}
    lessons = Lessons(options.seed, options.batch, rejected)
    start = time.monotonic()
    train_loops(model, lessons, options)
    train_gate(model, lessons, options)
    print(f"trained in {time.monotonic() - start:.0f} s", flush=True)
    save(model, config, options.out)
    print_report(model.cpu().eval(), heldout, config["early_exit_threshold"])
    return model


def train_loops(model: Ouro, lessons: Lessons, options: Options) -> list[float]:
    """Stage 1, gate included; every step's loss."""
    optimizers = make_optimizers(model)
    history: list[float] = []
    fall_steps = min(options.fall_steps, int(0.4 * options.steps))
    fall = options.steps - fall_steps
    for step in range(options.steps):
        if lessons.finished:
            fall = min(fall, step)
        if step == fall + fall_steps:
            break
        set_rates(optimizers, schedule(step, fall, fall_steps))
        answers = read_answers(model, lessons.batch().to(options.device))
        loss = expected_loss(answers)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        history.append(loss.item())
        values = answers.value_losses()
        lessons.report(values)
        if step % PRINT_EVERY == 0:
            shown = " ".join(f"{value:.3f}" for value in values)
            print(f"step {step} level {lessons.level} value loss by loop {shown}", flush=True)
        if step % SAVE_EVERY == SAVE_EVERY - 1:
            save(model, demo_config(), options.out)
    return history


def train_gate(model: Ouro, lessons: Lessons, options: Options) -> list[float]:
    """Stage 2, everything but the gate frozen; every step's loss."""
    gate = model.model.early_exit_gate
    model.requires_grad_(False)
    gate.requires_grad_(True)
    optimizer = torch.optim.AdamW(gate.parameters(), lr=GATE_RATE, weight_decay=0.0)
    keep_peak_rates([optimizer])
    history: list[float] = []
    fall = int(0.6 * options.gate_steps)
    for step in range(options.gate_steps):
        set_rates([optimizer], schedule(step, fall, options.gate_steps - fall))
        loss = gate_loss(read_answers(model, lessons.batch().to(options.device)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        history.append(loss.item())
        if step % PRINT_EVERY == 0 or step == options.gate_steps - 1:
            print(f"gate step {step} loss {history[-1]:.4f}", flush=True)
    return history


def make_optimizers(model: Ouro) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for embedding, head, norms and gate."""
    matrices = [p for p in model.model.layers.parameters() if p.dim() == 2]
    chosen = {id(parameter) for parameter in matrices}
    others = [p for p in model.parameters() if id(p) not in chosen]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=MUON_RATE),
        torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    keep_peak_rates(optimizers)
    return optimizers


def keep_peak_rates(optimizers: list[torch.optim.Optimizer]) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]


def set_rates(optimizers: list[torch.optim.Optimizer], share: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * share


def schedule(step: int, fall: int, fall_steps: int) -> float:
    """Share of the peak rate: a short rise, a plateau, a linear fall from step `fall` on."""
    rise = min(1.0, (step + 1) / min(RISE_STEPS, max(1, fall // 2)))
    return rise * min(1.0, (fall + fall_steps - step) / fall_steps)


def save(model: Ouro, config: dict[str, Any], folder: Path) -> None:
    """Write config.json, generation_config.json and model.safetensors."""
    generation = {"bos_token_id": EOS_ID, "eos_token_id": EOS_ID}
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    tensors = {name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def read_options() -> Options:
    parser = argparse.ArgumentParser(description="Train rlt's demo model.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint")
    for name in ("seed", "steps", "fall_steps", "gate_steps", "batch", "threads"):
        default = Options.__dataclass_fields__[name].default
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    return Options(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
