"""A model's own options on the host: checked at arrival, made into columns at admission."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rlt_core.contract.errors import RequestError
from rlt_core.contract.specs import STATE_SEED, ParamSpec
from rlt_core.plugins.plan import Plan
from rlt_core.runtime.option_columns import OptionColumns
from rlt_core.schedule.record import Record
from rlt_core.schedule.request import EngineRequest
from rlt_core.schedule.table_store import TableStore

_DTYPES = {"float": np.float32, "int": np.int64, "flag": np.bool_}


class ModelOptions:
    """The options that the plan's model declared, and the tables that live requests brought."""

    def __init__(self, plan: Plan, max_len: int) -> None:
        self._model, self._specs = plan.model.id, plan.model.options
        self.declared = bool(self._specs)  # whether the model has any
        # The state seed has a column of its own (SlotParams.state_seed).
        self._scalars = [s for s in self._specs if s.kind in _DTYPES and s.name != STATE_SEED]
        self._tables = [spec.name for spec in self._specs if spec.kind == "table"]
        self.tables = TableStore(plan.shape.table_widths, max_len)

    def check(self, request: EngineRequest) -> None:
        """RequestError for an option that the model does not have, or that cannot work here."""
        known = [spec.name for spec in self._scalars]
        for name, value in request.options.items():
            if name not in known:
                raise RequestError(name, f"model '{self._model}' declares no such option")
            if not math.isfinite(value):
                raise RequestError(name, f"{value} is no finite number")
        for name in request.tables:
            if name not in self._tables:
                raise RequestError(name, f"model '{self._model}' declares no such table")

    def chained(self, request: EngineRequest) -> str | None:
        """The option for which the request reads its predecessor's state; None without one."""
        for spec in self._specs:
            if spec.chains and (spec.name in request.tables or _is_set(spec, request)):
                return spec.name
        return None

    def columns(self, records: Sequence[Record]) -> OptionColumns:
        """The options of requests that have just got their slots."""
        places = [place for record in records for place in (record.tables or {}).items()]
        return OptionColumns(
            scalars={
                spec.name: np.array(
                    [record.request.options.get(spec.name, spec.default) for record in records],
                    _DTYPES[spec.kind],
                )
                for spec in self._scalars
            },
            tables={
                name: np.array([(record.tables or {}).get(name, -1) for record in records])
                for name in self._tables
            },
            chains=np.array([record.chains for record in records]),
            uploads=self.tables.uploads(places),
        )


def _is_set(spec: ParamSpec, request: EngineRequest) -> bool:
    return request.options.get(spec.name, spec.default) != spec.default
