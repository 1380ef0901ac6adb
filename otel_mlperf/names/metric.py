"""Definition of a metric, and its name in Prometheus."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

Instrument = Literal["counter", "gauge", "updowncounter", "histogram"]


class Metric(NamedTuple):
    """Metric: its name, unit, instrument and meaning."""

    name: str
    unit: str
    """UCUM; empty where Prometheus would append a wrong word."""
    instrument: Instrument
    meaning: str
    labels: tuple[str, ...] = ()
    """Point attributes; rank and run are attributes of the resource."""

    @property
    def prometheus(self) -> str:
        """Return the name in Prometheus, by its OTLP rules (UnderscoreEscapingWithSuffixes)."""
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
    """Return the metric name of a value that the user named: ``ml.user.<name>``."""
    return f"ml.user.{name}"
