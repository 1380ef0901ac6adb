"""The environment carries the settings of a program, and the program is known before it runs."""

from __future__ import annotations

import pytest

from otel_mlperf.integrations.start_request import (
    FOLDER,
    Autostart,
    Program,
    detect_program,
    read_autostart,
)


@pytest.mark.parametrize("before", [{}, {"PYTHONPATH": ""}, {"PYTHONPATH": "/a:/b"}])
def test_environment_comes_back_as_it_was(before):
    """Taking away undoes putting, with and without a PYTHONPATH of one's own."""
    told = Autostart("this", "digits", before.get("PYTHONPATH"))
    environ = told.put(before)

    assert read_autostart(environ) == told
    assert environ["PYTHONPATH"].split(":")[0] == FOLDER
    told.remove_from(environ)
    assert environ == before


@pytest.mark.parametrize("text", ["", "1", "{}", '{"scope": "all"}', "not json"])
def test_unreadable_variable_is_no_request(text):
    """What somebody else has put there starts nothing."""
    assert read_autostart({"OTEL_MLPERF_AUTOSTART": text}) is None
    assert read_autostart({}) is None


@pytest.mark.parametrize(
    ("argv", "original", "program", "name", "is_recorded"),
    [
        (["train.py", "-m", "x"], "python train.py -m x", ("script", "train.py"), "train", True),
        (["a/b/fit"], "python -u -X dev a/b/fit", ("script", "a/b/fit"), "fit", True),
        (["job/__main__.py"], "python job/__main__.py", ("script", "job/__main__.py"), "job", True),
        (["-m", "1"], "python -m pkg.train 1", ("module", "pkg.train"), "train", True),
        (["-m", "1"], "python -umpkg.train 1", ("module", "pkg.train"), "train", True),
        (["-m"], "python -m pkg.__main__", ("module", "pkg.__main__"), "pkg", True),
        (["-c", "x"], "python -c pass x", ("text", "pass"), "run", False),
        (["-"], "python -", ("input", "-"), "stdin", True),
        ([""], "python", ("other", ""), "", False),
        (["/bin/torchrun", "t.py"], "python /bin/torchrun t.py", None, "torchrun", False),
        (["-m", "t.py"], "python -m torch.distributed.run t.py", None, "run", False),
        (["-m", "agent"], "python -I -m otel_mlperf agent", None, "otel_mlperf", False),
    ],
)
def test_program_is_known_before_it_runs(argv, original, program, name, is_recorded):
    """Kind, name and whether it is recorded follow from the two lists that Python keeps."""
    found = detect_program(argv, original.split())

    assert program is None or found == Program(*program)
    assert (found.name, found.is_recorded) == (name, is_recorded)
