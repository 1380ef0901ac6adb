"""Every listed fault has a test that checks its promise, or a reason."""

from __future__ import annotations

import re

import faults
import pages

GIVEN = {"F": [(1, 12), (20, 31), (40, 44), (50, 60), (70, 75), (80, 100)], "S": [(1, 21)]}
"""The numbers that were given, from the first to the last of each series."""


def test_no_number_is_missing():
    """Whoever looks one up finds it, and in its order."""
    given = [
        f"{letter}{number:02}" if letter == "F" else f"{letter}{number}"
        for letter, series in GIVEN.items()
        for first, last in series
        for number in range(first, last + 1)
    ]

    assert list(faults.FAULTS) == given


def test_each_has_a_test_or_a_reason():
    """A fault without a test says why there is none."""
    held = faults.marked_tests()

    assert [
        name for name, it in faults.FAULTS.items() if name not in held and not it.untested
    ] == []


def test_tests_name_faults_that_there_are():
    """A number that was mistyped is found."""
    assert faults.marked_tests().keys() - faults.FAULTS.keys() == set()


def test_a_marker_that_is_no_list_of_numbers_is_not_missed():
    """What is read from the text of the tests is all that stands there."""
    written = [
        path
        for path in faults.TESTS.rglob("test_*.py")
        for _ in re.findall(r"^@pytest\.mark\.fault\(", path.read_text(), re.MULTILINE)
    ]
    files = {test for tests in faults.marked_tests().values() for test in tests}

    assert len(files) == len(written) > 200


def test_every_group_has_its_table():
    """None of them is left out of the page."""
    text = (pages.DOCS / "faults.md").read_text()

    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == list(faults.GROUPS)
