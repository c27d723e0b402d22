"""What all bodies of requests have in common: exact types, no unknown field, finite numbers."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from rlt_core.contract.errors import RequestError

MAX_INT = 2**31 - 1
MAX_STOPS, MAX_STOP_LEN = 16, 1024

# A field of the API that this server refuses; null is what it is without.
Refused = Annotated[None, Field(default=None, description="Not supported: null or left out.")]


class Body(BaseModel):
    """A JSON object with exactly the fields of its class, each of exactly its type.

    `refused` says, by field, why the server cannot honour it; `see` names what to use instead of
    a field that it does not know. Both raise a RequestError naming the field.
    """

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    refused: ClassVar[Mapping[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _known(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        for name, value in data.items():
            if name in cls.refused and value is not None:
                raise RequestError(name, f"is not supported: {cls.refused[name]}")
            if name not in cls.model_fields:
                raise RequestError(str(name), _unknown(str(name), cls.model_fields))
        return data


class Part(BaseModel):
    """A JSON object inside a body: no unknown field, no type but its own."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


def _unknown(name: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(name, known, n=2)
    hint = f" (did you mean {' or '.join(near)}?)" if near else ""
    return f"is no field of this route{hint}"


def _whole(value: Any) -> Any:
    """JSON has one kind of number: 1.0 is an integer."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _json_table(table: dict[str, Any]) -> dict[str, Any]:
    """What a template or a grammar writes out again must be JSON and Unicode."""
    try:
        json.dumps(table, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError(f"is no JSON of finite numbers and Unicode text ({error})") from error
    return table


# The bound makes pydantic look whether it is Unicode text: half a surrogate pair is none.
Text = Annotated[str, Field(max_length=2**28)]
# Behind the range, which would else not be in the schema.
WHOLE = BeforeValidator(_whole)
JsonTable = Annotated[dict[str, Any], AfterValidator(_json_table)]
TokenId = Annotated[int, Field(ge=0, le=MAX_INT), WHOLE]
Count = Annotated[int, Field(ge=1, le=MAX_INT), WHOLE]
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_LEN)]
# Temperatures in between would divide logits past what float32 holds.
Temperature = Annotated[
    float,
    Field(
        ge=0, le=100, json_schema_extra={"not": {"exclusiveMinimum": 0, "exclusiveMaximum": 0.001}}
    ),
]
