"""``compare`` answers on a command line, and exits as a gate must with ``--check``."""

from __future__ import annotations

import json
import sys
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
from run_folders import MS, RunFolderBuilder, S

from otel_mlperf.cli import main
from otel_mlperf.otlp.histogram import ExponentialBuckets


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Calls the real entry; gives exit code, output and messages."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["otel-mlperf", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code or 0, said.out, said.err

    return call


@pytest.fixture
def three(tmp_path):
    """Runs *base*, *same* and *worse*, whose forward pass takes a fifth longer."""
    for number, (name, forward) in enumerate((("base", 10), ("same", 10), ("worse", 12))):
        run = RunFolderBuilder(tmp_path, name, f"{number + 1}" * 16, params={"width": forward})
        for n in range(100):
            spent = {"forward": (forward + n % 7 / 10) * MS, "backward": (20 + n % 5 / 10) * MS}
            parts = {part: int(ns) for part, ns in spent.items()}
            run.step(n, n * 40 * MS, parts, own=MS, samples=8)
        run.process(5 * S)
        run.write()


def test_two_runs_stand_beside_each_other(command, three):
    """Each section with both times, the difference with its interval, and a word."""
    code, out, _ = command("compare", "base", "worse")

    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert rows["forward"].split()[1:3] == ["10.3", "12.3"]
    assert rows["forward"].endswith("slower")
    assert rows["backward"].endswith("same")
    assert "width 10 → 12" in out


def test_several_runs_are_one_table(command, three):
    """The first is what the others are compared with."""
    code, out, _ = command("compare", "base", "same", "worse")

    assert code == 0
    table = [line for line in out.splitlines() if line.startswith(("base", "same", "worse"))]
    assert [line.split()[0] for line in table] == ["base", "same", "worse"]
    assert ["slower" in line for line in table] == [False, False, True]


def test_json_has_both_runs_whole(command, three):
    """So that a program can go on from it."""
    _, out, _ = command("compare", "base", "worse", "--json")

    found = json.loads(out)
    assert (found["before"]["name"], found["after"]["name"]) == ("base", "worse")
    assert [time["word"] for time in found["times"]][:2] == ["slower", "slower"]


def test_one_run_cannot_be_compared(command, three):
    """It says what is missing."""
    code, _, said = command("compare", "base")

    assert code == 2
    assert "expected at least two runs" in said


def test_the_gate_ends_with_one_on_a_slower_run_alone(command, three):
    """A line for each breach; the equal run passes."""
    good, _, _ = command("compare", "base", "same", "--check")
    bad, out, _ = command("compare", "base", "worse", "--check")

    assert (good, bad) == (0, 1)
    assert [line.split()[:2] for line in out.splitlines() if line[0] != " "] == [
        ["breach", "step"],
        ["breach", "forward"],
    ]


def test_a_breach_says_what_a_reviewer_asks_next(command, three, tmp_path, monkeypatch):
    """The times, the baseline, what else is not the same, what shows more and how to accept it."""
    monkeypatch.chdir(tmp_path)
    file = "base.json"
    command("compare", "base", "--write-baseline", file)

    _, out, _ = command("compare", file, "worse", "--check")

    breach = next(line for line in out.splitlines() if "forward changed by" in line)
    assert breach.endswith("slower, 10.29 → 12.29 ms")
    said = " ".join(out.split())
    assert "compared with base 1111: 100 steps before, 100 steps after" in said
    assert "also different: width 10 → 12" in said
    assert f"otel-mlperf compare {file} 3333" in said
    assert f"otel-mlperf compare 3333 --write-baseline {file}" in said


def test_a_run_that_passes_says_so_in_a_line(command, three):
    """Nothing of what a reviewer of a breach asks."""
    _, out, _ = command("compare", "base", "same", "--check")

    (line,) = out.splitlines()
    assert line.startswith("ok      step changed by")


def test_a_baseline_file_stands_for_its_run(command, three, tmp_path):
    """It is written by one call, with its folder, and read by the next."""
    file = tmp_path / "perf" / "base.json"

    code, out, _ = command("compare", "base", "--write-baseline", file)
    verdicts = [command("compare", file, run, "--check")[0] for run in ("same", "worse")]

    assert code == 0
    assert "100 steps" in out
    assert verdicts == [0, 1]


def test_bounds_need_no_baseline(command, three):
    """A breach of one is enough; the value is said in the bound's own unit."""
    code, out, _ = command(
        "compare", "base", "--max", "train.step.p95=20ms", "--max", "samples_per_s>=100"
    )

    assert code == 1
    assert out.splitlines()[0].startswith("breach  limit train.step.p95=20ms: measured 31.9ms")
    assert out.splitlines()[1].startswith("ok      limit samples_per_s>=100")


def test_a_ci_server_gets_its_report_and_github_its_lines(command, three, tmp_path):
    """One test a verdict, an annotation a breach."""
    file = tmp_path / "report.xml"

    _, out, _ = command("compare", "base", "worse", "--junit", file, "--github", "--max", "step=1s")

    suite = Xml.parse(file).getroot()
    assert (suite.get("tests"), suite.get("failures")) == ("3", "2")
    errors = [line for line in out.splitlines() if line.startswith("::")]
    assert len(errors) == 2
    assert errors[0].startswith("::error title=otel-mlperf compare step::step changed by +")
    assert errors[1].startswith("::error title=otel-mlperf compare forward::forward changed by +")
    # Once is enough on one page; a test report is read failure by failure.
    assert ["%0Acompared with base" in line for line in errors] == [True, False]
    failures = [failure.text for failure in suite.iter("failure")]
    assert all("also different: width 10 → 12" in text for text in failures)


def test_nothing_to_check_is_said(command, three):
    """A gate that looks at nothing would let everything pass."""
    code, _, said = command("compare", "base", "--check")

    assert code == 2
    assert "pass a baseline" in said


def called(tmp_path, name, number, drift=0.0, pieces=1, **calls):
    """A run without steps: calls of sections by name, in milliseconds, all alike in a piece."""
    run = RunFolderBuilder(tmp_path, name, f"{number}" * 16)
    for section, count, ms in [
        (section, count, ms * (1 + drift * (piece % 2)))
        for section, (count, ms) in calls.items()
        for piece in range(pieces)
    ]:
        spread = [int((ms + n % 3 / 100) * MS) for n in range(count)]
        mean = sum(spread) / count
        buckets = ExponentialBuckets()
        buckets.record(np.array(spread) / 1e9)
        run.outside(section, sum(spread), count=count)
        run.row(
            "durations", rank=0, restart=0, phase="", name=section, category="other", path=section,
            beside=False, in_step=False, bound_s=None, minute_ns=None, count=count, errors=0,
            within=0, sum_ns=sum(spread), min_ns=min(spread), max_ns=max(spread),
            spread=float(sum((one - mean) ** 2 for one in spread)), scale=buckets.scale,
            zeros=0, first_bucket=buckets.offset, counts=json.dumps(buckets.counts),
        )  # fmt: skip
    run.process(5 * S)
    run.write()


def test_sections_outside_steps_are_compared_by_call(command, tmp_path):
    """Without a step, too: each with the mean of a call, its difference and a word."""
    called(tmp_path, "before", 1, move=(100, 2.0), judge=(100, 3.0), train=(3, 300.0))
    called(tmp_path, "after", 2, move=(100, 4.0), judge=(100, 3.0), train=(3, 450.0))

    code, out, _ = command("compare", "before", "after")
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert rows["move"].split()[1:3] == ["2.0", "4.0"]
    assert [rows[name].split()[-1] for name in ("move", "judge", "train")] == [
        "slower", "same", "slower"
    ]  # fmt: skip


def test_the_gate_judges_sections_outside_steps(command, tmp_path):
    """Three calls that take half as long again are a breach; bounds of them are held."""
    called(tmp_path, "before", 1, train=(3, 300.0))
    called(tmp_path, "after", 2, train=(3, 450.0))

    code, out, _ = command("compare", "before", "after", "--check")
    assert (code, out.split()[:5]) == (1, ["breach", "train", "changed", "by", "+50.0"])
    assert command("compare", "before", "before", "--check")[0] == 0
    assert command("compare", "after", "--max", "train.mean=350ms")[0] == 1
    assert command("compare", "before", "--max", "train.p95=350ms")[0] == 0


def test_a_gate_that_compared_nothing_does_not_pass(command, three, tmp_path):
    """It has an exit code and a line of its own, and is a failure in a report for a CI server."""
    called(tmp_path, "other", 7, train=(3, 300.0))
    report = tmp_path / "report.xml"

    code, out, _ = command("compare", "base", "other", "--check", "--junit", str(report))

    assert code == 3
    assert out.startswith("error   nothing was compared: the runs have no steps and no sections")
    assert 'failures="1"' in report.read_text()


def test_the_trend_of_runs_without_steps_is_that_of_their_longest_section(command, tmp_path):
    """Named, as it is not the step; its mean is a column like any other."""
    called(tmp_path, "net", 1, move=(100, 2.0))
    called(tmp_path, "net", 2, move=(100, 4.0))

    code, out, _ = command("runs", "--trend", "net", "--columns", "move,move.max")

    assert code == 0
    assert [line.split()[-3:] for line in out.splitlines()[1:]][-1] == ["+100", "%", "slower"]
    assert "2.01 ms" in out.splitlines()[1]


def test_calls_that_are_slow_for_a_while_are_not_as_many_pieces(command, tmp_path):
    """A thousand calls of ten pieces, every other one a third longer: the mean is known roughly."""
    called(tmp_path, "before", 1, drift=0.3, pieces=10, move=(100, 2.0))
    called(tmp_path, "after", 2, drift=0.3, pieces=10, move=(100, 2.1))
    called(tmp_path, "steady", 3, pieces=10, move=(100, 2.0))
    called(tmp_path, "slower", 4, pieces=10, move=(100, 2.1))

    found = [
        json.loads(command("compare", *runs, "--json")[1])["calls"][0]["word"]
        for runs in (("before", "after"), ("steady", "slower"))
    ]
    assert found == ["unclear", "slower"]
