"""A process of ours loads the package that started it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import otel_mlperf
from otel_mlperf.own_processes import command

# As a copy that is installed too comes first.
SHADOWED = "import sys\nsys.path.insert(0, {!r})\n"
PRINT = (
    "import otel_mlperf, otel_mlperf.ids\nprint(otel_mlperf.__file__, otel_mlperf.ids.__file__)\n"
)


def test_other_copy_of_the_package_is_not_loaded(tmp_path):
    """Whatever else is installed under its name, all of its modules are those that run here."""
    other = tmp_path / "otel_mlperf"
    other.mkdir()
    for name in ("__init__", "__main__", "ids", "names"):
        (other / f"{name}.py").write_text("raise RuntimeError('another version')\n")
    line = command("otel_mlperf.__main__", "--version", before=SHADOWED.format(str(tmp_path)))
    place = line.index("-c") + 1
    text, _, _ = line[place].partition("from otel_mlperf.__main__")
    line[place] = text + PRINT
    done = subprocess.run(line, capture_output=True, text=True, check=False, cwd=tmp_path)

    here = Path(otel_mlperf.__file__)
    assert done.stdout.split() == [str(here), str(here.with_name("ids.py"))], done.stderr


def test_public_names_are_loaded_when_asked_for():
    """A module of ours is found without them; what they need is loaded for whoever wants one."""
    line = command("otel_mlperf.__main__", "--version")
    place = line.index("-c") + 1
    text, _, _ = line[place].partition("from otel_mlperf.__main__")
    line[place] = text + (
        "from otel_mlperf import names\n"
        "has_recorder = 'otel_mlperf.recorder' in sys.modules\n"
        "import otel_mlperf as om\n"
        "print(has_recorder, om.span.__name__, om.__version__, hasattr(om, 'missing'))\n"
    )

    assert subprocess.check_output(line, text=True).split() == [
        "False", "span", otel_mlperf.__version__, "False",
    ]  # fmt: skip


def test_pandas_is_not_loaded_and_may_be_looked_for():
    """A process of ours does without it, though pyarrow and W&B's library ask for it."""
    line = command("otel_mlperf.__main__", "--version")
    place = line.index("-c") + 1
    text, _, _ = line[place].partition("from otel_mlperf.__main__")
    line[place] = text + (
        "import pyarrow\n"
        "importlib.util.find_spec('pandas')\n"
        "print(pyarrow.array([1.5]).type, 'pandas' in sys.modules)\n"
        "try:\n"
        "    import pandas\n"
        "except ModuleNotFoundError as error:\n"
        "    print(error)\n"
    )

    assert subprocess.check_output(line, text=True).split() == ["double", "False", "pandas"]
