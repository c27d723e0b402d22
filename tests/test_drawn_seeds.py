"""Nothing that a test asserts is left to a drawn seed (see tests/drawn_seeds.py)."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rlt_core import LLM, SamplingParams
from tests.drawn_seeds import seeds_of
from tests.engines import GOLDEN

RLT = (sys.executable, "-m", "rlt_core.cli")


def test_a_seed_is_the_test_s_own(drawn_seeds: list[int], request: pytest.FixtureRequest) -> None:
    """A request without a seed drew another one in every run: a test of CI failed by a stop id
    that it drew."""
    source = seeds_of(request.node.nodeid)
    params = SamplingParams(max_tokens=1)
    with LLM(str(GOLDEN / "ouro_a"), in_process=True, kv_pages=40) as llm:
        answers = llm.generate([{"prompt_token_ids": [i]} for i in (5, 6)], params)
    wanted = [source.getrandbits(53) for _ in range(2)]
    assert [len(answer.outputs) for answer in answers] == [1, 1]
    assert drawn_seeds == wanted


@pytest.mark.parametrize("command", [("rlt",), RLT])
def test_a_command_that_draws_is_refused(command: tuple[str, ...]) -> None:
    """A process draws its own seed, where no fixture of the test reaches."""
    start = ("/nowhere/bin/rlt",) if command == ("rlt",) else command
    with pytest.raises(AssertionError, match="leaves tokens to chance"):
        subprocess.run([*start, "run", "folder", "text"], check=False)


def test_other_commands_are_not() -> None:
    """The guard must not stop what draws nothing."""
    subprocess.run([sys.executable, "-c", "pass"], check=True)
