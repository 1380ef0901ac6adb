"""How are the series of the chosen run, rank and device written in PromQL?

Metrics and attributes come from ``otel_mlperf.names``; a label that a metric does not have is an
error here, not an empty panel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.names import Metric

PROMOTED: Final = (names.RUN_NAME, names.RANK, names.HOST_NAME, names.SERVICE_NAME)
"""Attributes of the resource that ``prometheus.yml`` makes labels of every series."""
_OF_A_NODE: Final = (
    "system.",
    "linux.load_average",
    "linux.psi",
    "otel_mlperf.items",
    "otel_mlperf.sampler",
    "otel_mlperf.agent",
)
WINDOW: Final = "$__rate_interval"


def label(attribute: str) -> str:
    """An attribute's name in Prometheus."""
    return attribute.replace(".", "_")


OF_RUN: Final = f'{label(names.RUN_NAME)}="$run",instance=~"$instance"'
"""Matchers of the chosen run: its name, and the processes that ``target_info`` has of its id."""


def is_of_a_node(metric: Metric) -> bool:
    """Whether it belongs to a machine rather than to a rank: no choice of ranks leaves it out."""
    return metric.name.startswith(_OF_A_NODE)


def series(metric: Metric, where: str = "", *, every_rank: bool = False) -> str:
    """The series of the chosen run and ranks; ``where`` holds more matchers."""
    matchers = [OF_RUN]
    if not every_rank and not is_of_a_node(metric):
        matchers.append(f'{label(names.RANK)}=~"$rank"')
    if where:
        matchers.append(where)
    return f"{metric.prometheus}{{{','.join(matchers)}}}"


def where(**chosen: str) -> str:
    """Matchers by a name of ``names``: ``where(ML_PHASE="train", HW_NAME="~$gpu")``.

    A value that begins with ``~`` is a regular expression; ``!`` in front means that it must not
    match.
    """
    return ",".join(
        f"{label(getattr(names, constant))}{_matcher(value)}" for constant, value in chosen.items()
    )


def _matcher(value: str) -> str:
    for sign, operator in (("!~", "!~"), ("~", "=~"), ("!", "!=")):
        if value.startswith(sign):
            return f'{operator}"{value.removeprefix(sign)}"'
    return f'="{value}"'


def rate(metric: Metric, where: str = "", *, window: str = WINDOW, every_rank: bool = False) -> str:
    """Growth per second."""
    return f"rate({series(metric, where, every_rank=every_rank)}[{window}])"


def by(operation: str, attributes: tuple[str, ...], inner: str) -> str:
    """``sum by (a, b) (…)``; without attributes ``sum(…)``."""
    if not attributes:
        return f"{operation}({inner})"
    return f"{operation} by ({', '.join(map(label, attributes))}) ({inner})"


def shown(attribute: str) -> str:
    """A label's value in a legend."""
    return f"{{{{{label(attribute)}}}}}"
