"""The core's three KV layouts, and the check that every layout's tables pass before use.

last_exited  one plane a depth; an exit fills the deeper planes with the last values
shared       one plane; every loop overwrites its own position
last_step    the prompt as last_exited, then only its last plane; decoding as shared
"""

from __future__ import annotations

from rlt_core.contract.errors import PluginError
from rlt_core.contract.layouts import LayoutTables, PlaneRule
from rlt_core.contract.protocols import KVLayout


class LastExited:
    """Loop d writes and reads plane d - 1; a reader at depth d sees depth min(d, exit)."""

    def tables(self, loops: int) -> LayoutTables:
        """D planes, all kept; an exit at e fills planes e .. D - 1."""
        rule = _by_depth(loops)
        return LayoutTables(
            num_planes=loops,
            prompt=rule,
            decode=rule,
            prompt_order="depth",
            kept=tuple(range(loops)),
        )


class Shared:
    """One plane for all loops; a prompt runs position by position."""

    def tables(self, loops: int) -> LayoutTables:
        """One plane, kept; nothing is filled."""
        rule = _one_plane(loops, 0)
        return LayoutTables(
            num_planes=1, prompt=rule, decode=rule, prompt_order="position", kept=(0,)
        )


class LastStep:
    """A finished prompt keeps the plane of its last loop, where it is; decoding overwrites it."""

    def tables(self, loops: int) -> LayoutTables:
        """D planes in the prompt, then plane D - 1 alone: decoding writes and reads it."""
        return LayoutTables(
            num_planes=loops,
            prompt=_by_depth(loops),
            decode=_one_plane(loops, loops - 1),
            prompt_order="depth",
            kept=(loops - 1,),
        )


def checked_tables(name: str, layout: KVLayout, loops: int) -> LayoutTables:
    """The tables of `layout` (called `name` in messages), checked."""
    tables = layout.tables(loops)
    check_tables(tables, loops, name)
    return tables


def check_tables(tables: LayoutTables, loops: int, name: str = "of unknown name") -> None:
    """Raise PluginError unless the tables of a request of `loops` loops can be run.

    Lengths must be `loops`; prompts use planes below num_planes, generated tokens kept ones; a loop
    reads the plane it writes; an exit fills no plane that it just wrote, and none at depth D; two
    depths may share a plane in the prompt only when it runs position by position. Tables that hide
    keys have a plane a depth.
    """
    planes = range(tables.num_planes)
    if tables.prompt_order not in ("depth", "position"):
        raise _wrong(name, loops, f"prompt_order is '{tables.prompt_order}'")
    if not tables.kept or not _distinct_of(tables.kept, planes):
        raise _wrong(name, loops, f"kept {tables.kept} are not planes of {tables.num_planes}")
    _check_rule(name, loops, "prompt", tables.prompt, planes)
    _check_rule(name, loops, "decode", tables.decode, tables.kept)
    _check_missing(name, loops, tables)
    overwrites = len(set(tables.prompt.write)) < loops
    if overwrites and tables.prompt_order == "depth":
        raise _wrong(
            name, loops, "two depths of a prompt write one plane, but prompt_order is 'depth'"
        )


def _check_rule(
    name: str, loops: int, phase: str, rule: PlaneRule, planes: range | tuple[int, ...]
) -> None:
    for part in ("write", "read", "fill"):
        if len(getattr(rule, part)) != loops:
            length = len(getattr(rule, part))
            raise _wrong(name, loops, f"{phase}.{part} has {length} entries, one a loop is due")
    for part in ("write", "read"):
        strange = sorted(set(getattr(rule, part)) - set(planes))
        if strange:
            raise _wrong(name, loops, f"{phase}.{part} names planes {strange} without pages")
    if tuple(rule.read) != tuple(rule.write):
        given = f"{phase}.read is {tuple(rule.read)}, {phase}.write {tuple(rule.write)}"
        reason = f"{given}; they must be equal, as a row reads its own position, too"
        fix = "Fix: read the planes that are written; `fill` puts an exit's values into others"
        raise _wrong(name, loops, reason, fix)
    for exit_depth, fill in enumerate(rule.fill, 1):
        if not _distinct_of(fill, planes) or rule.write[exit_depth - 1] in fill:
            raise _wrong(name, loops, f"{phase}.fill at exit {exit_depth} is {tuple(fill)}")
    if rule.fill[-1]:
        raise _wrong(name, loops, f"{phase}.fill at the last depth is {tuple(rule.fill[-1])}")


def _check_missing(name: str, loops: int, tables: LayoutTables) -> None:
    if tables.missing not in ("filled", "hidden"):
        raise _wrong(name, loops, f"missing is '{tables.missing}'")
    if tables.missing == "filled":
        return
    for phase, rule in (("prompt", tables.prompt), ("decode", tables.decode)):
        # The device compares a position's KV depth with the number of the plane.
        if tuple(rule.write) != tuple(range(loops)) or any(rule.fill):
            reason = f"{phase} must write plane d - 1 in loop d and fill nothing to hide keys"
            raise _wrong(name, loops, reason)


def _by_depth(loops: int) -> PlaneRule:
    own = tuple(range(loops))
    fill = tuple(tuple(range(exit_depth, loops)) for exit_depth in range(1, loops + 1))
    return PlaneRule(write=own, read=own, fill=fill)


def _one_plane(loops: int, plane: int) -> PlaneRule:
    return PlaneRule(write=(plane,) * loops, read=(plane,) * loops, fill=((),) * loops)


def _distinct_of(values: tuple[int, ...], planes: range | tuple[int, ...]) -> bool:
    return len(set(values)) == len(values) and set(values) <= set(planes)


def _wrong(name: str, loops: int, reason: str, fix: str | None = None) -> PluginError:
    return PluginError(name, f"KV layout tables for {loops} loops: {reason}", fix)
