"""``runs`` shows the requested facts of many runs, in the requested order."""

from __future__ import annotations

import json
import sys

import pytest
from run_folders import MS, START, RunFolderBuilder, S

from otel_mlperf import names
from otel_mlperf.cli import main

HOUR = 3600 * S


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Calls the real entry; gives exit code, output and messages."""
    monkeypatch.setenv("OTEL_MLPERF_DIR", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["otel-mlperf", "runs", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        said = capsys.readouterr()
        return end.value.code or 0, said.out, said.err

    return call


@pytest.fixture
def sweep(tmp_path):
    """Four runs of *net*, an hour apart, and one of another name."""
    given = [(10, 0.91, ["sweep"]), (10, 0.93, ["sweep"]), (12, 0.97, []), (9, 0.9, ["sweep"])]
    for number, (forward, accuracy, tags) in enumerate(given):
        write(tmp_path, "net", number, forward, tags, f'{{"accuracy": {accuracy}}}')
    write(tmp_path, "other", 9, 5, [], "{}")


def write(folder, name, number, forward, tags, result):
    run = RunFolderBuilder(
        folder, name, f"{number + 1:x}" * 16, params={"width": 64 * (number + 1)}, tags=tags,
        started_ns=START + number * HOUR,
    )  # fmt: skip
    for n in range(100):
        spent = int((forward + n % 7 / 10) * MS)
        run.step(n, n * 40 * MS, {"forward": spent, "backward": 20 * MS}, own=MS, samples=32)
    run.process(5 * S, result=result)
    run.write()


def ids(out):
    """The first word of each line below the title."""
    return [line.split()[0] for line in out.splitlines()[1:]]


def test_columns_are_numbers_sections_parameters_and_results(command, sweep):
    """What a run does not have is no zero."""
    code, out, _ = command("--columns", "samples_per_s,forward.p95,width,accuracy")

    assert code == 0
    title, *rows = out.splitlines()
    assert title.split()[3:] == ["samples_per_s", "forward.p95", "width", "accuracy"]
    assert rows[0].split()[-2:] == ["640", "–"]
    newest = next(row for row in rows if row.startswith("4444"))
    assert newest.split()[-5:] == ["1,060", "9.60", "ms", "256", "0.9"]


def test_work_of_the_models_is_a_column(command, sweep, tmp_path):
    """Operations, share of the peak, parameters and GPU memory; a dash where it is unknown."""
    run = RunFolderBuilder(tmp_path, "net", "a" * 16, started_ns=START + 5 * HOUR)
    for n in range(3):
        run.step(n, n * 10 * MS, {"forward": 10 * MS}, flops=3_000_000)
    run.process(5 * S)
    of_model = {names.MODEL_NAME: "Net", names.PARAMETERS_KIND: names.PARAMETERS_TOTAL}
    of_device = {names.FLOPS_TYPE: "bfloat16", names.PEAK_SOURCE: "given", names.HW_MODEL: "X"}
    for metric, labels, value in (
        (names.MODEL_PARAMETERS, of_model, 1000.0),
        (names.FLOPS_PEAK, of_device, 1e9),
        (names.RUN_CPU, {}, 5.0),
        (names.RUN_MEMORY_PEAK, {}, 2.0**30),
        (names.CUDA_MEMORY_PEAK_USAGE, {names.CUDA_MEMORY_STATE: "allocated"}, 2.0**31),
    ):
        run.row(
            "readings", rank=0, restart=0, name=metric.name, labels=json.dumps(labels),
            time_ns=START, value=value,
        )  # fmt: skip
    run.write()
    wanted = "flops,flops_per_s,mfu,parameters,peak_gpu_memory"
    code, out, _ = command("--name", "net", "--columns", wanted)

    assert code == 0
    newest, *others = out.splitlines()[1:]
    assert newest.split()[5:] == [
        *("3.00", "MFLOP", "300", "MFLOP/s", "0.3", "1,000", "2.00", "GiB")
    ]
    assert others[0].split()[5:] == ["–"] * 5


@pytest.mark.slow
def test_runs_are_sorted_by_a_column(command, sweep):
    """The largest first, or the smallest; those that have none come last."""
    _, largest, _ = command("--name", "net", "--columns", "width", "--sort", "accuracy")
    _, smallest, _ = command("--columns", "width", "--sort", "accuracy", "--ascending")

    assert ids(largest) == ["3333", "2222", "1111", "4444"]
    assert ids(smallest) == ["4444", "1111", "2222", "3333", "aaaa"]


def test_a_tag_and_a_name_choose_runs(command, sweep):
    """Also in the plain list."""
    assert ids(command("--tag", "sweep")[1]) == ["4444", "2222", "1111"]
    assert ids(command("--name", "other")[1]) == ["aaaa"]
    assert "no runs" in command("--name", "nobody", "--columns", "step")[1]


def test_the_trend_of_a_name_says_what_each_run_changed(command, sweep):
    """From the oldest on, each beside the one before it."""
    code, out, _ = command("--trend", "net")

    assert code == 0
    assert ids(out) == ["1111", "2222", "3333", "4444"]
    words = [line.split()[-1] for line in out.splitlines()[2:]]
    assert words == ["same", "slower", "faster"]


def test_the_mean_of_a_name_is_over_its_runs(command, sweep):
    """With its standard deviation, for columns of numbers; JSON has both exactly."""
    code, out, _ = command("--name", "net", "--mean", "--columns", "accuracy,width")
    mean, sd = out.splitlines()[-2:]

    assert code == 0
    assert mean.split() == ["mean", "of", "4", "0.9275", "160"]
    assert sd.split() == ["standard", "deviation", "0.03096", "82.62"]
    _, out, _ = command("--name", "net", "--mean", "--columns", "accuracy", "--json")
    assert json.loads(out)["means"]["accuracy"] == {
        "value": pytest.approx(0.9275),
        "sd": pytest.approx(0.030957, rel=1e-4),
        "runs": 4,
        "unit": "",
    }


def test_a_trend_of_runs_whose_samples_nobody_knows(command, tmp_path):
    """Of the columns that nobody asked for those are left out that no run has."""
    for number in (0, 1):
        run = RunFolderBuilder(tmp_path, "net", f"{number + 1}" * 16, started_ns=START + number * S)
        for n in range(100):
            run.step(n, n * 40 * MS, {"forward": 20 * MS}, own=MS)
        run.write()
    code, out, _ = command("--trend", "net")

    assert code == 0
    assert ids(out) == ["1111", "2222"]
    assert "samples" not in out
    assert command("--columns", "samples_per_s")[0] == 2


def test_json_has_the_values_as_they_are(command, sweep):
    """Times in nanoseconds, beside the change of the step."""
    rows = json.loads(command("--trend", "net", "--columns", "step,width", "--json")[1])["runs"]

    assert [row["cells"]["width"]["value"] for row in rows] == [64, 128, 192, 256]
    assert rows[0]["cells"]["step"]["unit"] == "ns"
    assert [row["change"] and row["change"]["word"] for row in rows] == [
        None,
        "same",
        "slower",
        "faster",
    ]


def test_a_column_that_no_run_has_is_refused(command, sweep):
    """With those that there are."""
    code, _, said = command("--columns", "accurracy")

    assert code == 2
    assert "accuracy" in said
