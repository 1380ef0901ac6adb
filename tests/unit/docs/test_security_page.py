"""Each promise of SECURITY.md is checked by tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "SECURITY.md").read_text()


@pytest.mark.fault("S21")
def test_every_test_that_is_named_is_there():
    """A promise whose test was renamed or taken away is found."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)

    assert len(named) > 30
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), (file, test)


@pytest.mark.fault("S21")
def test_every_promise_names_a_test():
    """Each paragraph between its heading and that of the limits does."""
    promises = PAGE.partition("## What is promised")[2].partition("## Limits")[0]
    paragraphs = [part for part in promises.split("\n\n") if part.startswith("**")]

    assert len(paragraphs) > 10
    assert [part for part in paragraphs if "(`tests/" not in part] == []
