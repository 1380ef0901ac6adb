"""``otel-mlperf kernels`` answers for runs and for trace files."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import warm_python
from kineto_traces import (
    event,
    flow,
    graph_capture,
    graph_replay,
    launch,
    operator,
    real_traces,
    training_step,
    write_trace,
)
from run_folders import RunFolderBuilder, digits

from otel_mlperf.cli import main
from otel_mlperf.cli.import_ import import_
from otel_mlperf.journal.profiler_windows import Window, write_window
from otel_mlperf.kineto.counting.window_numbers import count
from otel_mlperf.kineto.counting.window_rows import tables_of
from otel_mlperf.kineto.linking.link import link
from otel_mlperf.kineto.reading.trace_reader import read_trace
from otel_mlperf.store.part_writer import write_part


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """A folder of runs that the commands look in."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture
def command(monkeypatch, capsys):
    """Calls the real entry; gives exit code, output and messages."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["otel-mlperf", "kernels", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code or 0, said.out, said.err

    return call


@pytest.fixture
def profiled(runs, tmp_path):
    """A run with one window."""
    run = RunFolderBuilder(runs)
    run.process(10**9)
    folder = run.write()
    trace = read_trace(write_trace(tmp_path / "t.json", training_step()))
    links = link(trace)
    for table, columns in tables_of(trace, count(trace, links), links.orphans).items():
        write_part(folder, table, "window-1", 1, columns)
    return folder


def test_a_trace_is_read_as_it_is(tmp_path, command):
    """No run and no store is needed."""
    path = write_trace(tmp_path / "t.json.gz", training_step())

    code, out, err = command(path)

    assert (code, err) == (0, "")
    assert out.startswith(
        "GPU busy 13 %, idle 87 %, communication 0 % of the window\nt.json.gz · rank 0 · "
    )


def test_a_run_shows_the_windows_that_it_stored(profiled, command):
    """The latest, by name or by path, as other commands find it."""
    code, out, err = command()

    assert (code, err) == (0, "")
    assert out.splitlines()[1] == "digits · 3f2a · rank 0 · 500 µs · 8 events · 1 step"
    assert command("digits")[1] == command(profiled)[1] == out


def test_windows_that_are_still_to_be_read_are_told(profiled, command):
    """The figures are without them; so they are in JSON."""
    (profiled / "profiles").mkdir()
    for number in (7, 8):
        window = Window(
            run_id="r", restart=0, rank=0, world_size=1, pid=1, number=number, parent="",
            trace=f"rank0.{number}.pt.trace.json", steps=[], start=(0, 0), end=(0, 0),
            activities=["cpu"],
        )  # fmt: skip
        write_window(profiled / "profiles", window)
    _, out, _ = command("latest")

    assert out.splitlines()[-1] == "2 more windows not read yet: not in the figures above"
    assert json.loads(command("latest", "--json")[1])["unread"] == 2


def test_a_run_and_its_trace_have_the_same_numbers(profiled, tmp_path, command):
    """What an import stored is what reading the file again would count."""
    stored, read = (
        json.loads(command(source, "--json")[1]) for source in (profiled, tmp_path / "t.json")
    )

    for part in ("total", "devices", "rows", "copies", "gaps", "memory"):
        assert stored[part] == read[part], part


def test_json_has_whole_names_and_all_rows(tmp_path, command):
    """The table shortens; programs get what the trace says."""
    path = write_trace(tmp_path / "t.json", training_step())

    rows = json.loads(command(path, "--json")[1])["rows"]
    assert [row["name"] for row in rows] == ["sgemm_128x64", "relu_kernel<float>"]
    assert len(json.loads(command(path, "--json", "--top", "1")[1])["rows"]) == 1


def test_rows_can_be_grouped_otherwise(tmp_path, command):
    """By operator it is the device time that each launched."""
    path = write_trace(tmp_path / "t.json", training_step())

    lines = command(path, "--by", "operator")[1].splitlines()
    assert lines[3].split()[:4] == ["aten::addmm", "1", "60.5", "µs"]


def test_one_step_of_a_trace_is_shown(tmp_path, command):
    """The other one, and what is in none, are not in its figures; JSON says which it is."""
    other = [event("ProfilerStep#4", 2000, 90, category="user_annotation"),
             operator("aten::relu", 2010, 30), operator("aten::after", 3000, 30)]  # fmt: skip
    path = write_trace(tmp_path / "t.json", [*training_step(), *other])

    code, out, err = command(path, "--step", "3")
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == [
        "ProfilerStep#3: 500 µs, GPU busy with its work for 66.2 µs",
        "t.json · rank 0 · 8 events",
    ]
    assert [line.split()[:2] for line in out.splitlines()[3:]] == [
        ["sgemm_128x64", "1"],
        ["relu_kernel", "1"],
        ["total", "2"],
    ]
    code, out, err = command(path, "--step", "4", "--by", "annotation")
    assert out.splitlines()[0] == (
        "ProfilerStep#4: 90.0 µs, CPU only: no kernel, copy or memset was recorded"
    )
    assert out.splitlines()[3].split() == ["ProfilerStep#4", "1", "90.0", "µs", "100", "%", "90.0",
                                           "µs"]  # fmt: skip
    found = json.loads(command(path, "--step", "4", "--json")[1])
    assert found["step"]["name"] == "ProfilerStep#4"
    assert [(row["name"], row["calls"]) for row in found["rows"]] == [("aten::relu", 1)]


def test_one_step_of_an_imported_trace_is_that_of_its_file(runs, tmp_path, command, capsys):
    """Read from the store it is what reading the file gives."""
    path = write_trace(tmp_path / "t.json", training_step())
    import_([path], run="elsewhere")
    capsys.readouterr()

    stored, read = (
        json.loads(command(source, "--step", "3", "--json")[1]) for source in ("elsewhere", path)
    )

    for part in ("step", "rows", "copies", "collectives", "groups", "by"):
        assert stored[part] == read[part], part


def test_a_damaged_trace_is_shown_and_ends_with_65(tmp_path, command):
    """What could be read is on stdout; what could not, with its place, on stderr."""
    path = write_trace(tmp_path / "t.json", training_step())
    text = path.read_text()
    path.write_text(text[: text.index("relu_kernel")])

    code, out, err = command(path)

    assert code == 65
    assert "sgemm_128x64" in out
    assert err.startswith("otel-mlperf: reading t.json: truncated at byte ")
    code, out, err = command(path, "--json")
    assert (code, json.loads(out)["windows"][0]["damage"][0]["kind"]) == (65, "truncated")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nosuch.json"], 65, "nosuch.json"),
        (["nosuch"], 66, "no run has this name, id or path"),
        (["digits"], 66, "the run has none; record a window with torch_profile()"),
        (["digits", "--by", "colour"], 2, "--by colour: expected one of kernel, operator,"),
        (["digits", "--step", "3"], 66, "the run has none; record a window with torch_profile()"),
        (["digits", "--phase", "train"], 2, "--phase train requires --step"),
    ],
)
def test_what_cannot_be_shown_says_why(runs, command, arguments, code, message):
    """With the exit code of its kind, and nothing on stdout."""
    digits(runs).write()

    ended, out, err = command(*arguments)

    assert (ended, out) == (code, "")
    assert message in err


def test_what_is_no_regular_file_is_said(runs, command, tmp_path):
    """A folder without a run, a device and a FIFO are there, and nothing to read."""
    digits(runs).write()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()

    code, out, err = command(tmp_path / "empty")
    assert (code, out) == (66, "")
    assert "empty': found a folder without run.json, not a run; pass" in err
    for place, what in (("/dev/null", "a device"), (tmp_path / "pipe", "a FIFO")):
        code, out, err = command(place)
        assert (code, out) == (65, "")
        assert f"cannot read the trace {place}: it is {what}, not a regular file" in err


def test_a_step_that_is_not_there_says_which_are(profiled, tmp_path, command):
    """Of a run and of a trace; one without steps says so."""
    quiet = write_trace(tmp_path / "quiet.json", [operator("aten::mm", 0, 30)])

    for source in (profiled, tmp_path / "t.json"):
        code, out, err = command(source, "--step", "8")
        assert (code, out) == (66, "")
        assert err.endswith("this step was not profiled; profiled steps: step 3\n")
    code, out, err = command(quiet, "--step", "8")
    assert (code, out) == (66, "")
    assert "profiler windows of quiet.json: they contain no steps; declare" in err


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_reader_that_has_seen_enough_is_no_failure(tmp_path, options):
    """However much there is still to say: ``otel-mlperf kernels t.json --json | head -1``."""
    names = (f"{'long' * 100}_{i}" for i in range(400))
    entries = [operator(name, i, 0.5) for i, name in enumerate(names)]
    path = write_trace(tmp_path / "t.json", entries)
    process = warm_python.Popen(
        [sys.executable, "-m", "otel_mlperf", "kernels", path, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    process.stdout.readline()
    process.stdout.close()

    assert (process.stderr.read(), process.wait()) == (b"", 0)
    process.stderr.close()


def test_a_rank_is_of_a_run(tmp_path, command):
    """A trace file has one rank, so that asking for one is a mistake."""
    path = write_trace(tmp_path / "t.json", training_step())

    assert command(path, "--rank", "0")[0] == 2


@pytest.mark.parametrize("path", real_traces())
def test_recorded_traces_are_shown(path, command):
    """First line, table, and no message."""
    code, out, err = command(path)

    assert (code, err) == (0, "")
    assert out.startswith(("GPU busy", "CPU only"))


@pytest.fixture
def graphs(tmp_path):
    """A step that replays two graphs, and a trace in which one of them is captured."""
    step = event("ProfilerStep#3", 0, 500, category="user_annotation")
    other = graph_replay("unknown", start=200, number=8)
    replay = write_trace(tmp_path / "replay.json", [step, *graph_replay("gemm", "add"), *other])
    nodes = (("aten::mm", "gemm"), ("aten::add", "add"))
    return replay, write_trace(tmp_path / "capture.json", graph_capture(*nodes))


def test_a_trace_of_the_capture_tells_the_operators_of_a_graph(graphs, command):
    """And how many of its kernels they are; in JSON too."""
    replay, capture = graphs
    code, out, err = command(replay, "--by", "operator", "--capture", capture)

    assert (code, err) == (0, "")
    assert {line.split()[0] for line in out.splitlines()[3:6]} == {
        "aten::mm",
        "aten::add",
        "Region",
    }
    told = " ".join(line[9:] for line in out.splitlines()[-2:])
    assert told == (
        "2 of 3 kernels and copies of graphs were assigned to operators by 1 capture in "
        "capture.json; 1 belong to a graph that matches no capture"
    )
    (window,) = json.loads(command(replay, "--capture", capture, "--json")[1])["windows"]
    assert window["captured"] == {
        "capture": "capture.json",
        "captures": 1,
        "work": 3,
        "matched": 2,
        "unmatched": {"belong to a graph that matches no capture": 1},
    }


def test_without_a_capture_nothing_is_said_of_it(graphs, command):
    """The kernels of a graph stay with what launched it."""
    code, out, _ = command(graphs[0], "--by", "operator")

    assert (code, out.splitlines()[3].split()[0]) == (0, "Region")
    assert "graphs" not in out
    assert json.loads(command(graphs[0], "--json")[1])["windows"][0]["captured"] is None


def test_an_imported_replay_keeps_what_its_capture_told(runs, graphs, command, capsys):
    """A run's tables, one step of them and the trace itself say the same of each operator."""
    replay, capture = graphs
    import_([replay], run="replayed", capture=capture)

    assert (
        "2 of 3 kernels and copies of graphs were assigned to operators by 1"
    ) in capsys.readouterr().out
    rows = []
    for source in (["replayed"], [replay, "--capture", capture]):
        for step in ([], ["--step", "3"]):
            found = command(*source, *step, "--by", "operator", "--json")[1]
            names = ("name", "category", "calls", "device_ns", "self_ns")
            rows.append([tuple(row[name] for name in names) for row in json.loads(found)["rows"]])
    assert rows[0] == rows[1] == rows[2] == rows[3]
    assert ("aten::mm", "captured", 1, 8000, 0) in rows[0]


def test_a_run_is_given_no_capture(profiled, command, tmp_path):
    """Its traces were counted when they came: the import takes it."""
    code, out, err = command("digits", "--capture", tmp_path / "t.json")

    assert (code, out) == (2, "")
    assert "pass --capture to otel-mlperf import, or with a trace" in err


@pytest.mark.parametrize("number", [{}, {"correlation": 9}], ids=["none", "another's"])
def test_work_that_only_an_arrow_joins_to_its_call_is_the_call_s_in_a_step_too(
    tmp_path, command, number
):
    """In the whole window and in its step it is told by the same call, and what that took."""
    step = event("ProfilerStep#3", 0, 500, category="user_annotation")
    work = event("k", 50, 10, category="kernel", pid=0, tid=7, device=0, stream=7, **number)
    joined = [flow("s", 5, 20), flow("f", 5, 50, pid=0, tid=7)]
    path = write_trace(tmp_path / "t.json", [step, launch(20, 4, 5), work, *joined])

    rows = []
    for options in ([], ["--step", "3"]):
        found = json.loads(command(path, *options, "--by", "operator", "--json")[1])["rows"]
        rows.append([(row["name"], row["calls"], row["total_ns"]) for row in found])
    assert rows[0] == rows[1] == [("cudaLaunchKernel", 1, 4000)]
