"""`make test` and `make check` together run every test, and the first says what it left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiers

TESTS = """
import pytest
from hypothesis import given, strategies

@given(strategies.none())
def test_property(_):
    pass

@pytest.fixture
def servers():
    pass

def test_plain():
    pass

def test_with_servers(servers):
    pass

@pytest.mark.frameworks
def test_with_a_framework():
    pass

@pytest.mark.slow
def test_slow():
    pass

HEAVY = [pytest.param(n, marks=pytest.mark.frameworks) for n in range(5, 50)]

@pytest.mark.sampled(2)
@pytest.mark.parametrize("n", [*range(5), *HEAVY])
def test_table(n):
    pass

@pytest.mark.sampled(1, by="name")
@pytest.mark.parametrize("style", ["x", "y"])
@pytest.mark.parametrize("name", ["a", "b"])
def test_of_a_program(name, style):
    pass
"""
ONLY_IN_CHECK = {"test_with_servers", "test_with_a_framework", "test_slow"}
TABLE = {f"test_table[{n}]" for n in range(5)}
PROGRAMS = {name: {f"test_of_a_program[{name}-{style}]" for style in "xy"} for name in "ab"}
CASES = TABLE.union(*PROGRAMS.values())
HEAVY = {f"test_table[{n}]" for n in range(5, 50)}


@pytest.fixture
def selected(pytester, monkeypatch):
    """Runs pytest over `TESTS`; the names that passed, and the "not run" line."""
    monkeypatch.setenv("PYTHONPATH", str(Path(tiers.__file__).parent))
    pytester.makeini("[pytest]\nmarkers = servers\n frameworks\n slow\n sampled(cases)\n")
    pytester.makepyfile(TESTS)

    def run(*options):
        done = pytester.runpytest_subprocess("-p", "tiers", "-v", *options)
        passed = {line.split()[0].partition("::")[2] for line in done.outlines if "PASSED" in line}
        return passed, [line for line in done.outlines if line.startswith("not run:")]

    return run


def test_a_quick_run_leaves_out_what_needs_more_and_samples_tables(selected):
    """It counts what it left out, by what that needs, and names the command."""
    passed, lines = selected("--tests", "quick")

    assert passed - CASES == {"test_plain", "test_property"}
    assert len(passed & TABLE) == 2
    assert passed & CASES - TABLE in PROGRAMS.values()
    assert lines == [
        "not run: 53 tests (1 need real servers, 46 need training frameworks, 1 need more time, "
        "5 are further cases of sampled tests): make check"
    ]


def test_the_rest_is_what_a_quick_run_left_out_and_whole_tables(selected):
    """The two runs have only cases of tables, and properties with more examples, in common."""
    passed, lines = selected("--tests", "rest")

    assert passed == {"test_property"} | ONLY_IN_CHECK | CASES | HEAVY
    assert lines == []


def test_without_the_option_every_test_runs(selected):
    """As somebody asks for who names a file."""
    passed, lines = selected()

    assert passed == {"test_plain", "test_property"} | ONLY_IN_CHECK | CASES | HEAVY
    assert lines == []


@pytest.mark.slow
def test_a_sample_is_drawn_by_the_seed(selected):
    """The same seed runs the same cases, another one others."""
    draws = [selected("--tests", "quick", f"--randomly-seed={seed}")[0] for seed in (1, 1, 2)]

    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


@pytest.mark.slow
def test_processes_of_xdist_run_one_sample_and_report_it_once(selected):
    """Each process collects the same tests: their counts are not added up."""
    _, lines = selected("--tests", "quick", "-n", "2")

    assert len(lines) == 1
    assert lines[0].startswith("not run: 53 tests (")
