"""schemathesis over the generated OpenAPI: no 500, no answer outside of the contract."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlt_core.api.async_llm import AsyncLLM
from tests import scripted_engine
from tests.chat_kit import chat_folder
from tests.server_kit import RunningServer, running
from tests.test_openai_chat import FACTORY, TEMPLATE

pytest.importorskip("schemathesis", reason="needs rlt-core[server-tests]")
pytestmark = [pytest.mark.server, pytest.mark.timeout(1200)]
AT_LEAST, EXAMPLES = 2000, 80
ORDERS = ("CRASH", "DIE", "SLOW", "HANG", "BROKEN", "REFUSE")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RunningServer]:
    # The scripted engine takes these first tokens for orders (one ends this process), and random
    # bodies hold any token.
    for order in ORDERS:
        monkeypatch.setattr(scripted_engine, order, -1)
    folder = chat_folder(tmp_path_factory.mktemp("chat"), TEMPLATE)
    llm = AsyncLLM(engine_factory=FACTORY, in_process=True, tokenizer=str(folder))
    with running(llm, max_tokens=64) as found:
        yield found


def test_every_answer_is_in_the_contract(server: RunningServer, tmp_path: Path) -> None:
    """Bodies, answers and statuses were not those of the schema; random bodies were a 500."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(EXAMPLES)]
    # What the schema allows and is refused all the same is the other check's.
    command += ["--exclude-checks", "positive_data_acceptance", "--continue-on-failure"]
    command += ["--generation-database", "none", "--seed", "6", "--no-color"]
    paths = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
    hooks = "tests.server_tools.acceptance"
    env = {**os.environ, "PYTHONPATH": paths, "SCHEMATHESIS_HOOKS": hooks}
    # It leaves a cache in the folder that it runs in.
    done = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1100
    )
    print(done.stdout[-6000:], done.stderr[-2000:])
    assert done.returncode == 0
    generated = re.search(r"(\d+) generated", done.stdout)
    assert generated is not None
    assert int(generated[1]) >= AT_LEAST
    assert server.llm.ready
    assert server.llm.num_open == 0
