"""Reference of all metrics: for terminals, as the page docs/metrics.md, and as JSON."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Final

import msgspec

from otel_mlperf.names import LOGGED, METRICS, Metric, user_metric
from otel_mlperf.names.metric import UNIT_WORDS, Instrument
from otel_mlperf.names.sources import levels_of
from otel_mlperf.terminal_lines import WIDTH, Line, text

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
"""Prefixes of the metric names in a group; the longest matching prefix applies."""
_SI: Final = {"1": "ratio, 0 to 1", "": "none"}
_INDENT: Final = "    "
_PAGE_WIDTH: Final = 100
_HEAD: Final = """\
# Metrics

Every metric that the package makes, generated from `otel_mlperf/names/` by `otel-mlperf reference
metrics --markdown > docs/metrics.md`. Names with a convention follow the OpenTelemetry semantic
conventions 1.44; `ml.*`, `linux.*` and `otel_mlperf.*` are ours. Rank, run and host are attributes
of the resource. Labels are attributes of the points; in Prometheus their dots are underscores, and
a histogram has three series: `_bucket`, `_sum`, `_count` (one where it is native). What a machine
cannot give is absent, never zero.

**Read by** names the source that reads a metric, and the lowest level of `readings` that includes
it: `basic` (the default), `detailed` or `comprehensive`; *more at* a level are further series of
it. Readings are made every 5 s, at level `comprehensive` every second. A metric without a source
comes from the run itself, at any level. Sources, and where readings go: [readings.md](readings.md).
"""
_COLUMNS: Final = """\
| metric | Prometheus | kind | unit | labels | read by | meaning |
|---|---|---|---|---|---|---|
"""
_OWN_TITLE: Final = "Your own: ml.user.*"
_OWN_RULES: Final = (
    "What `om.counter`, `om.gauge`, `om.histogram` and `om.log` are given is `ml.user.<name>`; "
    "labels are the keyword arguments, of `log` the phase. Of what `log` is given {logged} have "
    "metrics of their own. In Prometheus whatever is no letter or digit becomes one underscore, "
    "a unit becomes a word unless the name has it ({units}), a unit in braces none, a gauge of "
    "unit `1` ends in `_ratio` and a counter in `_total`."
)
_OWN_COLUMNS: Final = """\
| in the program | metric | Prometheus |
|---|---|---|
"""
_OWN: Final[dict[str, tuple[str, str, Instrument]]] = {
    'om.counter("img-read", "By").add(512, split="train")': ("img-read", "By", "counter"),
    'om.counter("tokens", "{token}").add(512)': ("tokens", "{token}", "counter"),
    'om.gauge("queue.depth").set(3)': ("queue.depth", "", "gauge"),
    'om.histogram("decode time", "ms").record(8.7)': ("decode time", "ms", "histogram"),
    "om.log(accuracy=0.98)": ("accuracy", "", "gauge"),
}
"""Examples, with the name, unit and instrument that each creates."""


def groups(metrics: Sequence[Metric] = METRICS) -> list[tuple[str, list[Metric]]]:
    """Return the metrics by subject: titles in a fixed order, and metrics sorted by name."""
    by_title: dict[str, list[Metric]] = {title: [] for title in _TITLES}
    for metric in sorted(metrics):
        by_title[_title(metric)].append(metric)
    return [(title, below) for title, below in by_title.items() if below]


def _title(metric: Metric) -> str:
    starts = {start: title for title, starts in _TITLES.items() for start in starts}
    return starts[max((start for start in starts if metric.name.startswith(start)), key=len)]


def render_metrics(*, width: int = WIDTH, color: bool = False, unicode: bool = True) -> str:
    """Render each metric with instrument, unit, labels, Prometheus name and meaning."""
    lines: list[Line] = []
    for title, metrics in groups():
        lines += [
            [(title, "bold")],
            *(line for metric in metrics for line in _metric_lines(metric, width)),
        ]
        lines.append([])
    lines.append([(_OWN_TITLE, "bold")])
    for code, metric in own_examples().items():
        lines += [[(f"  {code}", "cyan")], [(_INDENT + metric.prometheus, "dim")]]
    return text(lines, color=color, unicode=unicode)


def _metric_lines(metric: Metric, width: int) -> Iterator[Line]:
    unit = f", {metric.unit}" if metric.unit else ""
    head, kind, read_by = f"  {metric.name}", f"  {metric.instrument}{unit}", _read_by(metric)
    fits = len(f"{head}{kind}  {read_by}") <= width
    yield [(head, "cyan"), (f"{kind}  {read_by}" if fits and read_by else kind, "dim")]
    if read_by and not fits:
        yield [(_INDENT + read_by, "dim")]
    for line in textwrap.wrap(metric.meaning, width - len(_INDENT)):
        yield [(_INDENT + line, "")]
    labels = f" {{{', '.join(metric.labels)}}}" if metric.labels else ""
    for line in textwrap.wrap(
        metric.prometheus + labels, width - len(_INDENT), break_long_words=False
    ):
        yield [(_INDENT + line, "dim")]


def own_examples() -> dict[str, Metric]:
    """Return example code by which a program records a metric, and the resulting metric."""
    return {
        code: Metric(user_metric(name), unit, instrument, "Recorded by the program.")
        for code, (name, unit, instrument) in _OWN.items()
    }


class MetricRow(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of the package."""

    name: str
    unit: str
    """UCUM; empty: a plain number."""
    instrument: Instrument
    meaning: str
    labels: tuple[str, ...]
    """Attributes of its points; rank and run are resource attributes."""
    prometheus: str
    """Its name in Prometheus."""
    read_by: dict[str, list[str]]
    """Sources that read it, each with the levels that add series; empty: derived from the run
    itself."""


class MetricList(msgspec.Struct, frozen=True, kw_only=True, tag_field="schema", tag="metrics/1"):
    """Every metric that the package emits."""

    metrics: list[MetricRow]


def list_metrics() -> MetricList:
    """Return all metrics for programs, in the order of the page."""
    return MetricList(
        metrics=[
            MetricRow(**metric._asdict(), prometheus=metric.prometheus, read_by=levels_of(metric))
            for _, metrics in groups()
            for metric in metrics
        ]
    )


def render_markdown() -> str:
    """Return the page ``docs/metrics.md``."""
    parts = [_HEAD]
    for title, metrics in groups():
        parts += [f"\n## {title}\n\n", _COLUMNS, *(_row(metric) for metric in metrics)]
    return "".join([*parts, *_own()])


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    unit = _SI.get(metric.unit, f"`{metric.unit}`")
    cells = [f"`{metric.name}`", f"`{metric.prometheus}`", metric.instrument, unit, labels]
    cells.append(_read_by(metric))
    meaning = metric.meaning.replace("``", "`").replace("|", "\\|")
    return f"| {' | '.join([*cells, meaning])} |\n"


def _read_by(metric: Metric) -> str:
    """Return ``host basic, more at detailed``; empty for metrics of the run itself."""
    return "; ".join(
        f"{source} {', more at '.join(levels)}" for source, levels in levels_of(metric).items()
    )


def _own() -> Iterator[str]:
    """Yield the section on metrics that programs define themselves."""
    logged = ", ".join(f"`{name}`" for name in LOGGED)
    units = ", ".join(f"`{unit}` {word}" for unit, word in UNIT_WORDS.items())
    rules = textwrap.fill(_OWN_RULES.format(logged=logged, units=units), _PAGE_WIDTH)
    yield f"\n## {_OWN_TITLE}\n\n{rules}\n\n{_OWN_COLUMNS}"
    for code, metric in own_examples().items():
        yield f"| `{code}` | `{metric.name}` | `{metric.prometheus}` |\n"
