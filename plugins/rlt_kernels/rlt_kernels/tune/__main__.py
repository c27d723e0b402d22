"""Tune the products' tiles on this machine's GPU and write the table.

Measured: microseconds of a launch in a CUDA graph, weights read from memory (several copies
larger than the L2 cache), beside cuBLAS. A tile whose bits differ from the reference tile's is
dropped and reported. A table becomes the package's when it lies in rlt_kernels/tuned/.

    python -m rlt_kernels.tune --out rlt_kernels/tuned/nvidia_h200.json
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rlt_kernels.tiles import BUCKETS
from rlt_kernels.tune.session import Session
from rlt_kernels.tune.shapes import MODELS


def main(argv: list[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = _parser()
    args = parser.parse_args(argv)
    shapes = [shape for model in args.models.split(",") for shape in MODELS[model]]
    if args.ops:
        shapes = [shape for shape in shapes if shape.name in args.ops.split(",")]
    rows = [int(count) for count in args.rows.split(",")]
    if unknown := [count for count in rows if count not in BUCKETS]:
        parser.error(f"row counts {unknown} are not tuned apart; known: {BUCKETS}")
    session = Session(args.out, args.log, quick=args.quick, special=args.special)
    session.run(shapes, rows, args.dtype)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m rlt_kernels.tune", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the table to write or add to")
    parser.add_argument("--log", type=Path, help="JSON lines with every trial")
    parser.add_argument("--models", default="ouro", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--ops", default="", help="shapes by name: qkv, o, gate_up, down, head")
    parser.add_argument("--rows", default=",".join(map(str, BUCKETS)), help="row counts")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16"])
    parser.add_argument(
        "--quick", action="store_true", help="a third of the tiles, no second round"
    )
    parser.add_argument("--special", action="store_true", help="also loads in a warp of their own")
    return parser


if __name__ == "__main__":
    sys.exit(main())
