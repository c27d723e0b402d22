"""What a measurement was made on: the device, its driver, and the versions of everything."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

from rlt_core.plugins.registry import Registry


def machine(device: torch.device) -> dict[str, object]:
    """The computing device by name, its memory in GiB, the driver where there is one."""
    found: dict[str, object] = {
        "cpu": platform.machine(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "gpu": properties.name,
            "gpu_memory_gib": round(properties.total_memory / 2**30, 1),
            "driver": _driver(),
        }
    return found


def versions(registry: Registry) -> dict[str, str]:
    """torch, CUDA, triton where installed, and the distribution of every plugin that works."""
    found: dict[str, str] = {"torch": str(torch.__version__)}
    if torch.version.cuda:
        found["cuda"] = torch.version.cuda
    try:
        found["triton"] = metadata.version("triton")
    except metadata.PackageNotFoundError:
        pass  # torch for a CPU brings none
    return found | {
        plugin.source.distribution: plugin.source.version for plugin in registry.working
    }


def free_bytes(device: torch.device) -> int | None:
    """Memory of the device that nobody uses; None where it cannot be told."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    values = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(values[0]) * 1024 if values else None


def _driver() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0].strip()
