"""Generator of the tables of ``docs/`` that follow from the code.

``python tests/pages.py`` writes them anew, each between the two marks that name it.
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
GIB = 1 << 30
TWINS = ("OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_METRICS_")


def table(*rows):
    """A table, of which the first row is the head."""
    head, *below = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * len(rows[0]) + "|", *below]) + "\n"


def plain(text):
    """Docstring text as Markdown."""
    return text.replace("``", "`")


def settings():
    """Each field of ``Config``."""
    rows = [("setting", "variable", "default", "meaning")]
    for item in fields(Config):
        about = item.metadata
        others = [f"`{choice}`" for choice in about["choices"] if choice != item.default]
        either = f"; or {', '.join(others)}" if others else ""
        cells = (f"`{item.name}`", f"`{about['variable']}`", default(item) + either)
        rows.append((*cells, plain(about["meaning"])))
    return table(*rows)


def default(item):
    """As one would write it in a YAML file."""
    value = item.default
    if value == "":
        return "empty"
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    size = f" ({value // GIB} GiB)" if item.name.endswith("_bytes") else ""
    return f"`{shown}`{size}"


def levels():
    """What each level says of a setting; of those that none mentions nothing."""
    named = [
        item.name for item in fields(Config) if any(item.name in of for of in LEVELS_OF.values())
    ]
    rows = [("setting", *(f"`{level}`" for level in LEVELS_OF))]
    for name in named:
        said = [of.get(name, getattr(Config(), name)) for of in LEVELS_OF.values()]
        rows.append((f"`{name}`", *(f"`{text(value)}`" if value != "" else "–" for value in said)))
    return table(*rows)


def text(value):
    """As one would write it in a YAML file."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def warnings():
    """Each rule by which a run is watched, with the alert of the same name."""
    alerts = {alert["alert"]: alert for alert in all_alerts()}
    rows = [("warning", "when", "read from", "what to do", "alert")]
    for rule in RULES:
        cells = (f"`{rule.name}`", condition(rule), level(rule), rule.action)
        rows.append((*cells, alarm(alerts[rule.name])))
    return table(*rows)


class Threshold(float):
    """A number that is shown as one that is passed."""

    sign = ""

    def __format__(self, spec):
        shown = float.__format__(self, spec).replace("%", " %")
        return f"{self.sign} {shown}" if self else "1 or more"


class Over(Threshold):
    sign = "over"


class Under(Threshold):
    sign = "under"


def condition(rule):
    """The rule's summary, with its threshold in the place of the value, and its times."""
    value = {"above": Over, "below": Under}[rule.comparison](rule.threshold)
    labels = {label.replace(".", "_"): ", ".join(values) for label, values in rule.measured.where}
    words = {"hw_name": "a GPU", "ml_section_name": "NAME"} | labels
    words["system_filesystem_mountpoint"] = ""
    said = rule.summary.format(value=value, **words).replace("only ", "").replace(" ()", "")
    lasting = [f"for {time(rule.for_s)}"] if rule.for_s else []
    within = [f"within {time(rule.over_s)}"] if rule.over_s else []
    return ", ".join([said[0].upper() + said[1:], *lasting, *within])


def time(seconds):
    """Seconds, or minutes."""
    return f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"


def level(rule):
    """The level of readings from which on all that the rule looks at is there."""
    needed = [levels_of(part.metric) for part in (rule.measured, rule.per) if part]
    firsts = [LEVELS.index(found[0]) for read_by in needed for found in read_by.values()]
    return LEVELS[max(firsts)] if firsts else "any level, `none` too"


def all_alerts():
    """The alerts that are shipped for Prometheus."""
    groups = yaml.safe_load(ALERT_RULES.read_text())["groups"]
    return [alert for group in groups for alert in group["rules"]]


def alarm(alert):
    """How grave it is, and after how long."""
    after = f" after {alert['for']}" if "for" in alert else ""
    return alert["labels"]["severity"] + after


def alerts_alone():
    """Alerts that no warning of a run corresponds to."""
    rows = [("alert", "when", "what to do", "severity")]
    for alert in all_alerts():
        if alert["alert"] not in {rule.name for rule in RULES}:
            about = {key: " ".join(text.split()) for key, text in alert["annotations"].items()}
            cells = (f"`{alert['alert']}`", described(alert, about["description"]))
            rows.append((*cells, about["what_to_do"], alarm(alert)))
    return table(*rows)


def found_afterwards():
    """What only a finished run is judged by."""
    rows = [("finding", "reported from", "what to do")]
    for row in TABLE:
        if row.of_ended and row not in RULES and row.threshold:
            words = re.sub(r"\{value[^}]*\}", "…", row.summary)
            said = re.sub(r"\{(\w+)[^}]*\}", r"*\1*", words)
            action = re.sub(r"\{(\w+)[^}]*\}", r"*\1*", row.action)
            limit, is_above = f"{row.threshold:g}", row.comparison == "above"
            bound = limit if is_above else f"below {limit}"
            rows.append((f"`{row.id}`", f"{bound}: {said}", action))
    return table(*rows)


def described(alert, description):
    """The alert's own description, with its threshold in the place of the value."""
    sign, limit = THRESHOLD.search(alert["expr"]).groups()
    bound = {">": Over, "<": Under}[sign](limit)
    shown = {"humanizeDuration": f"over {time(bound)}", "humanizePercentage": f"{bound:.0%}"}
    return re.sub(r"\{\{ \$value \| (\w+) \}\}", lambda match: shown[match[1]], description)


def words():
    """The names that announce a secret."""
    listed = sorted(KEY_WORDS) + sorted(f"…{ending}" for ending in ENDINGS)
    listed += sorted(f"?{parameter}=" for parameter in URL_PARAMETERS)
    return (
        textwrap.fill(", ".join(f"`{word}`" for word in listed), 100, break_on_hyphens=False) + "\n"
    )


def forms():
    """The tokens that are known by their form."""
    rows = [("issuer", "form", "source")]
    for shape in SHAPES:
        pattern = shape.pattern.replace("|", "\\|")
        rows.append((shape.issuer, f"`{pattern}`", shape.source))
    return table(*rows)


def fault_rows(group):
    """Each fault of a group with its promise and the tests that hold it."""
    rows = [("", "what happens", "what is promised", "held by")]
    for name, fault in group.items():
        tests = [test_link(test) for test in faults.marked_tests().get(name, ())]
        untested = [f"not tested: {fault.untested}"] if fault.untested else []
        rows.append((name, fault.event, fault.promise, "<br>".join([*tests, *untested])))
    return table(*rows)


def test_link(test):
    """A test as pytest is told of it, which leads to its file."""
    return f"[`{test}`](../tests/{test.partition('::')[0]})"


def shapes():
    """What each command answers with."""
    rows = [("command", "`schema`", "what it is")]
    for command, kind in answers().items():
        for shape in typing.get_args(kind) or [kind]:
            tag = f"`{shape.__struct_config__.tag}`"
            rows.append((f"`{command}`", tag, plain(shape.__doc__.partition("\n")[0])))
    return table(*rows)


def standard_variables():
    """Each variable of OpenTelemetry's specification."""
    rows = [("variable", "used", "meaning, or what to use instead")]
    for variable in STANDARD:
        # Twins of one signal are told of below the table.
        told = [name for name in variable.names if not name.startswith(TWINS)] or variable.names
        named = ", ".join(f"`{name}`" for name in told)
        rows.append((named, "yes" if variable.is_used else "no", variable.meaning))
    return table(*rows)


def stored_columns(name):
    """Each column of a stored table."""
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
"""What makes a table, by the page that it is on and the name of its marks."""


def between(name, text):
    """``text`` up to the first mark of ``name``, between the marks, and from the second one on."""
    begin, mark, rest = text.partition(f"<!-- {name}: written by tests/pages.py -->\n")
    inner, last, end = rest.partition(f"<!-- end of {name} -->")
    assert mark, f"a mark that begins {name}"
    assert last, f"a mark that ends {name}"
    return begin + mark, inner, last + end


def main():
    """Writes the tables."""
    for (page, name), render in TABLES.items():
        path = DOCS / page
        begin, _, end = between(name, path.read_text())
        path.write_text(begin + render() + end)


if __name__ == "__main__":
    main()
