"""Does the environment carry what a program is told, and come back as it was?"""

from __future__ import annotations

import pytest

from otel_mlperf.pytorch.autostart import FOLDER, Autostart, read_autostart


@pytest.mark.parametrize("before", [{}, {"PYTHONPATH": ""}, {"PYTHONPATH": "/a:/b"}])
def test_environment_comes_back_as_it_was(before):
    """Taking away undoes putting, with and without a PYTHONPATH of one's own."""
    told = Autostart("this", "digits", before.get("PYTHONPATH"))
    environ = told.put(before)

    assert read_autostart(environ) == told
    assert environ["PYTHONPATH"].split(":")[0] == FOLDER
    told.take_away(environ)
    assert environ == before


@pytest.mark.parametrize("text", ["", "1", "{}", '{"scope": "all"}', "not json"])
def test_unreadable_variable_is_no_request(text):
    """What somebody else has put there starts nothing."""
    assert read_autostart({"OTEL_MLPERF_AUTOSTART": text}) is None
    assert read_autostart({}) is None
