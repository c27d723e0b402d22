"""What a client and a stage say to each other: typed messages, no pickle.

A message is a msgspec struct in a tagged union, packed as msgpack; an array travels as
(dtype, shape, raw little-endian bytes). A tick's events are one message, whatever their number.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import msgspec
import numpy as np

from rlt_core.contract.specs import ParamSpec
from rlt_core.runtime.batch import I32, I64
from rlt_core.schedule.request import EngineRequest, Events
from rlt_core.schedule.stats import EngineStats


class Message(msgspec.Struct, tag=True, kw_only=True):
    """Base of all messages."""


class AddRequests(Message):
    """Client: take these requests, in this order."""

    requests: list[EngineRequest]


class Abort(Message):
    """Client: drop these requests; ids that are done or unknown are ignored."""

    request_ids: list[int]


class Masks(Message):
    """Client: what masked requests may draw next; ids that are done or unknown are ignored.

    request_id, index: int64 [N], the request and the number of the output (from 0) that its mask
    is for: one mask for each, once the output before has come. words: int32 [N, W], as in
    runtime.mask_rows. A request whose mask lets no token through fails.
    """

    request_id: I64
    index: I64
    words: I32


class Ping(Message):
    """Client: answer with a Pong of the same number, between two ticks."""

    number: int


class GetStats(Message):
    """Client: answer with a Stats of the same number, between two ticks."""

    number: int


class Shutdown(Message):
    """Client: end the process; nothing more is answered."""


class StageReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage serves and how much fits.

    max_len: tokens of one request, prompt and outputs; what the pool can hold is seen to.
    token_capacity: positions that all pages hold together at max_depth. max_depth: the largest
    `loops` a request may ask for. exit_params: the policy's request parameters. model_options: the
    model's own, and table_widths the columns of those that are tables. notes: sentences on
    everything the system picked itself.
    """

    model: str
    vocab_size: int
    loops: int
    max_depth: int
    max_len: int
    token_capacity: int
    num_slots: int
    num_pages: int
    page_size: int
    max_logprobs: int
    eos_token_ids: tuple[int, ...]
    exit_policy: str
    exit_mode: str
    exit_params: tuple[ParamSpec, ...]
    exit_defaults: dict[str, float]
    loops_override: bool
    model_options: tuple[ParamSpec, ...] = ()
    table_widths: dict[str, int] = {}
    kv_layout: str
    strategy: str
    prompts: str
    device: str
    dtype: str
    notes: tuple[str, ...] = ()


class Ready(Message):
    """Stage: weights are loaded; sent once, before anything else."""

    report: StageReport


class Tick(Message):
    """Stage: what one tick gave."""

    events: Events


class RequestFailed(Message):
    """Stage: this one request was refused; the others go on."""

    request_id: int
    field: str
    reason: str


class Pong(Message):
    """Stage: the answer to a Ping."""

    number: int


class Stats(Message):
    """Stage: the answer to a GetStats."""

    number: int
    stats: EngineStats


class StageFailed(Message):
    """Stage: it ends now. `error` is the class of an RltError (its text in `text`, its plain
    fields in `fields`), or None for a fault of rlt, whose traceback is the text."""

    error: str | None
    text: str
    fields: dict[str, Any] = {}


Request = AddRequests | Abort | Masks | Ping | GetStats | Shutdown
Answer = Ready | Tick | RequestFailed | Pong | Stats | StageFailed


def encode(message: Message) -> bytes:
    """The bytes of a message."""
    return _ENCODER.encode(message)


def decode_request(data: bytes) -> Request:
    """The message a client sent; msgspec.ValidationError when it is none."""
    return _REQUESTS.decode(data)


def decode_answer(data: bytes) -> Answer:
    """The message a stage sent; msgspec.ValidationError when it is none."""
    return _ANSWERS.decode(data)


_BIG_ENDIAN = sys.byteorder == "big"
_INT64 = np.dtype("<i8")


def _pack_array(value: object) -> tuple[str, tuple[int, ...], bytes]:
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"{type(value).__name__} cannot travel between processes")
    if _BIG_ENDIAN:
        value = value.astype(value.dtype.newbyteorder("<"))
    dtype = value.dtype
    # Every tick's array is one of these, and to look a dtype up costs as much as to copy it.
    name = "<i8" if dtype is _INT64 else _dtype_name(dtype)
    return name, value.shape, value.tobytes()


@lru_cache(maxsize=64)
def _dtype_name(dtype: np.dtype[Any]) -> str:
    # numpy formats it anew every time.
    return str(dtype.str)


def _unpack_array(kind: type, packed: Any) -> Any:
    dtype, shape, data = packed
    # A copy: the receiver may write into it, and the message's buffer is let go.
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_pack_array)
_REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(
    Request, dec_hook=_unpack_array
)
_ANSWERS: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer, dec_hook=_unpack_array)
