"""Generator of the tables of ``docs/`` that are derived from the code.

``python tests/pages.py`` rewrites each table between the two marks with its name.
"""

from __future__ import annotations

import re
import textwrap
import typing
from dataclasses import fields
from functools import partial
from pathlib import Path

import faults
import yaml

from otel_mlperf.cli.reference import answers
from otel_mlperf.findings.finding_table import RULES, TABLE
from otel_mlperf.names.sources import levels_of
from otel_mlperf.redaction import ENDINGS, KEY_WORDS, URL_PARAMETERS
from otel_mlperf.report.answer_schema import field_meanings
from otel_mlperf.secret_patterns import SHAPES
from otel_mlperf.sensors.measurement import LEVELS
from otel_mlperf.settings.config import LEVELS as LEVELS_OF
from otel_mlperf.settings.config import Config
from otel_mlperf.settings.standard_variables import STANDARD
from otel_mlperf.tables import ROWS
from otel_mlperf.tables import TABLES as STORED

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
ALERT_RULES = ROOT / "deploy" / "prometheus" / "rules.yaml"
THRESHOLD = re.compile(r" ([<>]) ([\d.]+)$")
FIELD = re.compile(r"\{(\w+)(?::([^}]*))?\}")
GIB = 1 << 30
TWINS = ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_METRICS_")


def table(*rows):
    """Return a Markdown table; the first row is the head."""
    head, *below = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *below]) + "\n"


def plain(text):
    """Return the text of a docstring as Markdown."""
    return text.replace("``", "`")


def settings():
    """Return each field of ``Config``."""
    rows = [("setting", "variable", "default", "meaning")]
    for item in fields(Config):
        about = item.metadata
        others = [f"`{choice}`" for choice in about["choices"] if choice != item.default]
        either = f" (or {', '.join(others)})" if others else ""
        cells = (f"`{item.name}`", f"`{about['variable']}`", default(item) + either)
        rows.append((*cells, plain(about["meaning"])))
    return table(*rows)


def default(item):
    """Return a value as in a YAML file."""
    value = item.default
    if value == "":
        return "empty"
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    size = f" ({value // GIB} GiB)" if item.name.endswith("_bytes") else ""
    return f"`{shown}`{size}"


def levels():
    """Return the values of the levels, for each setting that a level changes."""
    named = [
        item.name for item in fields(Config) if any(item.name in of for of in LEVELS_OF.values())
    ]
    rows = [("setting", *(f"`{level}`" for level in LEVELS_OF))]
    for name in named:
        said = [of.get(name, getattr(Config(), name)) for of in LEVELS_OF.values()]
        rows.append((f"`{name}`", *(f"`{text(value)}`" if value != "" else "–" for value in said)))
    return table(*rows)


def text(value):
    """Return a value as in a YAML file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def warnings():
    """Return each warning rule, with the alert of the same name."""
    alerts = {alert["alert"]: alert for alert in all_alerts()}
    rows = [("warning", "when", "read from", "what to do", "alert")]
    for rule in RULES:
        cells = (f"`{rule.name}`", condition(rule), level(rule), rule.action)
        rows.append((*cells, alarm(alerts[rule.name])))
    return table(*rows)


class Threshold(float):
    """A threshold, formatted with ``over`` or ``under``."""

    sign = ""

    def __format__(self, spec):
        shown = float.__format__(self, spec).replace("%", " %")
        return f"{self.sign} {shown}" if self else "1 or more"


class Over(Threshold):
    sign = "over"


class Under(Threshold):
    sign = "under"


def condition(rule):
    """Return the rule's summary with its threshold instead of the value, and its times."""
    value = {"above": Over, "below": Under}[rule.comparison](rule.threshold)
    labels = {label.replace(".", "_"): ", ".join(values) for label, values in rule.measured.where}
    words = {"hw_name": "a GPU", "ml_section_name": "NAME"} | labels
    words["system_filesystem_mountpoint"] = ""
    said = rule.summary.format(value=value, **words).replace("only ", "").replace(" ()", "")
    lasting = [f"for {time(rule.for_s)}"] if rule.for_s else []
    within = [f"within {time(rule.over_s)}"] if rule.over_s else []
    return ", ".join([said[0].upper() + said[1:], *lasting, *within])


def time(seconds):
    """Format a time in seconds or minutes."""
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def level(rule):
    """Return the lowest level of readings that includes all metrics of the rule."""
    needed = [levels_of(part.metric) for part in (rule.measured, rule.per) if part]
    firsts = [LEVELS.index(found[0]) for read_by in needed for found in read_by.values()]
    return LEVELS[max(firsts)] if firsts else "any level, also `none`"


def all_alerts():
    """Return the shipped Prometheus alerts."""
    groups = yaml.safe_load(ALERT_RULES.read_text())["groups"]
    return [alert for group in groups for alert in group["rules"]]


def alarm(alert):
    """Return the severity of an alert and the time for which its condition must be true."""
    after = f" after {alert['for']}" if "for" in alert else ""
    return alert["labels"]["severity"] + after


def alerts_alone():
    """Return the alerts without a warning of the same name."""
    rows = [("alert", "when", "what to do", "severity")]
    for alert in all_alerts():
        if alert["alert"] not in {rule.name for rule in RULES}:
            about = {key: " ".join(text.split()) for key, text in alert["annotations"].items()}
            cells = (f"`{alert['alert']}`", described(alert, about["description"]))
            rows.append((*cells, about["what_to_do"], alarm(alert)))
    return table(*rows)


EXAMPLES = {
    "all": "M", "call": "*call*", "cpus": "M", "dataset": "the data set", "device": "GPU",
    "each": "T ms", "grown": "N MiB", "host": "M", "longest": "", "most": "*loss* (Y %)",
    "of": "the process", "others": "N", "padding": "Y %", "passes": "N", "period": "N",
    "place": "*file:line*", "rank": "R", "reason": "its samples take longer", "runnable": "N",
    "section": "*section*", "seen": "N forward passes, X backward passes, no optimizer step",
    "spent": "T", "steps": "N", "threads": "K", "time": "T s", "times": "Y", "what": "samples",
    "worker": "W", "workers": "num_workers=K",
}  # fmt: skip
"""Fields of summaries and actions, each with an example or a letter, so that they can be read."""
EXAMPLES_OF = {
    ("blocked_loop", "doing"): "sleeping, or waiting for a disk, the network, a lock or a process",
    ("cold_start", "what"): "the first batch of each of N passes through the data set takes T ms",
    ("small_operators", "how"): "a backward pass runs N operations of T µs each",
    ("sync_in_loop", "doing"): "on fetching results",
    ("transfer", "how"): ": most of the copied memory is not pinned",
}
"""Examples for one finding only, by its id and the field."""


def found_afterwards():
    """Return the findings that are only evaluated on data of the whole run."""
    rows = [("finding", "threshold", "summary", "what to do")]
    for row in TABLE:
        if row.of_ended and row not in RULES and row.threshold:
            bound = "over" if row.comparison == "above" else "below"
            summary, action = (with_examples(row.id, text) for text in (row.summary, row.action))
            rows.append((f"`{row.id}`", f"{bound} {row.threshold:g}", summary, action))
    return table(*rows)


def with_examples(finding, template):
    """Fill the fields of a template: ``X`` or ``X %`` for the value, else its example."""

    def example(field):
        if field[1] == "value":
            return "X %" if (field[2] or "").endswith("%") else "X"
        return EXAMPLES_OF.get((finding, field[1])) or EXAMPLES.get(field[1], f"*{field[1]}*")

    return FIELD.sub(example, template)


def described(alert, description):
    """Return the alert's description with its threshold instead of the value."""
    sign, limit = THRESHOLD.search(alert["expr"]).groups()
    bound = {">": Over, "<": Under}[sign](limit)
    shown = {"humanizeDuration": f"over {time(bound)}", "humanizePercentage": f"{bound:.0%}"}
    return re.sub(r"\{\{ \$value \| (\w+) \}\}", lambda match: shown[match[1]], description)


def words():
    """Return the names whose values are redacted as secrets."""
    listed = sorted(KEY_WORDS) + sorted(f"…{ending}" for ending in ENDINGS)
    listed += sorted(f"?{parameter}=" for parameter in URL_PARAMETERS)
    return (
        textwrap.fill(", ".join(f"`{word}`" for word in listed), 100, break_on_hyphens=False) + "\n"
    )


def forms():
    """Return the known forms of tokens."""
    rows = [("issuer", "form", "source")]
    for shape in SHAPES:
        pattern = shape.pattern.replace("|", "\\|")
        rows.append((shape.issuer, f"`{pattern}`", shape.source))
    return table(*rows)


def fault_rows(group):
    """Return each fault of a group with its promise and the tests that verify it."""
    rows = [("fault", "event", "guaranteed behaviour", "verified by")]
    for name, fault in group.items():
        tests = [test_link(test) for test in faults.marked_tests().get(name, ())]
        untested = [f"not tested: {fault.untested}"] if fault.untested else []
        rows.append((name, fault.event, fault.promise, "<br>".join([*tests, *untested])))
    return table(*rows)


def test_link(test):
    """Return the node id of a test as a link to its file."""
    return f"[`{test}`](../tests/{test.partition('::')[0]})"


def shapes():
    """Return the answers of each command."""
    rows = [("command", "`schema`", "content")]
    for command, kind in answers().items():
        for shape in typing.get_args(kind) or [kind]:
            tag = f"`{shape.__struct_config__.tag}`"
            rows.append((f"`{command}`", tag, plain(shape.__doc__.partition("\n")[0])))
    return table(*rows)


def standard_variables():
    """Return each variable of OpenTelemetry's specification."""
    rows = [("variable", "used", "meaning, or what to use instead")]
    for variable in STANDARD:
        # The text below the table describes the variants for a single signal.
        told = [name for name in variable.names if not name.startswith(TWINS)] or variable.names
        named = ", ".join(f"`{name}`" for name in told)
        rows.append((named, "yes" if variable.is_used else "no", variable.meaning))
    return table(*rows)


def stored_columns(name):
    """Return each column of a stored table."""
    rows = [("column", "type", "may be missing", "meaning")]
    meanings = field_meanings(ROWS[name])
    for column in STORED[name]:
        kind = "text" if column.type == "word" else column.type
        missing = "yes" if column.null else ""
        rows.append((f"`{column.name}`", kind, missing, meanings.get(column.name, "")))
    return table(*rows)


TABLES = (
    {
        ("configuration.md", "settings"): settings,
        ("configuration.md", "standard variables"): standard_variables,
        ("configuration.md", "levels"): levels,
        ("warnings.md", "warnings"): warnings,
        ("warnings.md", "alerts"): alerts_alone,
        ("warnings.md", "found"): found_afterwards,
        ("secrets.md", "words"): words,
        ("secrets.md", "forms"): forms,
        ("json.md", "shapes"): shapes,
    }
    | {("faults.md", name): partial(fault_rows, group) for name, group in faults.GROUPS.items()}
    | {
        ("reading-runs.md", f"columns of {name}"): partial(stored_columns, name)
        for name in ("steps", "sections", "readings", "values", "marks", "totals")
    }
)
"""Functions that render the tables, by page and name of the marks."""


def between(name, text):
    """Return the text up to the first mark, between the marks, and from the second mark onward."""
    begin, mark, rest = text.partition(f"<!-- {name}: written by tests/pages.py -->\n")
    inner, last, end = rest.partition(f"<!-- end of {name} -->")
    assert mark, f"a mark that begins {name}"
    assert last, f"a mark that ends {name}"
    return begin + mark, inner, last + end


def main():
    """Write all tables."""
    for (page, name), render in TABLES.items():
        path = DOCS / page
        begin, _, end = between(name, path.read_text())
        path.write_text(begin + render() + end)


if __name__ == "__main__":
    main()
