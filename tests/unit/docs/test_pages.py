"""The pages of ``docs/`` describe what the code does."""

from __future__ import annotations

import re
import typing
from dataclasses import fields

import pages
import pytest

from otel_mlperf.agent.derivation import rule_evaluator
from otel_mlperf.agent.model import sampling
from otel_mlperf.agent.model.sampling import Policy
from otel_mlperf.doctor.check_endpoint import JAEGER_VARIABLE, PROMETHEUS_VARIABLE
from otel_mlperf.errors import ConfigError
from otel_mlperf.journal.bulletin import RunWarning
from otel_mlperf.otlp.endpoint_settings import read_metric_settings, read_settings
from otel_mlperf.otlp.span_limits import read_span_limits
from otel_mlperf.recorder.api import readings as recorded
from otel_mlperf.recorder.api.readings import GpuReadings, HostReadings, ProcessReadings, Readings
from otel_mlperf.sensors.gpus.nvidia import nvml_gpu
from otel_mlperf.sensors.processes import process_usage
from otel_mlperf.settings.config import READING_SOURCES, Config, known_variables
from otel_mlperf.settings.load_config import load_config
from otel_mlperf.store import part_writer

PAGES = sorted(pages.DOCS.glob("*.md"))
UNITS = {
    "_bytes_per_s": "bytes/s",
    "_bytes": "bytes",
    "_watts": "W",
    "_celsius": "°C",
    "age_s": "s",
    "cpu_limit": "CPUs",
}
"""How fields end, and how their units begin."""


def page(name):
    """The text of a page."""
    return (pages.DOCS / name).read_text()


def flat(name):
    """The text of a page in one line."""
    return " ".join(page(name).split())


def rows(text):
    """The rows of the first table of a text, as cells, without its head."""
    found = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE)
    lines = found[0].splitlines()[2:]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]


@pytest.mark.parametrize(("name", "table"), pages.TABLES)
def test_tables_follow_from_the_code(name, table):
    """``python tests/pages.py`` writes them."""
    assert pages.between(table, page(name))[1] == pages.TABLES[name, table]()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    """Each link to a file names one that is there."""
    links = re.findall(r"\]\((?!http)([^)#]+)", path.read_text())

    assert [link for link in links if not (path.parent / link).exists()] == []


def test_the_example_of_a_file_is_one(tmp_path):
    """It is taken as it stands; a variable beats it, an argument or a mapping both."""
    (text,) = re.findall(r"```yaml\n(.*?)```", page("configuration.md"), re.DOTALL)
    file = tmp_path / "team.yaml"
    file.write_text(text)
    environ = {"OTEL_MLPERF_TRACE_EVERY": "20"}

    assert load_config(file, environ={}).trace_every == 500
    assert load_config(environ={"OTEL_MLPERF_CONFIG": str(file)}) == load_config(file, environ={})
    assert load_config(file, environ=environ).trace_every == 20
    assert load_config(file, {"trace_every": 7}, environ).trace_every == 7
    assert load_config({"trace_every": 7}, environ=environ).trace_every == 7
    assert load_config({"trace_every": 7}, {"trace_every": 8}, environ).trace_every == 8


def test_what_says_nothing(tmp_path, caplog):
    """A field of a ``Config`` that has its default, an empty variable, and one that is wrong."""
    (tmp_path / "c.yaml").write_text("trace_every: 500\n")
    environ = {"OTEL_MLPERF_CONFIG": str(tmp_path / "c.yaml")}

    assert load_config(Config(trace_every=100), environ=environ).trace_every == 500
    assert load_config(environ=environ | {"OTEL_MLPERF_TRACE_EVERY": ""}).trace_every == 500
    assert load_config(environ=environ | {"OTEL_MLPERF_TRACE_EVERY": "x"}).trace_every == 500
    assert "OTEL_MLPERF_TRACE_EVERY" in caplog.text
    with pytest.raises(ConfigError):
        load_config({"trace_every": "x"}, environ=environ)


_OF_OTHERS = ("OTEL_EXPORTER_PROMETHEUS_", "OTEL_EXPORTER_ZIPKIN_")


class Asked(dict):
    """An environment that knows what was asked for."""

    def __init__(self, **given):
        super().__init__(given)
        self.names = set()

    def get(self, name, default=None):
        self.names.add(name)
        return super().get(name, default)


def test_other_variables_are_those_that_are_obeyed():
    """Neither is one missing nor one too many; each has its twins for the signals."""
    environ = Asked(OTEL_EXPORTER_OTLP_ENDPOINT="http://far:4318", OTEL_EXPORTER_OTLP_HEADERS="a=b")
    read_settings(environ, "traces")
    read_settings(environ, "metrics")
    read_metric_settings(environ)
    read_span_limits(environ)
    of_config = {field.metadata["variable"] for field in fields(Config)}
    asked = {re.sub("OTLP_(TRACES|METRICS)_(?!DEF|TEMP)", "OTLP_", name) for name in environ.names}
    text = page("configuration.md").partition("## Other variables")[2]
    others, _, standard = text.partition("## OpenTelemetry's variables")
    listed = {name for cells in rows(others) for name in re.findall(r"`(\w+)`", cells[0])}
    used = [cells[0] for cells in rows(standard) if cells[1] == "yes"]
    ours = {JAEGER_VARIABLE, PROMETHEUS_VARIABLE, "OTEL_MLPERF_CONFIG"}

    assert listed == ours
    # The API reads the propagators, and exporters of others their own variables.
    told = {name for cell in used for name in re.findall(r"`(\w+)`", cell)} - {"OTEL_PROPAGATORS"}
    told = {name for name in told if not name.startswith(_OF_OTHERS)}
    assert told == asked | {name for name in of_config if not name.startswith("OTEL_MLPERF_")}
    assert ours <= set(known_variables())
    twins = Asked(OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="http://a/b", **environ)
    assert read_settings(twins, "traces")[0].endpoint == "http://a/b"
    assert read_settings(twins, "metrics")[0].endpoint == "http://far:4318/v1/metrics"
    assert read_settings(Asked(), "traces")[0] is None
    only = Asked(OTEL_TRACES_EXPORTER="otlp")
    assert read_settings(only, "traces")[0].endpoint == "http://localhost:4318/v1/traces"
    assert read_settings(only, "traces")[0].timeout_s == 10


@pytest.mark.parametrize(
    ("kind", "heading"),
    [
        (Readings, "## In the program"),
        (ProcessReadings, "`process`, of this"),
        (HostReadings, "`host`:"),
        (GpuReadings, "Each of `gpus`"),
    ],
)
def test_fields_of_readings_are_those_of_the_class(kind, heading):
    """In its order, with their units, and with when they are None where they may be."""
    listed = rows(page("readings.md").partition(f"\n{heading}")[2])
    types = typing.get_type_hints(kind, {**vars(recorded), "RunWarning": RunWarning})

    assert [cells[0] for cells in listed] == [f"`{field.name}`" for field in fields(kind)]
    for (name, unit, when), field in zip(listed, types.values(), strict=True):
        assert (type(None) in typing.get_args(field)) == bool(when), name
        for ending, word in UNITS.items():
            assert not name.strip("`").endswith(ending) or unit.startswith(word), name


def test_sources_and_seldom_readings_are_those_of_the_sensors():
    """Each source that can be switched off is explained, and numbers are those of the code."""
    text = page("readings.md").partition("\n| source |")
    sources = [
        name for cells in rows(text[1] + text[2]) for name in re.findall(r"`(\w+)`", cells[0])
    ]

    assert [name for name in sources if name != "none"] == list(READING_SOURCES)
    every = process_usage._PSS_EVERY
    assert f"`ml.process.memory.pss` at every {every}th reading" in flat("readings.md")
    assert f"limits of GPUs every {nvml_gpu.SELDOM_S:.0f} s" in flat("readings.md")


def test_what_a_warning_has_is_named():
    """As ``on_warning`` gives it, and for how long it goes on."""
    (told,) = re.findall(r"in the main thread, with ([^;]*);", page("warnings.md"))

    assert set(re.findall(r"`(\w+)`", told)) <= set(RunWarning.__struct_fields__)
    assert f"not held for {rule_evaluator._CLEAR_S:.0f} s" in flat("warnings.md")


def test_reasons_and_limits_of_traces_are_those_of_the_policy():
    """Each reason with its setting and its limit, in the order in which they are asked for."""
    text, limits, own = flat("traces.md"), Policy(), Config()
    found = {cells[0].strip("`"): cells[1:] for cells in rows(page("traces.md"))}

    assert list(found) == [
        sampling.PROFILED,
        sampling.FIRST,
        sampling.EVERY,
        sampling.ERROR,
        sampling.SLOW,
        sampling.LONGEST,
        sampling.INTERRUPTED,
    ]
    assert found["first"] == [f"the first {own.trace_first} of each phase", "`trace_first`", ""]
    assert found["every"] == [f"after them one in {own.trace_every}", "`trace_every`", ""]
    assert found["error"][2] == f"{limits.errors_per_minute} a minute"
    assert found["slow"] == [
        f"those over {own.trace_slow_ratio:.0f} times the median of the last "
        f"{sampling._WINDOW} of their phase, once {sampling._ENOUGH} are known",
        "`trace_slow_ratio`",
        f"{limits.slow_per_minute} a minute",
    ]  # fmt: skip
    assert f"at most `max_spans_per_rank` ({own.max_spans_per_rank}) spans" in text
    assert f"together `max_spans_per_trace` ({own.max_spans_per_trace})" in text
    assert f"a share would be under {sampling._FEWEST_SPANS}," in text
    assert (limits.trace_first, limits.trace_every, limits.trace_slow_ratio) == (
        own.trace_first, own.trace_every, own.trace_slow_ratio,
    )  # fmt: skip


def test_settings_that_limit_traces_are_settings():
    """Whatever the page calls by a name of that kind is a field of ``Config``."""
    known = {field.name for field in fields(Config)}
    named = set(re.findall(r"`(\w+_(?:first|every|ratio|trace|rank|bytes))`", page("traces.md")))

    assert len(named) >= 7
    assert named <= known


def test_what_goes_first_from_a_run_folder():
    """In the order in which it is removed."""
    order = ", ".join(part_writer._REMOVAL_ORDER)
    assert f"then the oldest {order}, in this order" in flat("traces.md")
