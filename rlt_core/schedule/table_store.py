"""The tables that live requests brought: which is where on the device, and until when."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rlt_core.contract.errors import RequestError
from rlt_core.runtime.batch import F32
from rlt_core.runtime.option_columns import MAX_TABLES, TableUpload
from rlt_core.runtime.table_file import TableFile, check_table_shape, read_table

Place = tuple[str, int]  # option, place among its tables


@dataclass(slots=True, kw_only=True)
class _Held:
    """A table in use; values until the device has them."""

    file: TableFile
    shape: tuple[int, ...]
    values: F32 | None
    num_users: int = 0


class TableStore:
    """At most MAX_TABLES different tables of each option, each kept while a request uses it."""

    def __init__(self, widths: Mapping[str, int], max_len: int) -> None:
        self._widths, self._max_len = widths, max_len
        self._held: dict[Place, _Held] = {}

    def __len__(self) -> int:
        return len(self._held)

    def take(self, tables: Mapping[str, TableFile], num_rows: int) -> dict[str, int]:
        """Places of a request's tables, by option; reads files that are not held yet.

        RequestError, and nothing taken, when a file cannot be used or no place is left.
        """
        taken: dict[str, int] = {}
        try:
            for name, file in tables.items():
                taken[name] = self._take(name, file, num_rows)
        except RequestError:
            self.release(taken)
            raise
        return taken

    def release(self, places: Mapping[str, int]) -> None:
        """A request that took these has ended."""
        for place in places.items():
            held = self._held[place]
            held.num_users -= 1
            if not held.num_users:
                del self._held[place]

    def uploads(self, places: Iterable[Place]) -> list[TableUpload]:
        """The tables among these places that the device has not got yet; each once."""
        found = []
        for name, index in places:
            held = self._held[name, index]
            if held.values is not None:
                alone = sum(option == name for option, _ in self._held) == 1
                found.append(TableUpload(name=name, index=index, values=held.values, alone=alone))
                held.values = None
        return found

    def _take(self, name: str, file: TableFile, num_rows: int) -> int:
        used = {index: held for (option, index), held in self._held.items() if option == name}
        index = next((i for i, held in used.items() if held.file == file), None)
        if index is None:
            index = self._read(name, file, used)
        held = self._held[name, index]
        held.num_users += 1
        try:
            width = self._widths[name]
            check_table_shape(name, file.path, held.shape, num_rows=num_rows, width=width)
        except RequestError:
            self.release({name: index})
            raise
        return index

    def _read(self, name: str, file: TableFile, used: Mapping[int, _Held]) -> int:
        free = next((i for i in range(MAX_TABLES) if i not in used), None)
        if free is None:
            reason = f"{MAX_TABLES} other tables are in use by requests; no more at a time"
            raise RequestError(name, reason)
        table = read_table(name, file.path)
        if table.file != file:
            raise RequestError(name, f"{file.path} changed after the request was made")
        values = table.values[: self._max_len]
        self._held[name, free] = _Held(file=file, shape=table.values.shape, values=values)
        return free
