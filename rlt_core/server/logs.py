"""Logs as JSON, a line an event, on stderr."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import datetime, timezone
from typing import Any

ACCESS, FAULTS = "rlt.access", "rlt.server"


class JsonFormatter(logging.Formatter):
    """time, level, logger, message, and the fields that the event carries."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        return json.dumps(line, ensure_ascii=True, default=str)


def set_up_logs(*, access: bool) -> None:
    """Sends what the server says to stderr; without `access`, no line per request."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name, level in (("rlt", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level)
    logging.getLogger(ACCESS).disabled = not access


def log_request(fields: dict[str, Any]) -> None:
    """One line of the access log."""
    logging.getLogger(ACCESS).info("request", extra={"fields": fields})


def log_fault(error: BaseException, request_id: str, *, with_message: bool) -> None:
    """A fault of rlt: its class and where it was raised. Its message may hold parts of a prompt,
    and is left out unless asked for."""
    frames = [
        f"{frame.filename}:{frame.lineno} {frame.name}"
        for frame in traceback.extract_tb(error.__traceback__)
    ]
    fields = {"request_id": request_id, "error": type(error).__name__, "frames": frames}
    if with_message:
        fields["detail"] = str(error)
    logging.getLogger(FAULTS).error("fault", extra={"fields": fields})
