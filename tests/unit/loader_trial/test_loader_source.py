"""The loader that a command line names is found."""

from __future__ import annotations

import sys

import pytest

from otel_mlperf.errors import LoaderError, NoSuchLoader, UsageError
from otel_mlperf.loader_trial.loaders import failure, find_loader

PROGRAM = """
import of_program_neighbour
loader = [1, 2]

def make():
    return [3]

def broken():
    raise ValueError("no data\\nat all")

class Data:
    def __getitem__(self, at):
        return at

class Holder:
    loader = [4]

data, number = Data(), 7
if __name__ == "__main__":
    raise SystemExit("it trains")
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A folder with a program, which is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "of_program.py").write_text(PROGRAM)
    (tmp_path / "of_program_neighbour.py").write_text("")
    (tmp_path / "of_broken.py").write_text("import no_such_package_at_all")
    (tmp_path / "of_exit.py").write_text("raise SystemExit('usage')")
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("of_")]:
        del sys.modules[name]


@pytest.mark.parametrize("place", ["of_program", "of_program.py"])
def test_module_or_file(program, place):
    """With its neighbours; a function is called, and what is below main does not run."""
    assert find_loader(f"{place}:loader", program) == [1, 2]
    assert find_loader(f"{place}:make", program) == [3]
    assert find_loader(f"{place}:Holder.loader", program) == [4]


@pytest.mark.parametrize(
    ("target", "error", "words"),
    [
        ("train.py", UsageError, "'train.py' is not the name of a loader"),
        ("of_nothing.py:loader", NoSuchLoader, "no file of_nothing.py"),
        ("of_nothing:loader", NoSuchLoader, "no module of_nothing in"),
        ("of_program.py:loadr", NoSuchLoader, "contains no 'loadr'; did you mean loader?"),
        ("of_program.py:number", LoaderError, "is a int, which cannot be iterated"),
        (
            "of_program.py:data",
            LoaderError,
            "looks like a dataset; wrap the dataset in a DataLoader",
        ),
        ("of_program.py:broken", LoaderError, r"failed: ValueError: no data \(of_program.py:9\)"),
        ("of_broken.py:loader", LoaderError, "importing of_broken.py failed: ModuleNotFoundError"),
        ("of_broken:loader", LoaderError, "importing of_broken failed: ModuleNotFoundError"),
        ("of_exit.py:loader", LoaderError, "importing of_exit.py failed: SystemExit: usage"),
    ],
)
def test_what_cannot_be_tried(program, target, error, words):
    """Says what was found, and what is meant where that can be told."""
    with pytest.raises(error, match=words):
        find_loader(target, program)


def test_failure_in_a_worker():
    """Torch's text of it has the traceback in it: its last line has the words."""
    text = "Caught ValueError in DataLoader worker process 0.\nOriginal …\nValueError: no 3\n"

    assert failure(ValueError(text)) == "ValueError: no 3"
