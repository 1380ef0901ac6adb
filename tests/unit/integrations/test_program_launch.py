"""The program is started by the same interpreter, with the same options, as ours."""

from __future__ import annotations

import pytest

from otel_mlperf.integrations.program_launch import interpreter_options


@pytest.mark.parametrize(
    ("original", "options"),
    [
        ("python -m us run a.py -m", []),
        ("python -u -X dev -m us run a.py -m", ["-u", "-X", "dev"]),
        ("python -um us run a.py -m", ["-u"]),
        ("python -Oumus run a.py -m", ["-Ou"]),
        ("python -W error bin/otel-mlperf run a.py -m", ["-W", "error"]),
    ],
)
def test_options_of_the_interpreter_are_found(original, options):
    """They stand before our own name, however it was written."""
    assert interpreter_options(["us", "run", "a.py", "-m"], original.split()) == options
