"""Which functions of Python took the time of profiler windows with stacks?

Those of all windows of all ranks, added up by name. What PyTorch's operators took inside a function
is theirs, not its own. Our own functions, which run because it is recorded, are left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.store.table_reader import Store

_WINDOWS: Final = """SELECT count(*), count(DISTINCT rank), sum(end_ns - start_ns)::BIGINT
FROM windows WHERE digest IN (SELECT digest FROM totals WHERE what = 'python')"""
_FUNCTIONS: Final = """SELECT name, arg_max(section, section_ns) AS section,
    sum(count)::BIGINT AS calls, sum(self_ns)::BIGINT AS own_ns, sum(total_ns)::BIGINT AS total_ns
FROM totals WHERE what = 'python' GROUP BY name ORDER BY own_ns DESC, name"""
_WRITTEN: Final = re.compile(r"(?P<file>.+)\((?P<line>\d+)\): (?P<name>.+)")
"""As PyTorch names one that is written in Python; one in C is in angle brackets."""
_OURS: Final = re.compile(r"(.*/)?otel_mlperf/(recorder|journal|integrations|pytorch)/")


class WindowFunctions(NamedTuple):
    """All of them, the largest first."""

    windows: int
    ranks: int
    duration_ns: int
    """Of the windows that have any."""
    functions: Sequence[dict[str, Any]]
    """Name, file and line, section with most of it, calls and times."""


def read_window_functions(store: Store, section: str | None = None) -> WindowFunctions | None:
    """Those whose time is mostly in one section, if it is given; None where there are none."""
    ((windows, ranks, duration_ns),) = store.rows(_WINDOWS)
    if not windows:
        return None
    functions = [
        row | _named(row["name"])
        for row in store.records(_FUNCTIONS)
        if section in (None, row["section"]) and not _OURS.match(row["name"])
    ]
    return WindowFunctions(windows, ranks, duration_ns, functions) if functions else None


def _named(name: str) -> dict[str, Any]:
    found = _WRITTEN.fullmatch(name)
    if found is None:
        return {"name": name.strip("<>"), "file": "", "line": 0}
    return found.groupdict() | {"line": int(found["line"])}
