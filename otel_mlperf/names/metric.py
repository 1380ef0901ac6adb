"""Definition of a metric, and its name in Prometheus."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

Instrument = Literal["counter", "gauge", "updowncounter", "histogram"]


class Metric(NamedTuple):
    """Definition of a metric: name, unit, instrument, meaning and labels."""

    name: str
    unit: str
    """Unit in UCUM notation; empty if there is none or Prometheus would append a wrong suffix."""
    instrument: Instrument
    meaning: str
    labels: tuple[str, ...] = ()
    """Attributes of the metric's points, without rank and run, which are resource attributes."""

    @property
    def prometheus(self) -> str:
        """Name of the metric in Prometheus.

        The name follows the OTLP translation strategy ``UnderscoreEscapingWithSuffixes``.
        """
        words = _WORDS.findall(self.name)
        unit = UNIT_WORDS.get(self.unit, "")
        if unit and unit not in words:
            words.append(unit)
        is_share = self.unit == "1" and self.instrument == "gauge"
        ending = "total" if self.instrument == "counter" else "ratio" if is_share else ""
        words = [word for word in words if word != ending]
        return "_".join([*words, ending] if ending else words)


_WORDS: Final = re.compile(r"[a-zA-Z0-9:]+")
UNIT_WORDS: Final = {
    "s": "seconds",
    "ms": "milliseconds",
    "By": "bytes",
    "W": "watts",
    "Hz": "hertz",
    "J": "joules",
    "Cel": "celsius",
}


def user_metric(name: str) -> str:
    """Return the metric name of a value that the user's code calls ``name``."""
    return f"ml.user.{name}"
