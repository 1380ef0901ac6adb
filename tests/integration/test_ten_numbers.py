"""Each number is the same in every place where it is read.

A training is read in all places: ``stats`` in the program, ``summary``, ``show``, ``kernels``, the
page of ``report``, data frames, CSV, Parquet, ``query``, tools of an assistant, TensorBoard, a file
of W&B, a real MLflow, the real Jaeger and the real Prometheus. What is counted in nanoseconds is
the same to the nanosecond; Prometheus and the trackers have seconds as floating point, a chart six
figures.
"""

from __future__ import annotations

import io
import json
import sys
import uuid
from collections import Counter
from contextlib import redirect_stdout

import pytest
import trackio_shown
import wandb_shown
import warm_python
from kineto_traces import kernel, launch
from mlflow_shown import expected as in_tables_of_mlflow
from mlflow_shown import in_mlflow, runs
from runs import LIMIT_S, environment, run_program
from servers.running import wait_until
from shown import arrived
from table_readers import READERS, by_tools, charts_of, command
from tracked_points import in_event_files, in_tables, of_the_program, rounded

from otel_mlperf import names
from otel_mlperf.analysis.run.item_accounts import read_accounts
from otel_mlperf.cli import main

pytestmark = pytest.mark.servers

STEPS, SAMPLES, PROFILED, VALIDATED = 24, 32, (4, 5), [5, 12]
TRAIN = {names.ML_PHASE: "train"}
LAST, MOST, LEAST = (f"{which}_over_time({{}}[1h])" for which in ("last", "max", "min"))


def near(seconds):
    """As floating point that was added up in another order."""
    return pytest.approx(seconds, rel=1e-9)


class Told:
    """What all places say of a run that has ended."""

    def __init__(self, ended, servers, service, numbers):
        self.ended, self.service, self._servers = ended, service, servers
        self.summary = self.command("summary")
        self.steps = {n: self.command("show", "--step", str(n)) for n in numbers}
        self.traces = {n: self._trace(step["trace_id"]) for n, step in self.steps.items()}

    def command(self, command, *options):
        out = io.StringIO()
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out):
            argv = ["otel-mlperf", command, str(self.ended.folder), *options, "--json"]
            patch.setattr(sys, "argv", argv)
            with pytest.raises(SystemExit) as end:
                main()
        assert not end.value.code, out.getvalue()
        return json.loads(out.getvalue())

    def _trace(self, trace):
        """The spans of a step in Jaeger, once all that were sent are there."""
        (sent,) = self.ended.rows(
            "SELECT count(*) AS n FROM spans "
            f"WHERE trace_id = '{trace}' AND (kind <> 'event' OR kept <> '')"
        )
        return wait_until(
            lambda: found if len(found := self._servers.jaeger_trace(trace)) >= sent["n"] else None,
            what=f"{sent['n']} spans of {trace}",
        )

    def section(self, step, name):
        """A section of a step as ``show`` has it."""
        (of_rank,) = self.steps[step]["ranks"]
        (section,) = (part for part in of_rank["sections"] if part["name"] == name)
        return section

    def spans(self, step, name):
        """The spans of a name in a step's trace in Jaeger."""
        return [span for span in self.traces[step] if span.name == name]

    def collected(self, step, name):
        """How long garbage collections took that fell into sections of a name themselves."""
        sections = {span.span_id for span in self.spans(step, name)}
        found = self.spans(step, names.SPAN_COLLECTION)
        return sum(duration(span) for span in found if span.parent_id in sections)

    def row(self, name):
        """A row of the summary's table."""
        (row,) = (row for row in self.summary["steps"]["rows"] if row["name"] == name)
        return row

    @property
    def usual(self):
        """The steps that the summary's means are about: all but the warm-up."""
        warm_up = self.summary["warm_up"]
        return [n for n in range(STEPS) if warm_up is None or n != warm_up["number"]]

    def ask(self, metric, function="{}", **labels):
        """Prometheus' one answer to a function of the one series of this run with these labels."""
        known = {"service_name": self.service} | labels
        which = ",".join(f'{name.replace(".", "_")}="{value}"' for name, value in known.items())
        (sample,) = self._servers.promql(function.format(f"{metric.prometheus}{{{which}}}"))
        return sample.value

    def outcomes(self):
        """What became of how many spans, all destinations together."""
        found = self._servers.promql(
            f'{names.ITEMS.prometheus}{{service_name="{self.service}",otel_mlperf_signal="spans"}}'
        )
        added = Counter()
        for sample in found:
            added[sample.labels["otel_mlperf_outcome"]] += sample.value
        return added

    def exemplars(self, metric):
        """The exemplars of a metric's series of this run's training."""
        return self._servers.promql_exemplars(
            f'{metric.prometheus}{{service_name="{self.service}",ml_phase="train"}}'
        )


@pytest.fixture(scope="module")
def told(servers, mlflow_server, wandb_package, tmp_path_factory):
    """All is read once: nothing changes any more."""
    service = uuid.uuid4().hex
    folder = tmp_path_factory.mktemp("ten")
    ended = run_program(
        folder / "runs", "--steps", str(STEPS), program="ten_numbers.py",
        OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint, OTEL_METRIC_EXPORT_INTERVAL="400",
        OTEL_MLPERF_TRACE_EVERY="1", OTEL_MLPERF_READINGS_INTERVAL="2000",
        OTEL_SERVICE_NAME=service,
        OTEL_MLPERF_DESTINATIONS="tensorboard,mlflow,wandb,trackio",
        OTEL_MLPERF_DRAIN_TIMEOUT_S=str(LIMIT_S),
        PYTHONPATH=str(wandb_package), WANDB_MODE="offline", TRACKIO_DIR=str(folder / "trackio"),
        MLFLOW_TRACKING_URI=mlflow_server.url, MLFLOW_EXPERIMENT_NAME=service,
    )  # fmt: skip
    assert ended.code == 0, ended.errors
    ended.settled()
    arrived(servers, ended, STEPS)
    return Told(ended, servers, service, range(STEPS))


@pytest.fixture(scope="module")
def on_device(servers, tmp_path_factory):
    """The same of a run whose trace tells of a device: each ``aten::addmm`` launches a kernel."""
    service, runs = uuid.uuid4().hex, tmp_path_factory.mktemp("device") / "runs"
    ended = run_program(
        runs, program="ten_numbers.py", OTEL_MLPERF_AGENT="none", OTEL_SERVICE_NAME=service
    )
    (trace,) = (ended.folder / "profiles").glob("*.pt.trace.json")
    trace.write_text(json.dumps(with_kernels(json.loads(trace.read_text()))))
    recovered = warm_python.run(
        [sys.executable, "-m", "otel_mlperf", "doctor", "--recover", ended.folder],
        env=environment(
            runs,
            OTEL_EXPORTER_OTLP_ENDPOINT=servers.otlp_endpoint,
            OTEL_MLPERF_TRACE_EVERY="1",
        ),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert recovered.returncode == 0, recovered.stderr
    return Told(ended, servers, service, PROFILED)


def with_kernels(trace):
    """A trace in which a kernel runs for each matrix product, as long as that took on the host."""
    operators = [one for one in trace["traceEvents"] if one.get("name") == "aten::addmm"]
    for number, operator in enumerate(operators, 1):
        start, length, thread = operator["ts"], operator["dur"], operator["tid"]
        trace["traceEvents"] += [
            launch(start + length / 4, length / 4, number, tid=thread) | {"pid": operator["pid"]},
            kernel("gemm", start + length / 2, length, number),
        ]
    return trace


def duration(span):
    return span.end_ns - span.start_ns


def own(trace, span):
    """A span's time without its children of the same thread: they do not overlap here."""
    thread = span.attributes[names.THREAD_ID]
    inside = [
        duration(child) for child in trace
        if child.parent_id == span.span_id and child.attributes.get(names.THREAD_ID) == thread
        and names.PROFILER_ACTIVITY not in child.attributes
    ]  # fmt: skip
    return duration(span) - sum(inside)


def test_1_steps(told):
    """As many in the summary as numbers that show knows, traces, and steps that were counted."""
    assert told.summary["steps"]["count"] == STEPS
    assert [step["number"] for step in told.steps.values()] == [*range(STEPS)]
    assert [len(told.spans(n, "train.step")) for n in range(STEPS)] == [1] * STEPS
    assert told.ask(names.STEPS, **TRAIN) == STEPS
    assert told.ask(names.STEP_DURATION, "histogram_count({})", **TRAIN) == STEPS
    (window,) = told.command("kernels")["windows"]
    assert [name for name in window["steps"] if name.startswith("train")] == [
        f"train step {n}" for n in PROFILED
    ]


def test_2_time_of_one_step(told):
    """To the nanosecond, of the slowest one and of those that were profiled."""
    shown = [step["ranks"][0]["duration_ns"] for step in told.steps.values()]
    slowest = told.summary["slowest"]

    assert shown[slowest["number"]] == slowest["duration_ns"]
    # A validation inside a step is no part of its time, but of its span, which says so.
    outside = [step["ranks"][0]["outside_ns"] for step in told.steps.values()]
    assert [n for n, ns in enumerate(outside) if ns] == VALIDATED
    (spans,) = zip(*(told.spans(n, "train.step") for n in range(STEPS)), strict=True)
    assert [span.attributes.get(names.STEP_OUTSIDE, 0) for span in spans] == outside
    assert [duration(span) for span in spans] == [
        sum(both) for both in zip(shown, outside, strict=True)
    ]
    assert [told.command("kernels", "--step", str(n))["step"]["duration_ns"] for n in PROFILED] == [
        shown[n] for n in PROFILED
    ]
    assert told.ask(names.STEP_DURATION, "histogram_sum({})", **TRAIN) == near(sum(shown) / 1e9)
    by_trace = {told.steps[n]["trace_id"]: ns for n, ns in enumerate(shown)}
    exemplars = told.exemplars(names.STEP_DURATION)
    assert exemplars
    for exemplar in exemplars:
        assert exemplar.value == near(by_trace[exemplar.trace_id] / 1e9)


def test_3_total_time_of_a_section(told):
    """From entering to leaving it, of all its calls."""
    shown = [told.section(n, "forward")["sum_ns"] for n in range(STEPS)]

    assert [sum(map(duration, told.spans(n, "forward"))) for n in range(STEPS)] == shown
    of_name = TRAIN | {names.SECTION_NAME: "forward"}
    total = told.ask(names.SECTION_DURATION, "histogram_sum({})", **of_name)
    assert total == near(sum(shown) / 1e9)


def test_4_calls_of_a_section(told):
    """Once in each step."""
    assert {told.section(n, "forward")["count"] for n in range(STEPS)} == {1}
    assert {len(told.spans(n, "forward")) for n in range(STEPS)} == {1}
    of_name = TRAIN | {names.SECTION_NAME: "forward"}
    calls = told.ask(names.SECTION_DURATION, "histogram_count({})", **of_name)
    assert calls == STEPS


@pytest.mark.parametrize(("name", "span"), [("forward", "forward"), ("data wait", "data.load")])
def test_5_and_6_self_time_and_data_wait(told, name, span):
    """A section's time without what is inside it: by step, as a mean, and as a total."""
    of_name = TRAIN | {names.SECTION_NAME: span}
    shown = [told.section(n, name)["self_ns"] for n in range(STEPS)]
    in_jaeger = [sum(own(told.traces[n], one) for one in told.spans(n, span)) for n in range(STEPS)]

    assert in_jaeger == shown
    assert told.ask(names.SECTION_SELF_TIME, **of_name) == near(sum(shown) / 1e9)
    usual = [shown[n] for n in told.usual]
    assert told.row(name)["mean_ns"] == near(sum(usual) / len(usual))
    if name == "forward":
        inside = [told.section(n, "encode")["sum_ns"] for n in range(STEPS)]
        collected = [told.collected(n, "forward") for n in range(STEPS)]
        whole = [told.section(n, "forward")["sum_ns"] for n in range(STEPS)]
        assert [*map(sum, zip(shown, inside, collected, strict=True))] == whole


def test_7_samples_a_second(told):
    """The samples of the steps that the figures are about, over the time that they took."""
    spans = [told.spans(n, "train.step")[0] for n in told.usual]
    took_ns = sum(told.steps[n]["ranks"][0]["duration_ns"] for n in told.usual)
    rate = SAMPLES * len(spans) * 1e9 / took_ns

    assert {step["ranks"][0]["samples"] for step in told.steps.values()} == {SAMPLES}
    assert {span.attributes[names.BATCH_SIZE] for span in spans} == {SAMPLES}
    assert told.summary["steps"]["samples_per_s"] == near(rate)
    assert told.ask(names.SAMPLES, **TRAIN) == SAMPLES * STEPS


def operators_of(told, step):
    """The rows of a profiled step in ``kernels``."""
    return told.command("kernels", "--by", "operator", "--step", str(step))["rows"]


def counted(told, step, place=None):
    """Calls and own time of each operator of a step, as ``show`` has them."""
    calls, times = Counter(), Counter()
    for span in told.steps[step]["ranks"][0]["spans"]:
        for operator in span["operators"]:
            if place in (None, operator["place"]):
                calls[operator["name"]] += operator["count"]
                times[operator["name"]] += operator["self_ns"]
    return calls, times


def test_8_operators_of_a_profiled_step(told):
    """Calls and own time of each, whatever was rolled up on the way to Jaeger."""
    for step in PROFILED:
        rows = {row["name"]: row for row in operators_of(told, step)}
        calls, times = counted(told, step)
        assert calls["aten::addmm"] == 2
        assert {name: row["calls"] for name, row in rows.items()} == calls
        assert {name: row["self_ns"] for name, row in rows.items()} == times
        in_jaeger = Counter()
        for span in told.traces[step]:
            if span.attributes.get(names.PROFILER_ACTIVITY) == "cpu_op":
                in_jaeger[span.name] += span.attributes.get(names.ROLLED_UP, 1)
        assert in_jaeger == calls
    events = sum(window["events"] for window in told.command("kernels")["windows"])
    assert told.ask(names.WINDOW_EVENTS, LAST) == events
    assert told.summary["windows"] == 1
    assert told.summary["profiled_steps"] == len(PROFILED)


def read(told, metric, labels):
    """All that was read of a metric whose labels have that text in them."""
    rows = told.ended.rows(
        f"SELECT value FROM readings WHERE name = '{metric.name}' AND labels LIKE '%{labels}%'"
    )
    return {row["value"] for row in rows}


def test_9_most_memory_in_use(told):
    """The most of all readings: of the machine, or what may be used.

    The last before each export was sent; in its first seconds a run has more of them than exports.
    """
    machine, limit = told.summary["machine"], told.ask(names.SYSTEM_MEMORY_LIMIT, MOST)
    if machine["memory_limit_bytes"] == limit:
        free = read(told, names.SYSTEM_MEMORY_AVAILABLE, "")
        assert told.ask(names.SYSTEM_MEMORY_AVAILABLE, LEAST) in free
        used = limit - min(free)
    else:
        limit = told.ask(names.CGROUP_MEMORY_LIMIT, LEAST)
        used_then = read(told, names.CGROUP_WORKING_SET, "")
        assert told.ask(names.CGROUP_WORKING_SET, MOST) in used_then
        used = max(used_then)

    assert (machine["memory_bytes"], machine["memory_limit_bytes"]) == (used, limit)
    main = {names.PROCESS_ROLE: "main"}
    assert told.ask(names.PROCESS_MEMORY, MOST, **main) in read(told, names.PROCESS_MEMORY, "main")


def test_8_kernels_of_a_device(on_device):
    """How busy it was, and the kernels of each step."""
    whole = on_device.command("kernels")
    total, (row,) = whole["total"], whole["rows"]
    steps = [on_device.command("kernels", "--step", str(n))["rows"] for n in PROFILED]
    validated = on_device.command("kernels", "--step", "0", "--phase", "validate")["rows"]

    busy = on_device.ask(names.WINDOW_DEVICE_BUSY, LAST)
    assert busy == near(total["busy_ns"] / total["window_ns"])
    assert (row["name"], row["calls"]) == ("gemm", 2 * (len(PROFILED) + 1))
    assert sum(of_step["total_ns"] for (of_step,) in [*steps, validated]) == row["total_ns"]
    for n, (of_step,) in zip(PROFILED, steps, strict=True):
        assert (of_step["calls"], of_step["total_ns"]) == tuple(
            counter["gemm"] for counter in counted(on_device, n, "device")
        )
        kernels = [
            duration(span) for span in on_device.traces[n]
            if span.attributes.get(names.PROFILER_ACTIVITY) == "kernel"
        ]  # fmt: skip
        assert (len(kernels), sum(kernels)) == (of_step["calls"], of_step["total_ns"])


def test_10_nothing_is_lost(told):
    """Nothing in the summary and the accounts, nor in what the agent says of itself."""
    assert told.summary["telemetry"]["lost"] == 0
    items = told.outcomes()
    assert set(items) == {"delivered", "rolled_up", "unselected"}
    spans = read_accounts(told.ended.folder)["spans"]
    assert items["unselected"] == sum(account.unselected for account in spans.values())
    for destinations in read_accounts(told.ended.folder).values():
        for account in destinations.values():
            assert account.adds_up
            assert (account.lost, account.pending) == ({}, 0)


OF_STEP = """SELECT number, sum(count)::BIGINT, sum(sum_ns)::BIGINT, sum(self_ns)::BIGINT
FROM sections WHERE phase = 'train' AND name = '{name}' AND number >= 0
GROUP BY number ORDER BY number"""
QUESTIONS = {
    "steps": "SELECT number, duration_ns, samples::BIGINT FROM steps WHERE phase = 'train' "
    "ORDER BY number",
    "forward": OF_STEP.format(name="forward"),
    "data wait": OF_STEP.format(name="data.load"),
    "operators": "SELECT name, sum(count)::BIGINT, sum(self_ns)::BIGINT FROM totals "
    "WHERE what = 'operator' GROUP BY name ORDER BY name",
    "memory": f"SELECT max(value)::BIGINT FROM readings WHERE name = '{names.PROCESS_MEMORY.name}' "
    "AND contains(labels, '\"main\"')",
}
"""What holds the ten numbers, but for what was lost, in the tables."""


@pytest.fixture(scope="module")
def expected(told):
    """What commands say that the ones above hold to Jaeger and Prometheus."""
    shown = [step["ranks"][0] for step in told.steps.values()]
    sections = {
        name: [
            [n, *(told.section(n, name)[of] for of in ("count", "sum_ns", "self_ns"))]
            for n in range(STEPS)
        ]
        for name in ("forward", "data wait")
    }
    operators = told.command("kernels", "--by", "operator")["rows"]
    return sections | {
        "steps": [[n, of["duration_ns"], of["samples"]] for n, of in enumerate(shown)],
        "operators": sorted([row["name"], row["calls"], row["self_ns"]] for row in operators),
        "memory": [[max(read(told, names.PROCESS_MEMORY, "main"))]],
    }


@pytest.mark.parametrize("reader", READERS)
def test_the_same_in_tables(told, expected, reader, tmp_path):
    """Steps and their time, calls, time and own time of sections, samples, operators, memory."""
    assert READERS[reader](told.ended.folder, tmp_path, QUESTIONS) == expected


def test_the_same_to_an_assistant(told):
    """Summary and steps are those of the commands, what was lost among it."""
    asked = {"summary": ("summary", {})}
    asked |= {str(n): ("show", {"step": n, "operators": True}) for n in PROFILED}

    answers = by_tools(told.ended.folder, asked)

    assert answers.pop("summary") == told.summary
    assert answers == {str(n): told.steps[n] for n in PROFILED}


def test_the_same_in_the_program(told):
    """Calls, total and own time of all sections that ``run.stats()`` told of at its end."""
    stats = json.loads(told.ended.output.splitlines()[-1])
    shown = [told.section(n, "forward") for n in range(STEPS)]
    of_forward = [sum(of[key] for of in shown) for key in ("count", "sum_ns", "self_ns")]

    assert stats["forward"] == of_forward
    count, total_ns, _ = stats["train.step"]
    spans = [told.spans(n, "train.step")[0] for n in range(STEPS)]
    assert (count, total_ns) == (STEPS, sum(map(duration, spans)))


def test_the_same_on_the_page(told, tmp_path):
    """Each point of the chart of steps is a step's time, to six figures; so are its sections'."""
    command(told.ended.folder, "report", "-o", str(tmp_path / "report.html"))
    page = (tmp_path / "report.html").read_text()
    charts = charts_of(page)
    numbers = [int(label.removeprefix("step ")) for label in charts["steps"]["labels"]]

    assert numbers == told.usual
    (band,) = charts["steps"]["series"]
    shown = [told.steps[n]["ranks"][0]["duration_ns"] for n in numbers]
    assert band["mean"] == band["low"] == band["high"] == [float(f"{ns:.6g}") for ns in shown]
    (own,) = (one["mean"] for one in charts["sections"]["series"] if one["name"] == "forward")
    assert own == [float(f"{told.section(n, 'forward')['self_ns']:.6g}") for n in numbers]


def test_the_same_in_tensorboard(told):
    """Every step, value and reading of the tables is a point, once, and the accounts say so."""
    points = in_event_files(told.ended.folder / "tensorboard")

    assert of_the_program(points) == rounded(in_tables(told.ended.folder))
    steps = {point[4]: point[2] for point in points if point[1] == "train/step_duration_s"}
    assert steps == {
        n: pytest.approx(step["ranks"][0]["duration_ns"] / 1e9, rel=1e-7)
        for n, step in told.steps.items()
    }
    account = read_accounts(told.ended.folder)["scalars"]["tensorboard"]
    assert account.delivered == account.created == points.total()


def test_the_same_in_mlflow(told, mlflow_server):
    """In the same way; each with its time to the millisecond."""
    (run,) = runs(mlflow_server.url, told.service)
    points = in_mlflow(mlflow_server.url, run)
    of_the_program = {
        point: count for point, count in points.items() if not point[0].startswith("findings/")
    }

    assert of_the_program == in_tables_of_mlflow(told.ended.folder)
    steps = {point[3]: point[1] for point in points if point[0] == "train/step_duration_s"}
    shown = {n: step["ranks"][0]["duration_ns"] for n, step in told.steps.items()}
    assert steps == {n: near(ns / 1e9) for n, ns in shown.items()}
    account = read_accounts(told.ended.folder)["scalars"]["mlflow"]
    assert account.delivered == account.created == points.total()


def test_the_same_in_wandb(told):
    """In the same way, every digit and moment of it."""
    points = wandb_shown.points(wandb_shown.rows(wandb_shown.the_file(told.ended.folder)))

    assert wandb_shown.of_the_program(points) == wandb_shown.expected(told.ended.folder)
    steps = {point[3]: point[1] for point in points if point[0] == "train/step_duration_s"}
    shown = {n: step["ranks"][0]["duration_ns"] for n, step in told.steps.items()}
    assert steps == {n: ns / 1e9 for n, ns in shown.items()}
    account = read_accounts(told.ended.folder)["scalars"]["wandb"]
    assert account.delivered == account.created == points.total()


@pytest.mark.usefixtures("trackio_python")
def test_the_same_in_trackio(told, tmp_path):
    """In the same way, every digit; times to the microsecond."""
    found = trackio_shown.shown(told.ended.folder.parents[1] / "trackio", tmp_path)

    by_tables = trackio_shown.expected(wandb_shown.expected(told.ended.folder))
    assert wandb_shown.of_the_program(found.points) == by_tables
    steps = {point[3]: point[1] for point in found.points if point[0] == "train/step_duration_s"}
    shown = {n: step["ranks"][0]["duration_ns"] for n, step in told.steps.items()}
    assert steps == {n: ns / 1e9 for n, ns in shown.items()}
    account = read_accounts(told.ended.folder)["scalars"]["trackio"]
    assert account.delivered == account.created == found.points.total()
