"""Tiers of tests: which tests `make test` runs, and which only `make check`.

``--tests quick`` leaves out tests with a marker of `ONLY_IN_CHECK`, and runs a sample of the cases
of tests with the marker ``sampled``, and few examples of property tests. ``--tests rest`` runs what
``quick`` left out, and both of these whole. Without the option every test runs.
"""

from __future__ import annotations

import importlib
import os
import random
from collections import Counter
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, settings
from servers.build import REQUIRE

if TYPE_CHECKING:
    from types import ModuleType

ONLY_IN_CHECK: Final = {
    "servers": "real servers",
    "browser": "a browser",
    "frameworks": "training frameworks",
    "traces": "recorded traces",
    "slow": "more time",
}
"""Markers of tests that `make test` leaves out, and what these tests need."""
FIXTURES: Final = {
    "servers": {"servers", "collector", "mlflow_server", "wandb_package", "trackio_python",
                "promtool", "otelcol", "jaeger_program", "go"},
    "browser": {"browser", "ui"},
}  # fmt: skip
"""A test that requests one of these fixtures has the marker."""
_QUICK_EXAMPLES: Final = 10


class _Tier:
    name = "all"
    """The tier of this session, for modules that are being collected."""


_COUNTS = pytest.StashKey[Counter[str]]()


def import_framework(name: str) -> ModuleType:
    """Import a package of ``requirements/check.txt``; without it the test or module is skipped."""
    require_packages(name.partition(".")[0])
    return importlib.import_module(name)


def require_packages(*names: str) -> None:
    """Skip the test or module where one of these packages is not installed.

    With ``OTEL_MLPERF_REQUIRE_SERVERS`` a missing package is a failure, but not to quick tests:
    these run in an environment without such packages.
    """
    missing = [name for name in names if find_spec(name) is None]
    if missing and (_Tier.name == "quick" or not os.environ.get(REQUIRE)):
        reason = f"{', '.join(missing)}: installed by make check only"
        pytest.skip(reason, allow_module_level=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds ``--tests``."""
    parser.addoption(
        "--tests", choices=("quick", "rest", "all"), default="all",
        help="quick: those of `make test`; rest: what only `make check` runs; default: all",
    )  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Loads the profile of property tests: fewer examples in quick runs."""
    config.stash[_COUNTS] = Counter()
    _Tier.name = config.option.tests
    # The duration of an example depends on how busy the machine is.
    untimed: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
    settings.register_profile("all", **untimed)
    settings.register_profile("quick", max_examples=_QUICK_EXAMPLES, **untimed)
    settings.load_profile("quick" if config.option.tests == "quick" else "all")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Gives a test the markers of the fixtures that it requests."""
    requested = set(getattr(item, "fixturenames", ()))
    for marker, fixtures in FIXTURES.items():
        if fixtures & requested:
            item.add_marker(marker)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what is not of the tier."""
    tier, counts = config.option.tests, config.stash[_COUNTS]
    if tier == "all":
        return
    needs = {item: _needs(item) for item in items}
    light = [item for item in items if not needs[item]]
    sample = _sample(light, config.getoption("randomly_seed", 0))
    quick = [item for item in light if _is_in(sample, item)]
    rest = [item for item in items if needs[item] or _is_partial(item)]
    items[:], other = (quick, rest) if tier == "quick" else (rest, quick)
    chosen = set(items)
    left_out = [item for item in other if item not in chosen]
    config.hook.pytest_deselected(items=left_out)
    for item in left_out:
        counts[needs[item] or "sampled"] += 1


def _needs(item: pytest.Item) -> str:
    markers = {marker.name for marker in item.iter_markers()}
    return next((name for name in ONLY_IN_CHECK if name in markers), "")


def _is_partial(item: pytest.Item) -> bool:
    """Whether a quick run leaves out a part of it; Hypothesis marks its tests itself."""
    return any(item.get_closest_marker(name) for name in ("sampled", "hypothesis"))


def _sample(items: list[pytest.Item], seed: int) -> set[str]:
    """Node ids of the cases of sampled tests that a quick run takes, a few of each test.

    With ``by`` the values of that parameter are drawn, the same for all tests of the file.
    """
    cases: dict[str, dict[str, list[str]]] = {}
    most: dict[str, int] = {}
    for item in items:
        if marker := item.get_closest_marker("sampled"):
            table, case = item.nodeid.partition("[")[0], item.nodeid
            if by := marker.kwargs.get("by"):
                parameters = item.callspec.params  # type: ignore[attr-defined]
                table, case = item.nodeid.partition("::")[0], str(parameters[by])
            cases.setdefault(table, {}).setdefault(case, []).append(item.nodeid)
            most[table] = marker.args[0]
    found: set[str] = set()
    for table, nodes in cases.items():
        dice = random.Random(f"{seed} {table}")  # the same in each process of a run
        drawn = dice.sample(sorted(nodes), min(most[table], len(nodes)))
        found.update(node for case in drawn for node in nodes[case])
    return found


def _is_in(sample: set[str], item: pytest.Item) -> bool:
    return not item.get_closest_marker("sampled") or item.nodeid in sample


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hands the counts of a process of pytest-xdist to the one that reports."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = dict(session.config.stash[_COUNTS])


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Takes the counts over; each process has collected the same tests."""
    node.config.stash[_COUNTS] = Counter(getattr(node, "workeroutput", {}).get("left_out", {}))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Says in one line what a quick run left out, and which command runs it."""
    counts = config.stash[_COUNTS]
    if config.option.tests != "quick" or not counts:
        return
    needs = [f"{counts[name]} need {what}" for name, what in ONLY_IN_CHECK.items() if counts[name]]
    needs += (
        [f"{counts['sampled']} are further cases of sampled tests"] if counts["sampled"] else []
    )
    terminalreporter.write_line(f"not run: {counts.total()} tests ({', '.join(needs)}): make check")
