"""What makes a metric, and how is it called in Prometheus?"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Instrument = Literal["counter", "gauge", "updowncounter", "histogram"]


class Metric(NamedTuple):
    """One metric: what it is called, counted in and means."""

    name: str
    unit: str
    """UCUM; empty where Prometheus would append a wrong word."""
    instrument: Instrument
    meaning: str
    labels: tuple[str, ...] = ()
    """Point attributes; rank and run are attributes of the resource."""

    @property
    def prometheus(self) -> str:
        """The name in Prometheus, by its OTLP rules (UnderscoreEscapingWithSuffixes)."""
        word = _UNIT_WORDS.get(self.unit, "")
        name = self.name.replace(".", "_")
        if self.unit == "1" and self.instrument == "gauge":
            word = "ratio"
        if word and word not in name.split("_"):
            name = f"{name}_{word}"
        return f"{name}_total" if self.instrument == "counter" else name


_UNIT_WORDS: Final = {
    "s": "seconds",
    "By": "bytes",
    "W": "watts",
    "Hz": "hertz",
    "J": "joules",
    "Cel": "celsius",
}


def user_metric(name: str) -> str:
    """The metric name of a value that the user named: ``ml.user.<name>``."""
    return f"ml.user.{name}"
