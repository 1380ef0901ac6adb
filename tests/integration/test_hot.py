"""The page on profiled sections shows its program's real output, and steps are marked."""

from __future__ import annotations

import json
import re
import sys

import pytest
import warm_python
from page_programs import files
from pages import DOCS
from runs import LIMIT_S, Ended, environment

PAGE = (DOCS / "hot.md").read_text()
SHOWN = re.compile(r" (?P<calls>[\d,]+)  (?P<name>\S.*?)( /?\S*:(?P<line>\d+))?$", re.MULTILINE)


STACKS = """
import torch
import otel_mlperf as om

model = torch.nn.Linear(64, 8)

def scored(batch):
    return model(batch).square().mean()

with om.start("stacks", profile="wait=1,active=2,with_stack=true", console=False):
    for step in om.steps(range(8)):
        with om.span("forward"):
            scored(torch.randn(32, 64))
"""


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    """The page's program, run to its end."""
    folder = tmp_path_factory.mktemp("hot")
    (folder / "train.py").write_text(files(PAGE)["train.py"])
    runs = folder / "runs"
    done = warm_python.run(
        [sys.executable, "train.py"], cwd=folder, env=environment(runs), capture_output=True,
        text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr, runs, folder / "none").settled()


def answer(ended, *words):
    command = [sys.executable, "-m", "otel_mlperf", words[0], str(ended.folder), *words[1:]]
    return warm_python.check_output(command, env=environment(ended.runs), text=True)


@pytest.mark.slow
def test_functions_of_the_page(ended):
    """Each function that the page shows was called as often as it says."""
    sections = json.loads(answer(ended, "summary", "--functions", "--json"))["sections"]
    called = {
        (spot["name"], spot["calls"]) for section in sections for spot in section.get("spots", ())
        if section["kind"] == "calls"
    }  # fmt: skip
    table = PAGE[PAGE.index("collate: ") :].partition("\n\n")[0]
    shown = {
        (name, int(found["calls"].replace(",", "")))
        for found in SHOWN.finditer(table)
        if not (name := found["name"].strip()).endswith("…")
    }
    assert len(shown) >= 6
    assert shown <= called


def test_lines_of_the_page(ended):
    """The line that keeps what grows comes first in its section, as on the page."""
    sections = json.loads(
        answer(ended, "summary", "--functions", "--section", "remember", "--json")
    )["sections"]
    ((first, *_),) = (section["spots"] for section in sections)
    code = files(PAGE)["train.py"].splitlines()
    assert code[first["line"] - 1].strip().startswith("history.append")
    assert f"train.py:{first['line']}\n" in PAGE
    assert first["share"] > 0.9


def test_steps_of_profiled_calls(ended):
    """Steps with a profiled call count as slowed down by a profiler, and no others."""
    steps = ended.rows("SELECT number, kept FROM steps ORDER BY number")
    assert [step["number"] for step in steps if step["kept"] == "profiled"] == [0, 1, 2]
    summary = json.loads(answer(ended, "summary", "--json"))
    assert summary["profiled_steps"] == 3
    assert not summary["slowest"]["profiled"]


def test_spans_say_so(ended):
    """The spans of profiled calls, and no others, tell which profiler was on them."""
    told = ended.rows("SELECT name, attributes FROM spans WHERE name IN ('collate', 'remember')")
    by = [(span["name"], "ml.section.profiler" in str(span["attributes"])) for span in told]
    assert sorted(name for name, is_told in by if is_told) == ["collate"] * 3 + ["remember"] * 3


def test_growth_of_the_page(tmp_path):
    """Each tensor and line that the page shows has grown by as many as it says."""
    (tmp_path / "leak.py").write_text(files(PAGE)["leak.py"])
    done = warm_python.run(
        [sys.executable, "leak.py"], cwd=tmp_path,
        env=environment(tmp_path / "runs", OTEL_MLPERF_AGENT="none"),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found, shown = (
        {line.split("  ")[-1]: line.split()[2] for line in text.splitlines() if " cpu" in line}
        for text in (done.stdout, PAGE[PAGE.index("memory growth in ") :])
    )
    assert len(found) == 2
    assert found == shown
    assert " leak.py:14" in done.stdout


def test_functions_of_a_profiler_window(tmp_path):
    """With stacks: the program's own as often as it was called, where it stands and in what."""
    (tmp_path / "stacks.py").write_text(STACKS)
    runs = tmp_path / "runs"
    done = warm_python.run(
        [sys.executable, "stacks.py"], cwd=tmp_path, env=environment(runs),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    ended = Ended(0, "", "", runs, tmp_path).settled()
    (window,) = json.loads(answer(ended, "summary", "--functions", "--json"))["sections"]

    assert (window["kind"], window["calls"]) == ("window", 1)
    (scored,) = (spot for spot in window["spots"] if spot["name"] == "scored")
    assert (scored["calls"], scored["within"]) == (2, "forward")
    line = STACKS.splitlines().index("def scored(batch):") + 1
    assert (scored["file"].rpartition("/")[2], scored["line"]) == ("stacks.py", line)
    assert scored["own_ns"] < scored["total_ns"] < window["duration_ns"]
