"""pytest plugin for performance tests: bounds and baselines for the body of a test.

pytest loads the plugin through an entry point. ``@pytest.mark.ml_performance(max=[...],
baseline="...")`` records the body of a test as a run. The test fails if a bound of ``otel-mlperf
compare --check`` is violated or the body is significantly slower than its baseline. Tests without
the marker are unaffected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from otel_mlperf.errors import OtelMlperfError, UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from otel_mlperf.analysis.comparison.bounds import Bound, Verdict
    from otel_mlperf.analysis.comparison.comparison_shapes import RunMeasures
    from otel_mlperf.integrations.recorded_body import RecordedBody

NAME: Final = "ml_performance"
"""Name of the marker and of the fixture."""
_WRITE: Final = "--ml-performance-write"
_ARGUMENTS: Final = {"max", "baseline", "tolerance"}
_MARKER: Final = (
    f"{NAME}(max=[...], baseline='FILE', tolerance=0.0): record the test's body as a run, and "
    "check bounds such as 'train.step.p95=20ms' or 'samples_per_s>=1000'"
)
_STASH: Final = pytest.StashKey["PerformanceTest"]()


class PerformanceTest:
    """Value of the fixture ``ml_performance``: bounds and baseline of one test."""

    def __init__(self, item: pytest.Item) -> None:
        marker = item.get_closest_marker(NAME)
        given = dict(marker.kwargs) if marker else {}
        if unknown := given.keys() - _ARGUMENTS or (marker and marker.args):
            raise UsageError(
                f"@pytest.mark.{NAME}: unknown arguments {unknown}; expected {_MARKER}"
            )
        maxima = given.get("max", ())
        self._bounds: list[str] = [maxima] if isinstance(maxima, str) else list(maxima)
        baseline = given.get("baseline")
        self.baseline: Path | None = item.config.rootpath / baseline if baseline else None
        self.tolerance = float(given.get("tolerance", 0.0))

    def hold(self, *bounds: str) -> None:
        """Add bounds from inside the test's body."""
        self._bounds += bounds

    def judge(self, measures: RunMeasures, *, writes: bool) -> list[Verdict]:
        """Return the verdicts on bounds and baseline; if ``writes``, replace the baseline instead.

        Raises:
            UsageError: a bound is invalid or names something that was not recorded, or the baseline
                is missing.
            StoreError: the baseline cannot be read.
        """
        from otel_mlperf.analysis.comparison.bounds import judge_bound, judge_changes, parse_bound
        from otel_mlperf.analysis.comparison.comparison import compare_runs
        from otel_mlperf.analysis.comparison.run_measures import read_baseline

        bounds: list[Bound] = [parse_bound(text) for text in self._bounds]
        verdicts = [judge_bound(measures, bound) for bound in bounds]
        if self.baseline is None:
            return verdicts
        if writes:
            _write(self.baseline, measures)
            return verdicts
        if not self.baseline.exists():
            raise UsageError(
                f"the baseline {self.baseline} does not exist yet: write the file with pytest "
                f"{_WRITE}"
            )
        comparison = compare_runs(read_baseline(self.baseline), measures)
        return verdicts + judge_changes(comparison, self.tolerance)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that writes baselines."""
    parser.getgroup("otel-mlperf").addoption(
        _WRITE, action="store_true", help=f"write the baseline files of tests marked {NAME}"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, for ``--strict-markers``."""
    config.addinivalue_line("markers", _MARKER)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Load the measuring modules before the first measured test, if there is one."""
    if any(map(_is_measured, session.items)):
        import otel_mlperf.analysis.comparison.bounds
        import otel_mlperf.integrations.recorded_body  # noqa: F401


@pytest.fixture
def ml_performance(request: pytest.FixtureRequest) -> PerformanceTest:
    """Record the test's body as a run; ``hold("forward.p95=3ms")`` adds a bound."""
    test: PerformanceTest = _performance_test(request.node)
    return test


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Record and judge the body of a test with the marker or fixture."""
    if not _is_measured(item):
        return (yield)
    from otel_mlperf.integrations.recorded_body import record_body

    test = _performance_test(item)
    with record_body(item.name) as body:
        result = yield
        found = _judge(test, body, writes=item.config.getoption(_WRITE))
    if isinstance(found, str):
        pytest.fail(found, pytrace=False)
    _report(item, found)
    return result


def _judge(test: PerformanceTest, body: RecordedBody, *, writes: bool) -> list[Verdict] | str:
    """Return the verdicts, or an error's message if the body cannot be judged."""
    try:
        return test.judge(body.measure(), writes=writes)
    except OtelMlperfError as error:
        return str(error)


def _is_measured(item: pytest.Item) -> bool:
    return item.get_closest_marker(NAME) is not None or NAME in getattr(item, "fixturenames", ())


def _performance_test(item: pytest.Item) -> PerformanceTest:
    if _STASH not in item.stash:
        item.stash[_STASH] = PerformanceTest(item)
    return item.stash[_STASH]


def _write(file: Path, measures: RunMeasures) -> None:
    import msgspec

    from otel_mlperf.whole_file import new_file

    file.parent.mkdir(parents=True, exist_ok=True)
    with new_file(file, is_replaced=True) as stream:
        stream.write(msgspec.json.format(msgspec.json.encode(measures), indent=1) + b"\n")


def _report(item: pytest.Item, verdicts: Sequence[Verdict]) -> None:
    """Fail with all verdicts if one is a breach; otherwise add the verdicts to the test report."""
    from otel_mlperf.report.verdicts import is_broken, render_verdicts

    if not verdicts:
        return
    # Breaches come first: pytest's list of failures shows only the first line.
    ordered = sorted(verdicts, key=lambda verdict: verdict.level != "breach")
    page = render_verdicts(ordered).rstrip("\n")
    if is_broken(verdicts):
        pytest.fail(page, pytrace=False)
    item.add_report_section("call", NAME, page)
