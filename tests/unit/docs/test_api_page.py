"""``docs/api.md`` follows from signatures, docstrings and commands."""

from __future__ import annotations

import api_page

import otel_mlperf as om


def test_the_page_follows_from_the_code():
    """``python tests/api_page.py`` writes it."""
    assert api_page.PAGE.read_text() == api_page.render()


def test_each_public_name_is_in_one_group():
    """None is forgotten, none stands there twice."""
    named = [name for names in api_page.GROUPS.values() for name in names]

    assert sorted(named) == sorted(om.__all__)


def test_an_example_in_a_docstring_is_shown_as_code():
    """Such as the one of ``span``, with its indentation taken away and kept inside."""
    assert '```python\nwith span("forward"): ...\n' in api_page.docstring(om.span)
    assert "\n    section.set(rows=len(table))\n" in api_page.docstring(om.span)


def test_hidden_options_stay_hidden():
    """They are for our own processes."""
    assert "--closing" not in api_page.render()
    assert "--wait-stored" not in api_page.render()
