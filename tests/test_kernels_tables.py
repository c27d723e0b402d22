"""The tuned tiles of rlt-kernels, and what is used where nothing is tuned; needs no GPU."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from rlt_core.cli import main
from rlt_kernels.commands import tuned_tables
from rlt_kernels.tiles import BUCKETS, Key, bucket, choose, guess, load_table, table_name
from rlt_kernels.tune.candidates import fits

TABLES = tuned_tables()


@pytest.mark.parametrize("name", TABLES)
def test_a_table_is_sound(name: str) -> None:
    """A table under another chip's name is never found; a tile that reads past a row's end, or a
    row count that no launch asks for, would be worse than none."""
    data = TABLES[name]
    table = load_table(data["chip"])
    assert name == table_name(data["chip"])
    assert len(table) == len(data["entries"])
    for key, tile in table.items():
        assert key.rows in BUCKETS
        assert fits(tile, key), key
        assert choose(data["chip"], (9, 0), key) == tile


def test_every_shape_has_a_tile() -> None:
    """Guards other chips, other models and odd shapes: the guess reads inside the rows."""
    for dtype in ("bfloat16", "float16", "float32"):
        for n, k in ((1, 64), (37, 100), (6144, 2048), (166144, 3072), (5280, 10560)):
            for rows in BUCKETS:
                key = Key(op="linear", dtype=dtype, n=n, k=k, rows=rows)
                for capability in ((8, 0), (9, 0), (10, 0)):
                    tile = guess(key, capability)
                    assert choose("No Such Chip", capability, key) == tile
                    assert tile.peel + tile.pre == 0
                    assert (tile.bm & (tile.bm - 1), tile.bn & (tile.bn - 1)) == (0, 0)
                    assert capability >= (9, 0) or (tile.kind == "rows" and not tile.pdl)


def test_a_row_count_takes_the_bucket_above() -> None:
    """A tile of fewer rows than a launch has would need a second pass over the weights."""
    assert [bucket(rows) for rows in (1, 2, 16, 17, 256, 8192, 9000)] == [
        *(1, 16, 16, 32, 256, 8192, 8192)
    ]


def test_many_rows_take_a_tile_for_more() -> None:
    """Guards a bucket that a table does not have yet: its rows went with the next one's tile."""
    chip, table = "NVIDIA H200", load_table("NVIDIA H200")
    for n, k in ((6144, 2048), (8192, 3072)):
        more = Key(op="linear", dtype="bfloat16", n=n, k=k, rows=2048)
        for rows in (320, 512, 1024):
            tuned = [table.get(replace(more, rows=count)) for count in BUCKETS if count >= rows]
            wanted = next(tile for tile in tuned if tile is not None)
            assert choose(chip, (9, 0), replace(more, rows=rows)) == wanted
    few = Key(op="linear", dtype="bfloat16", n=8192, k=3072, rows=256)
    assert choose(chip, (9, 0), few) == table.get(few, guess(few, (9, 0)))


def test_the_command_lists_what_is_tuned(capsys: pytest.CaptureFixture[str]) -> None:
    """Guards `rlt kernels`: the chip's table, and the way out where there is none."""
    assert main(["kernels", "--chip", "NVIDIA H200"]) == 0
    out = capsys.readouterr().out
    assert "linear_silu_mul" in out
    assert len(out.splitlines()) == 2 + len(TABLES["nvidia_h200"]["entries"])
    assert main(["kernels", "--chip", "Abacus 3"]) == 0
    assert "nothing is tuned for Abacus 3" in capsys.readouterr().out
    assert main(["kernels", "--chip", "Abacus 3", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["chip"], answer["table"]) == ("Abacus 3", None)
    assert "NVIDIA H200" in answer["chips"]
