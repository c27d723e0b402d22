"""The stage: messages, the process, its clients, and what happens when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from rlt_core.api.llm import LLM
from rlt_core.api.sampling_params import SamplingParams
from rlt_core.contract.errors import ConflictError, RltError, StageError
from rlt_core.runtime.batch import logprob_bits
from rlt_core.schedule.request import EngineRequest, Events
from rlt_core.stage.client import StageClient
from rlt_core.stage.config import StageConfig
from rlt_core.stage.local import LocalClient
from rlt_core.stage.messages import (
    Abort,
    AddRequests,
    Masks,
    Ping,
    Pong,
    Ready,
    RequestFailed,
    Shutdown,
    StageFailed,
    Tick,
    decode_answer,
    decode_request,
    encode,
)
from tests.scripted_engine import CRASH, DIE, REFUSE, SLOW, report
from tests.selection import mostly_slow

WITHIN_S = 5.0
Make = Callable[..., LLM]


def config(builder: str = "build") -> StageConfig:
    return StageConfig(engine_factory=f"tests.scripted_engine:{builder}")


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(engine_factory="tests.scripted_engine:build") as made:
        yield made


def pid_of(llm: LLM) -> int:
    client = llm._client
    assert isinstance(client, StageClient)
    return client.pid


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and stat.read_text().rsplit(")", 1)[1].split()[0] == "Z")


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + WITHIN_S
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def test_messages_survive_the_wire() -> None:
    """An array came back with another dtype, shape or byte order; None became an empty array."""
    request = EngineRequest(
        request_id=2**40,
        prompt=np.asarray([1, 2, 3], np.int64),
        logit_bias={7: -1.5},
        exit_params={"exit_threshold": 0.25},
        trace=np.asarray([1, 4], np.int32),
        stop_ids=(3, 9),
        prompt_logprobs=0,
    )
    back = decode_request(encode(AddRequests(requests=[request])))
    assert isinstance(back, AddRequests)
    (got,) = back.requests
    assert got.prompt.dtype == np.int64
    assert got.prompt.tolist() == [1, 2, 3]
    assert got.trace is not None
    assert got.trace.dtype == np.int32
    assert got.trace.tolist() == [1, 4]
    plain = {n: v for n, v in vars_of(request).items() if not isinstance(v, np.ndarray)}
    assert plain == {n: v for n, v in vars_of(got).items() if not isinstance(v, np.ndarray)}
    got.prompt[0] = 9  # the scheduler may write into what it received


def test_masks_survive_the_wire() -> None:
    """Words with the sign bit set; a request without masks came to have an empty one."""
    words = np.array([[-1, 1 << 30], [0, -(1 << 31)]], np.int32)
    message = Masks(request_id=np.array([7, 2**40]), index=np.array([0, 3]), words=words)
    back = decode_request(encode(message))
    assert isinstance(back, Masks)
    assert (back.request_id.tolist(), back.index.tolist()) == ([7, 2**40], [0, 3])
    assert back.words.dtype == np.int32
    assert back.words.tolist() == words.tolist()
    asked = [EngineRequest(request_id=i, prompt=np.array([1]), mask=m) for i, m in enumerate(words)]
    plain = EngineRequest(request_id=3, prompt=np.array([1]))
    sent = decode_request(encode(AddRequests(requests=[*asked, plain])))
    assert isinstance(sent, AddRequests)
    *masked, other = sent.requests
    assert [m.mask.tolist() for m in masked if m.mask is not None] == words.tolist()
    assert other.mask is None


def vars_of(request: EngineRequest) -> dict[str, Any]:
    return {name: getattr(request, name) for name in EngineRequest.__slots__}


def test_events_survive_the_wire() -> None:
    """Non-finite logprobs and two-dimensional arrays were lost in a text format."""
    ids = np.arange(2, dtype=np.int64)
    logprob = np.asarray([-np.inf, np.nan], np.float32)
    events = Events(
        tick=3,
        columns=np.stack((ids, ids - 1, ids, ids, ids, logprob_bits(logprob))),
        top_ids=np.arange(6, dtype=np.int64).reshape(2, 3),
        errors={1: "no"},
    )
    back = decode_answer(encode(Tick(events=events)))
    assert isinstance(back, Tick)
    got = back.events
    assert got.columns.tolist() == events.columns.tolist()
    assert got.logprob.tobytes() == logprob.tobytes()
    assert got.top_ids is not None
    assert got.top_ids.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert got.top_logprobs is None
    assert got.errors == {1: "no"}


@pytest.mark.parametrize(
    "message", [Abort(request_ids=[1, 2]), Ping(number=5), Shutdown(), AddRequests(requests=[])]
)
def test_requests_are_typed(message: Any) -> None:
    """A message was decoded as another kind; bytes that are none were executed (pickle)."""
    assert decode_request(encode(message)) == message
    with pytest.raises(msgspec.DecodeError):
        decode_request(b"\x80\x04K\x01.")
    with pytest.raises(msgspec.ValidationError):
        decode_answer(encode(message))


@pytest.mark.parametrize(
    "message",
    [
        Ready(report=report()),
        RequestFailed(request_id=1, field="prompt", reason="no"),
        Pong(number=1),
        StageFailed(error=None, text="Traceback"),
    ],
)
def test_answers_are_typed(message: Any) -> None:
    """A field of the report was dropped on the way to the client."""
    assert decode_answer(encode(message)) == message


def test_ping_is_answered_and_shutdown_ends_the_process() -> None:
    """A stage that was told to end lived on, and its socket folder stayed in /tmp."""
    client = StageClient(config())
    folder = client._process.folder
    client.send(Ping(number=7))
    assert client.receive(WITHIN_S) == [Pong(number=7)]
    assert oct(folder.stat().st_mode & 0o777) == "0o700"
    client.close()
    client.close()
    assert not is_running(client.pid)
    assert not folder.exists()
    with pytest.raises(StageError, match="closed"):
        client.send(Ping(number=8))
    with pytest.raises(StageError, match="closed"):
        client.receive(0.1)


def test_the_last_words_of_a_stage_survive_a_send_that_comes_too_late() -> None:
    """A call that found the stage gone set "does not answer" as the failure of every other call,
    before one of them had read what the stage itself said."""
    client = StageClient(config())
    crash = EngineRequest(request_id=0, prompt=np.asarray([CRASH], np.int64), max_tokens=1)
    client.send(Ping(number=7))
    client.send(AddRequests(requests=[crash]))
    assert wait_until(lambda: client._process.end_reason() is not None)
    for _ in range(2):
        with pytest.raises(StageError, match="planted in a tick"):
            client.send(Ping(number=8))
    assert client.receive(WITHIN_S) == [Pong(number=7)]
    with pytest.raises(StageError, match="planted in a tick"):
        client.receive(WITHIN_S)
    client.close()


def ask(llm: LLM, first: int, failures: list[BaseException], max_tokens: int = 4000) -> None:
    try:
        llm.generate({"prompt_token_ids": [first, 5]}, SamplingParams(max_tokens=max_tokens))
    except BaseException as error:
        failures.append(error)


@pytest.mark.parametrize("num_threads", mostly_slow([1, 3], 3))
def test_killed_stage_fails_every_waiting_call(llm: LLM, num_threads: int) -> None:
    """CASES A99: requests in a killed stage waited for ever, and the child stayed."""
    failures: list[BaseException] = []
    threads = [threading.Thread(target=ask, args=(llm, SLOW, failures)) for _ in range(num_threads)]
    for thread in threads:
        thread.start()
    time.sleep(0.3)
    pid, begin = pid_of(llm), time.monotonic()
    os.kill(pid, signal.SIGKILL)
    for thread in threads:
        thread.join(WITHIN_S)
    assert time.monotonic() - begin < WITHIN_S
    assert [type(error) for error in failures] == [StageError] * num_threads
    assert "SIGKILL" in str(failures[0])
    assert not is_running(pid)
    with LLM(engine_factory="tests.scripted_engine:build") as new:
        assert new.generate({"prompt_token_ids": [5]})[0].outputs[0].token_ids[0] == 5


def test_stage_killed_while_idle(llm: LLM) -> None:
    """A stage that died between two calls made the next one hang."""
    os.kill(pid_of(llm), signal.SIGKILL)
    with pytest.raises(StageError):
        llm.generate({"prompt_token_ids": [5]})
    with pytest.raises(StageError):
        llm.generate({"prompt_token_ids": [5]})


def test_sigterm_ends_a_stage(llm: LLM) -> None:
    """An idle stage did not notice SIGTERM, because it waits inside a socket."""
    os.kill(pid_of(llm), signal.SIGTERM)
    assert wait_until(lambda: not is_running(pid_of(llm)) or llm_ended(llm))
    with pytest.raises(StageError):
        llm.generate({"prompt_token_ids": [5]})


def llm_ended(llm: LLM) -> bool:
    client = llm._client
    assert isinstance(client, StageClient)
    return client._process.end_reason() is not None


def test_ctrl_c_goes_to_the_client_alone(llm: LLM) -> None:
    """Ctrl-C in a notebook ended the stage with the call, and with it all later calls."""
    os.kill(pid_of(llm), signal.SIGINT)
    assert os.getsid(pid_of(llm)) != os.getsid(0)
    assert llm.generate({"prompt_token_ids": [5]})[0].outputs[0].token_ids


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize(("first", "says"), [(CRASH, "planted in a tick"), (DIE, "status 7")])
def test_fault_in_a_tick(in_process: bool, first: int, says: str) -> None:
    """CASES A99: an exception in a tick was swallowed and its requests never ended."""
    if in_process and first == DIE:
        return  # would end this process
    with LLM(engine_factory="tests.scripted_engine:build", in_process=in_process) as llm:
        with pytest.raises(StageError, match=says):
            llm.generate([{"prompt_token_ids": [5, 6]}, {"prompt_token_ids": [first]}])
        with pytest.raises(StageError):
            llm.generate({"prompt_token_ids": [5]})


@pytest.mark.parametrize("in_process", mostly_slow([True, False], True))
def test_start_up_error_keeps_its_class_and_text(in_process: bool) -> None:
    """A wrong choice was reported as "the stage process ended with status 1"."""
    with pytest.raises(ConflictError) as caught:
        LLM(engine_factory="tests.scripted_engine:build_refused", in_process=in_process)
    assert str(caught.value) == "Fix: try something else"
    assert tuple(caught.value.fixes) == ("try something else",)


def test_start_up_fault_shows_its_traceback() -> None:
    """A fault at start-up was reduced to one word, or hung the client."""
    with pytest.raises(StageError) as caught:
        LLM(engine_factory="tests.scripted_engine:build_broken")
    assert "ZeroDivisionError: planted" in str(caught.value)
    assert "Traceback" in str(caught.value)
    with pytest.raises(RltError, match="cannot be loaded"):
        LLM(engine_factory="tests.scripted_engine:no_such_name")


def test_refused_request_fails_alone() -> None:
    """CASES A87: the engine's refusal of one request ended the stage."""
    client = LocalClient(config())
    requests = [
        EngineRequest(request_id=i, prompt=np.asarray([first], np.int64), max_tokens=1)
        for i, first in enumerate((REFUSE, 5))
    ]
    client.send(AddRequests(requests=requests))
    first, *rest = client.receive(1.0)
    assert first == RequestFailed(request_id=0, field="prompt", reason="refused by the engine")
    while not rest:
        rest = client.receive(1.0)
    assert isinstance(rest[0], Tick)
    assert rest[0].events.request_id.tolist() == [1]
    client.close()


def run_script(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "script.py"
    path.write_text(textwrap.dedent(script))
    root = str(Path(__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": root}
    there = folder / "there"
    there.mkdir()
    (there / "msgspec.py").write_text("raise SystemExit('the wrong msgspec')")
    command = [sys.executable, str(path)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=50, cwd=there)


@pytest.mark.slow
def test_script_without_main_guard(tmp_path: Path) -> None:
    """multiprocessing's spawn ran the user's script again in the child. And a file with a
    library's name in the current folder was imported by the stage."""
    done = run_script(
        """
        from rlt_core.api.llm import LLM
        print("once")
        llm = LLM(engine_factory="tests.scripted_engine:build")
        print(llm.generate({"prompt_token_ids": [5, 6]})[0].outputs[0].token_ids[:2])
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "once\n[5, 6]\n", "")


@pytest.mark.slow
def test_killed_client_leaves_no_stage(tmp_path: Path) -> None:
    """A client that was killed left its stage, with all its memory, behind."""
    done = run_script(
        """
        import os, signal
        from rlt_core.api.llm import LLM
        llm = LLM(engine_factory="tests.scripted_engine:build")
        print(llm._client.pid, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """,
        tmp_path,
    )
    pid = int(done.stdout)
    assert wait_until(lambda: not is_running(pid))


def test_dropped_llm_ends_its_stage() -> None:
    """An LLM that went out of scope without close left its process running."""
    llm = LLM(engine_factory="tests.scripted_engine:build")
    pid = pid_of(llm)
    assert is_running(pid)
    del llm
    assert wait_until(lambda: not is_running(pid))


@pytest.mark.slow
def test_forked_copy_leaves_the_stage_alone(llm: LLM) -> None:
    """A forked worker that ended shut down its parent's stage, or took its socket's folder."""
    client = llm._client
    assert isinstance(client, StageClient)
    child = os.fork()
    if child == 0:
        try:
            llm.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert client._process.folder.exists()
    assert llm.generate({"prompt_token_ids": [5]})[0].outputs[0].token_ids
