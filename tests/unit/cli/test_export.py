"""A run is exported to a file, or the reason for failure is reported."""

from __future__ import annotations

import json
import os

import pytest
from run_folders import MS, RunFolderBuilder
from timeline_run import RANK_0, RANK_1, timeline_run

from otel_mlperf.cli.export import export
from otel_mlperf.errors import NoSuchRun, NothingToExport, OutputError, UsageError
from otel_mlperf.whole_file import new_file

FORMATS = {"perfetto": ".perfetto-trace", "chrome": ".json", "otlp_json": ".jsonl"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The path of a run; the current folder is empty."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    return str(timeline_run(tmp_path))


@pytest.mark.parametrize(("form", "ending"), FORMATS.items())
def test_a_file_is_named_for_its_run_and_format(run, capsys, tmp_path, form, ending):
    """It says what it wrote, how much, and what opens it."""
    export(run, **{form: True})

    path = tmp_path / "here" / f"digits-3f2a{ending}"
    said = capsys.readouterr().out
    assert os.listdir() == [path.name]
    assert said.startswith(f"{path.name}: ")
    assert {"perfetto": "ui.perfetto.dev", "chrome": "chrome://tracing"}.get(form, "otlp") in said
    assert len(said.splitlines()) == 2


def test_without_a_format_it_is_perfettos(run, capsys):
    """With the number of what is in it."""
    export(run)

    [counts, _] = capsys.readouterr().out.splitlines()
    assert os.listdir() == ["digits-3f2a.perfetto-trace"]
    slices = len(RANK_0) + len(RANK_1)
    assert counts.endswith(f" kB, 1 mark, {slices} slices and 10 values on 15 tracks")


def test_otlp_json_holds_the_spans_that_servers_get(run):
    """By rank, with its resource; of events those that the window's budget kept, and the rest."""
    export(run, otlp_json=True, out="spans.jsonl")

    with open("spans.jsonl") as file:
        lines = [json.loads(line) for line in file]
    [resource] = [one for line in lines for one in line["resourceSpans"]]
    named = {one["key"]: one["value"] for one in resource["resource"]["attributes"]}
    spans = [one["name"] for scope in resource["scopeSpans"] for one in scope["spans"]]
    assert named["host.name"] == {"stringValue": "node1"}
    assert sorted(spans) == sorted(
        name.removesuffix(" ×5")
        for name in (*(name for _, _, name, *_ in RANK_0), "aten::add")
        if name not in ("train 0", "train 1", "cudaLaunchKernel")
    )


@pytest.mark.parametrize("steps", ["1", "1-1", " 0-1"])
def test_steps_are_a_number_or_a_range(run, steps):
    """Both are written."""
    export(run, steps=steps, chrome=True)

    with open("digits-3f2a.json") as file:
        names = {event["name"] for event in json.load(file)["traceEvents"]}
    assert ("train 0" in names) == ("0" in steps)
    assert "gemm" in names


@pytest.mark.parametrize("options", [{}, {"steps": "1"}, {"otlp_json": True}])
def test_a_rank_that_is_not_there_is_said_with_those_that_are(run, options):
    """And no file is written."""
    with pytest.raises(NoSuchRun, match=r"looking for rank 5 of run 3f2a: the run has ranks 0, 1$"):
        export(run, rank=5, **options)
    assert os.listdir() == []


@pytest.mark.parametrize("steps", ["x", "2-1", "-1", "1-", "1,2", ""])
def test_other_words_for_steps_are_refused(run, steps):
    """Before anything is read or written."""
    with pytest.raises(UsageError, match="expected a number such as 7, or a range such as 7-9"):
        export(run, steps=steps)
    assert os.listdir() == []


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_tables_are_a_folder(run, capsys, form):
    """Named for the run; it says how many rows each has."""
    export(run, **{form: True})

    assert os.listdir() == [f"digits-3f2a-{form}"]
    assert f"steps.{form}" in os.listdir(f"digits-3f2a-{form}")
    assert "steps 4" in capsys.readouterr().out


def test_tables_are_not_cut_by_steps(run):
    """Whoever reads them filters."""
    with pytest.raises(UsageError, match="--steps 1: tables are exported completely"):
        export(run, csv=True, steps="1")
    assert os.listdir() == []


def test_one_format_is_written(run):
    """Not two at once."""
    with pytest.raises(UsageError, match="choose only one of"):
        export(run, perfetto=True, chrome=True)


def test_a_file_is_replaced_only_by_force(run):
    """And until then keeps what it has."""
    with open("mine", "w") as file:
        file.write("x")

    with pytest.raises(
        OutputError, match="writing mine: the file already exists; replace it with --force"
    ):
        export(run, out="mine")

    with open("mine") as file:
        assert file.read() == "x"
    export(run, out="mine", force=True, chrome=True)
    with open("mine") as file:
        assert json.load(file)["traceEvents"]


def test_what_is_no_file_is_never_replaced(run):
    """A folder, a device or a pipe."""
    os.mkfifo("pipe")

    for place in (".", "/dev/full", "pipe"):
        with pytest.raises(OutputError, match="this is not a file"):
            export(run, out=place, force=True)


def test_a_place_that_refuses_is_named(run):
    """With the system's reason."""
    with pytest.raises(OutputError, match="writing nowhere/file: No such file or directory"):
        export(run, out="nowhere/file")


def test_nothing_is_left_of_a_file_that_was_not_finished(tmp_path):
    """Whatever went wrong, a full disk or an interrupt; what was there before stays."""
    path = tmp_path / "file"
    path.write_text("before")

    def fail(error):
        with new_file(path, is_replaced=True) as file:
            file.write(b"half")
            raise error

    with pytest.raises(OutputError, match="No space left on device"):
        fail(OSError(28, "No space left on device"))
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_run_in_which_nothing_happened_leaves_no_file(tmp_path, monkeypatch):
    """In none of the formats."""
    run = RunFolderBuilder(tmp_path, run_id="0000")
    run.process(MS)
    path = str(run.write())
    monkeypatch.chdir(tmp_path)

    for form in FORMATS:
        with pytest.raises(NothingToExport, match="exporting run 0000: "):
            export(path, **{form: True})
    assert os.listdir() == ["digits-0000"]


def test_a_run_that_is_not_there_is_said(tmp_path, monkeypatch):
    """As by every command."""
    monkeypatch.chdir(tmp_path)

    with pytest.raises(NoSuchRun):
        export("nope")
