"""How does the list of all metrics look, on a terminal, as a page and for programs?"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.names import METRICS, Metric
from otel_mlperf.report.lines import WIDTH, Line, text

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TITLES: Final = {
    "Training": ("ml.",),
    "PyTorch and CUDA": ("pytorch.", "cuda.", "nccl."),
    "Accelerators and sensors": ("hw.", "ml.accelerator."),
    "Processes": ("process.", "ml.process.", "cpython."),
    "Control groups: what a container or job may use": ("linux.cgroup.",),
    "Host": ("system.", "linux."),
    "Own health": ("otel_mlperf.",),
}
"""How the names of a group begin; of several the longest beginning holds."""
_SI: Final = {"1": "ratio, 0 to 1", "": "none"}
_INDENT: Final = "    "
_HEAD: Final = """\
# Metrics

Every metric that the package makes, generated from `otel_mlperf/names/` by
`otel-mlperf metrics --markdown > docs/metrics.md`. Names with a convention follow the OpenTelemetry
semantic conventions 1.44; `ml.*`, `linux.*` and `otel_mlperf.*` are ours. Rank, run and host are
attributes of the resource. Labels are attributes of the points; in Prometheus their dots are
underscores, and a histogram has three series: `_bucket`, `_sum`, `_count` (one where it is native).
What a machine cannot give is absent, never zero.
"""


def groups(metrics: Sequence[Metric] = METRICS) -> list[tuple[str, list[Metric]]]:
    """Metrics by what they are of: titles in a fixed order, and under each metrics by name."""
    found: dict[str, list[Metric]] = {title: [] for title in _TITLES}
    for metric in sorted(metrics):
        found[_title(metric)].append(metric)
    return [(title, below) for title, below in found.items() if below]


def _title(metric: Metric) -> str:
    starts = {start: title for title, starts in _TITLES.items() for start in starts}
    return starts[max((start for start in starts if metric.name.startswith(start)), key=len)]


def render_metrics(*, width: int = WIDTH, color: bool = False, unicode: bool = True) -> str:
    """Each metric with kind, unit, labels, name in Prometheus and meaning."""
    lines: list[Line] = []
    for title, metrics in groups():
        lines += [[(title, "bold")], *(line for metric in metrics for line in _told(metric, width))]
        lines.append([])
    return text(lines[:-1], color=color, unicode=unicode)


def _told(metric: Metric, width: int) -> Iterator[Line]:
    unit = f", {metric.unit}" if metric.unit else ""
    yield [(f"  {metric.name}", "cyan"), (f"  {metric.instrument}{unit}", "dim")]
    for line in textwrap.wrap(metric.meaning, width - len(_INDENT)):
        yield [(_INDENT + line, "")]
    labels = f" {{{', '.join(metric.labels)}}}" if metric.labels else ""
    for line in textwrap.wrap(
        metric.prometheus + labels, width - len(_INDENT), break_long_words=False
    ):
        yield [(_INDENT + line, "dim")]


def metric_rows() -> list[dict[str, Any]]:
    """The same for programs, in the order of the page."""
    return [
        {**metric._asdict(), "prometheus": metric.prometheus}
        for _, metrics in groups()
        for metric in metrics
    ]


def render_markdown() -> str:
    """The page ``docs/metrics.md``."""
    parts = [_HEAD]
    for title, metrics in groups():
        parts += [f"\n## {title}\n\n", "| metric | Prometheus | kind | unit | labels | meaning |\n"]
        parts += ["|---|---|---|---|---|---|\n", *(_row(metric) for metric in metrics)]
    return "".join(parts)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    unit = _SI.get(metric.unit, f"`{metric.unit}`")
    cells = [f"`{metric.name}`", f"`{metric.prometheus}`", metric.instrument, unit, labels]
    meaning = metric.meaning.replace("``", "`").replace("|", "\\|")
    return f"| {' | '.join([*cells, meaning])} |\n"
