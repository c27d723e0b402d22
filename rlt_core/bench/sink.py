"""The other end of the host benchmark: a process that reads messages until it is told to stop.

python -m rlt_core.bench.sink ipc:///tmp/some.sock
"""

from __future__ import annotations

import os
import sys

import zmq

END = b""


def main(endpoint: str) -> int:
    """Read every message; an empty one ends the process, and so does the end of its parent."""
    parent = os.getppid()
    with zmq.Context() as context, context.socket(zmq.PULL) as inbox:
        inbox.set_hwm(0)
        inbox.connect(endpoint)
        while os.getppid() == parent:
            if inbox.poll(500) and inbox.recv() == END:
                break
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
