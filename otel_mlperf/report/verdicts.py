"""Rendering of a regression check's verdicts: as text, JUnit report or GitHub annotations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from xml.etree import ElementTree as Xml

from otel_mlperf.quantities import duration
from otel_mlperf.report.comparison_table import counted, differing_text
from otel_mlperf.report.kernel_names import short_name
from otel_mlperf.terminal_lines import WIDTH, broken, text, visible

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.comparison.bounds import Level, Verdict
    from otel_mlperf.analysis.comparison.comparison_shapes import Comparison
    from otel_mlperf.terminal_lines import Line, Style

_STYLES: Final[dict[Level, Style]] = {
    "breach": "red", "nothing": "red", "warn": "yellow", "ok": "green",
}  # fmt: skip
_BROKEN: Final = ("breach", "nothing")
_LEVEL: Final = 8
_CAUSES: Final = ("param", "machine")
_MAX_SHOWN: Final = 5
_LONGEST_KERNEL: Final = 40


def context_of(comparison: Comparison, baseline: str) -> list[str]:
    """Return notes on the comparison: its runs, other differences, slower kernels and commands.

    ``baseline`` is the baseline run or file as named on the command line.
    """
    before, after = comparison.before, comparison.after
    texts = [
        f"compared with {before.name} {before.short_id}: "
        f"{counted(before)} before, {counted(after)} after"
    ]
    differing = [differing_text(one) for one in comparison.differing if one.what in _CAUSES]
    texts += [f"also different: {', '.join(differing[:_MAX_SHOWN])}"] if differing else []
    texts += [
        f"kernel {short_name(change.name, _LONGEST_KERNEL)}: {change.reason}, "
        f"{duration(change.before_ns)} → {duration(change.after_ns)} per step"
        for change in comparison.kernels[:_MAX_SHOWN]
        if change.after_ns > change.before_ns
    ]
    accept = baseline if baseline.endswith(".json") else "FILE.json"
    texts.append(f"all differences: otel-mlperf compare {baseline} {after.short_id}")
    texts.append(f"if intended: otel-mlperf compare {after.short_id} --write-baseline {accept}")
    return texts


def render_verdicts(
    verdicts: Sequence[Verdict],
    context: Sequence[str] = (),
    *,
    width: int = WIDTH,
    color: bool = False,
    unicode: bool = True,
) -> str:
    """Render one entry per verdict, then ``context`` if any verdict makes the check fail."""
    lines: list[Line] = []
    for verdict in verdicts:
        first, *more = broken(verdict.said, width - _LEVEL) or [""]
        label = "error" if verdict.level == "nothing" else verdict.level
        lines.append([(f"{label:<{_LEVEL}}", _STYLES[verdict.level]), (first, "")])
        lines += [[(" " * _LEVEL + part, "")] for part in more]
    for sentence in context if is_broken(verdicts) else ():
        lines += [[(" " * _LEVEL + part, "dim")] for part in broken(sentence, width - _LEVEL)]
    return text(lines, color=color, unicode=unicode)


def is_broken(verdicts: Sequence[Verdict]) -> bool:
    """Return whether the check fails: a verdict is a breach, or nothing could be compared."""
    return any(verdict.level in _BROKEN for verdict in verdicts)


def junit_xml(verdicts: Sequence[Verdict], suite: str, context: Sequence[str] = ()) -> str:
    """Return the verdicts as a JUnit test report with the name ``suite``, for CI servers.

    Each failure contains the whole ``context``, because CI servers show failures one by one.
    """
    failures = sum(verdict.level in _BROKEN for verdict in verdicts)
    root = Xml.Element(
        "testsuite", name=visible(suite), tests=str(len(verdicts)), failures=str(failures)
    )
    for verdict in verdicts:
        case = Xml.SubElement(root, "testcase", name=visible(verdict.name), classname="otel_mlperf")
        if verdict.level in _BROKEN:
            failure = Xml.SubElement(case, "failure", message=visible(verdict.said))
            failure.text = "\n".join(map(visible, (verdict.said, *context)))
        elif verdict.level == "warn":
            Xml.SubElement(case, "system-out").text = visible(verdict.said)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def github_annotations(verdicts: Sequence[Verdict], context: Sequence[str] = ()) -> str:
    """Return GitHub Actions workflow commands: an error per breach, a warning per unclear change.

    The first breach also contains ``context``. If nothing was compared, an error reports this.
    """
    kinds = {"breach": "error", "nothing": "error", "warn": "warning"}
    shown, rest = "", list(context)
    for verdict in sorted(verdicts, key=lambda verdict: verdict.level != "breach"):
        if verdict.level in kinds:
            more = rest if verdict.level == "breach" else []
            rest = [] if more else rest
            message = "%0A".join(map(_escaped, (verdict.said, *more)))
            title = f"otel-mlperf compare {_property(verdict.name)}"
            shown += f"::{kinds[verdict.level]} title={title}::{message}\n"
    return shown


def _property(name: str) -> str:
    # In a workflow command, a comma ends a property, and a colon ends all properties.
    return _escaped(name).replace(":", "%3A").replace(",", "%2C")


def _escaped(message: str) -> str:
    # A name with a line feed could start another workflow command.
    return visible(message).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
