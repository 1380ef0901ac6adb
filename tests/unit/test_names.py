"""The vocabulary is consistent, and follows the semantic conventions where they exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import opentelemetry.semconv
import pytest

from otel_mlperf import names

PACKAGE = Path(opentelemetry.semconv.__path__[0])
CONSTANT = re.compile(r'^[A-Z_0-9]+: Final = "([^"]+)"\n"""\n(.*?)\n"""', re.MULTILINE | re.DOTALL)
BEYOND = {
    names.OVERFLOW: "the metrics SDK specification names it, not the semantic conventions",
    names.DROPPED_ATTRIBUTES: "the specification names it for formats without such a field",
    names.DROPPED_EVENTS: "the specification names it for formats without such a field",
    names.DROPPED_LINKS: "the specification names it for formats without such a field",
}

each_metric = pytest.mark.parametrize("metric", names.METRICS, ids=lambda metric: metric.name)


class Convention(NamedTuple):
    """What the conventions say of one name."""

    text: str

    @property
    def is_deprecated(self):
        return self.text.startswith("Deprecated")

    def told(self, key):
        found = re.search(rf"^{key}: (.*)$", self.text, re.MULTILINE)
        return found and found[1]


def conventions(kind):
    """Every name of the installed package by its documentation; what is stable wins."""
    found = {}
    for folder in ("_incubating", ""):
        for path in sorted((PACKAGE / folder / kind).glob("*_*.py")):
            for name, text in CONSTANT.findall(path.read_text()):
                found[name] = Convention(text)
    return found


CONVENTIONS = conventions("metrics")
ATTRIBUTES = conventions("attributes")


def namespaces(conventions):
    """First words of names that are not deprecated: nobody else gives names there."""
    return {name.split(".")[0] for name, found in conventions.items() if not found.is_deprecated}


def words():
    """Every attribute that the vocabulary names, by its constant."""
    spans = {name for name in vars(names) if name.startswith("SPAN_")}
    return {
        constant: value
        for constant, value in vars(names).items()
        if constant.isupper()
        and isinstance(value, str)
        and re.fullmatch(r"[a-z_0-9]+(\.[a-z_0-9]+)+", value)
        and constant not in spans
    }


def test_the_package_of_conventions_is_understood():
    """What is compared with is really there: names, units, instruments, deprecations."""
    assert len(CONVENTIONS) > 200
    assert len(ATTRIBUTES) > 500
    assert CONVENTIONS["system.cpu.time"].told("Unit") == "s"
    assert CONVENTIONS["system.cpu.time"].told("Instrument") == "counter"
    assert CONVENTIONS["system.network.dropped"].is_deprecated


@each_metric
def test_metrics_with_a_convention_follow_it(metric):
    """In a namespace of the conventions only their names are used, with unit and instrument."""
    if metric.name.split(".")[0] not in namespaces(CONVENTIONS):
        return
    found = CONVENTIONS[metric.name]

    assert not found.is_deprecated
    assert metric.unit == found.told("Unit")
    assert metric.instrument == found.told("Instrument")


def test_attributes_with_a_convention_follow_it():
    """In a namespace of the conventions only their attributes are used, none deprecated."""
    theirs = namespaces(ATTRIBUTES)
    ours = {value for value in words().values() if value.split(".")[0] in theirs}
    strange = {name for name in ours if name not in ATTRIBUTES or ATTRIBUTES[name].is_deprecated}

    assert len(ours) > 30
    assert strange == BEYOND.keys()


@each_metric
def test_labels_are_attributes_of_the_vocabulary(metric):
    """A label is spelled by a constant, and given once."""
    assert set(metric.labels) <= set(words().values())
    assert len(set(metric.labels)) == len(metric.labels)


@each_metric
def test_metrics_are_described_for_people(metric):
    """Each says what it means, in a sentence, and has a unit of UCUM or none."""
    assert not metric.meaning[0].islower()
    assert metric.meaning.endswith(".")
    assert metric.unit in {"", "1", "s", "By", "Hz", "W", "J", "Cel"} or re.fullmatch(
        r"\{[a-z_]+\}", metric.unit
    )


def test_names_are_given_once():
    """Neither two metrics nor their Prometheus names are the same."""
    assert len({metric.name for metric in names.METRICS}) == len(names.METRICS)
    assert len({metric.prometheus for metric in names.METRICS}) == len(names.METRICS)


@pytest.mark.parametrize(
    ("name", "unit", "instrument", "prometheus"),
    [
        ("system.cpu.time", "s", "counter", "system_cpu_time_seconds_total"),
        ("system.cpu.utilization", "1", "gauge", "system_cpu_utilization_ratio"),
        ("system.memory.usage", "By", "updowncounter", "system_memory_usage_bytes"),
        ("hw.temperature", "Cel", "gauge", "hw_temperature_celsius"),
        ("hw.energy", "J", "counter", "hw_energy_joules_total"),
        ("hw.errors", "{error}", "counter", "hw_errors_total"),
        ("hw.status", "1", "updowncounter", "hw_status"),
        ("ml.training.loss", "", "gauge", "ml_training_loss"),
        ("a.seconds", "s", "gauge", "a_seconds"),
    ],
)
def test_prometheus_names_follow_its_translation(name, unit, instrument, prometheus):
    """Dots become underscores, units become words unless they are there, counters are totals."""
    assert names.Metric(name, unit, instrument, "").prometheus == prometheus
