"""`python -m rlt_core.stage`: one stage process. Clients start it; it ends with its client."""

from __future__ import annotations

import argparse
import gc
import os
import select
import signal
import sys
import threading
from types import FrameType
from typing import NoReturn

import msgspec
import zmq

from rlt_core.plugins.loading import load_object
from rlt_core.stage.config import StageConfig
from rlt_core.stage.messages import decode_request, encode
from rlt_core.stage.stage import Stage, failure_message

LINGER_MS = 2000


def main() -> int:
    """Serves until a Shutdown, a SIGTERM or the end of the parent; exit status 0, 1 on failure."""
    args = _arguments()
    _keep_stdout_clean()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the client's
    signal.signal(signal.SIGTERM, _stop)
    if args.parent is not None:
        threading.Thread(target=_watch_parent, args=(args.parent,), daemon=True).start()
    context = zmq.Context()
    inbox, outbox = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket, endpoint in ((inbox, args.socket), (outbox, args.answers)):
        socket.set_hwm(0)
        socket.setsockopt(zmq.LINGER, LINGER_MS)
        socket.connect(endpoint)
    try:
        _serve(args.config, inbox, outbox)
        return 0
    except Exception as error:
        outbox.send(encode(failure_message(error)))
        return 1
    finally:
        context.destroy(linger=LINGER_MS)


def _serve(config_path: str, inbox: zmq.Socket[bytes], outbox: zmq.Socket[bytes]) -> None:
    config = _read_config(config_path)
    built = load_object(config.engine_factory)(config)
    # Weights and tables live as long as the process: the collector need not look at them again.
    gc.collect()
    gc.freeze()
    stage = Stage(built, lambda message: outbox.send(encode(message)))
    try:
        while not stage.ended:
            # Blocks only when there is nothing to do.
            if inbox.poll(0 if stage.has_work else None):
                stage.handle(decode_request(inbox.recv()))
            elif stage.has_work:
                stage.step()
    finally:
        stage.close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rlt_core.stage", description=__doc__)
    parser.add_argument("--socket", required=True, help="endpoint that requests come from")
    parser.add_argument("--answers", required=True, help="endpoint that answers go to")
    parser.add_argument("--config", required=True, help="StageConfig as JSON: a file, or -")
    parser.add_argument("--parent", type=int, help="end when this process or stdin ends")
    return parser.parse_args()


def _read_config(path: str) -> StageConfig:
    if path == "-":
        return msgspec.json.decode(sys.stdin.buffer.readline(), type=StageConfig)
    with open(path, "rb") as file:
        return msgspec.json.decode(file.read(), type=StageConfig)


def _keep_stdout_clean() -> None:
    # The client's stdout may be a pipe of JSON; a library that prints must not reach it.
    if sys.stdout is not None:  # a caller may have closed it
        sys.stdout.flush()
    os.dup2(2, 1)


def _stop(signum: int, frame: FrameType | None) -> NoReturn:
    sys.exit(0)


def _watch_parent(parent: int) -> None:
    """Ends this process at once when its parent is gone: by stdin's end or by its number."""
    try:
        while os.getppid() == parent:
            readable, _, _ = select.select([0], [], [], 0.5)
            if readable and not os.read(0, 1):
                break
    finally:
        os._exit(1)  # also when the watch itself fails: an orphan would hold its memory for ever


if __name__ == "__main__":
    sys.exit(main())
