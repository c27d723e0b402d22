"""Every error as OpenAI's clients read it; no traceback leaves the server.

status  type                       when
400     invalid_request_error      a field is wrong; `param` names it
401     invalid_request_error      no key, or a wrong one
404     invalid_request_error      no such route, or no such model
405     invalid_request_error      another method
408     timeout_error              the client took too long to send its request
413     invalid_request_error      the body is too large
429     rate_limit_error           the queue is full; Retry-After says when to come again
431     invalid_request_error      the headers are too large
500     internal_error             a fault of rlt; the log has it under the request's id
503     service_unavailable_error  no stage serves now
504     timeout_error              the request did not end within its time
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import Request

from rlt_core.contract.errors import (
    BusyError,
    CheckpointError,
    DeadlineError,
    LengthError,
    OptionError,
    RequestError,
    RltError,
    StageError,
)
from rlt_core.server.places import request_error, writable

RETRY_UNREADY_S = 5


class ErrorDetail(BaseModel):
    """What went wrong; `param` is the field at fault, `code` a word for programs."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer that is an error."""

    error: ErrorDetail


class ApiError(Exception):
    """An answer that is an error; routes raise it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self.status, self.headers = status, dict(headers or {})
        self.detail = ErrorDetail(message=message, type=_type(status), param=param, code=code)
        super().__init__(message)

    @property
    def body(self) -> dict[str, Any]:
        """The JSON body; also what an event stream sends when it fails."""
        return ErrorBody(error=self.detail).model_dump()

    @property
    def response(self) -> JSONResponse:
        """The whole answer."""
        return JSONResponse(self.body, self.status, self.headers)


def api_error(error: RltError) -> ApiError:
    """What a client is told of an error of the engine."""
    text = str(error)
    if isinstance(error, RequestError):
        code = "context_length_exceeded" if isinstance(error, LengthError) else "invalid_value"
        return ApiError(400, writable(text), param=writable(error.field), code=code)
    if isinstance(error, OptionError):
        return ApiError(400, text, param=error.option, code="invalid_value")
    if isinstance(error, CheckpointError):
        # Of a request: the model has no chat template, no tokenizer. Its folder is our affair.
        message = error.reason if error.fix is None else f"{error.reason}\n{error.fix}"
        return ApiError(400, message, code="not_supported")
    if isinstance(error, BusyError):
        headers = {"Retry-After": str(error.retry_after)}
        return ApiError(429, text, code="queue_full", headers=headers)
    if isinstance(error, DeadlineError):
        return ApiError(504, text, code="deadline")
    if isinstance(error, StageError):
        return unready(text)
    return ApiError(400, text)


def unready(reason: str) -> ApiError:
    """No stage serves now."""
    headers = {"Retry-After": str(RETRY_UNREADY_S)}
    return ApiError(503, reason, code="not_ready", headers=headers)


def internal_error(request_id: str) -> ApiError:
    """A fault of rlt: what it was is in the log alone."""
    return ApiError(500, f"internal error; the log has it under {request_id}", code="internal")


def responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of a route: these errors and those that every route has."""
    described = sorted({401, 408, 413, 431, 500, *statuses})
    return {status: {"model": ErrorBody, "description": _WHEN[status]} for status in described}


async def on_api_error(request: Request, error: Exception) -> JSONResponse:
    """Handler of ApiError."""
    assert isinstance(error, ApiError), error
    return error.response


async def on_rlt_error(request: Request, error: Exception) -> JSONResponse:
    """Handler of RltError."""
    assert isinstance(error, RltError), error
    return api_error(error).response


async def on_http_error(request: Request, error: Exception) -> JSONResponse:
    """Handler of what Starlette raises itself: no such route, another method."""
    assert isinstance(error, HTTPException), error
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code)
    return ApiError(error.status_code, str(error.detail), code=code, headers=error.headers).response


async def on_invalid(request: Request, error: Exception) -> JSONResponse:
    """Handler of a request that its schema refuses: a 400 that names the field."""
    assert isinstance(error, RequestValidationError), error
    # Its text holds no value of the request, which may be long, or a prompt.
    return api_error(request_error(error.errors(), error.body)).response


def _type(status: int) -> str:
    return _TYPES.get(status, "invalid_request_error")


_TYPES = {
    408: "timeout_error",
    429: "rate_limit_error",
    500: "internal_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_WHEN = {
    400: "A field is wrong; `param` names it",
    401: "No API key, or a wrong one",
    404: "No such model",
    408: "The client took too long to send its request",
    413: "The body is too large",
    429: "The queue is full; Retry-After says when to come again",
    431: "The headers are too large",
    500: "A fault of the server",
    503: "No stage serves now",
    504: "The request did not end within its time",
}
