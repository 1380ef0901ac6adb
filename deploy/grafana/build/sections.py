"""Which run is slower, in which section, and what do its own numbers say?

The one dashboard in which several runs are chosen: every line is of one of them, by name and id.
"""

from __future__ import annotations

from typing import Final

from dashboard import RANK, Dashboard, to
from panels import Panel, Query, Row
from parts import TRAIN
from promql import OF_RUN, WINDOW, by, label, rate, series, shown

from otel_mlperf import names

_RUN: Final = (names.RUN_NAME, names.RUN_ID)
_SECTION: Final = (*_RUN, names.SECTION_NAME)
_ID: Final = label(names.RUN_ID)
_CHOSEN: Final = f'{OF_RUN},{label(names.RANK)}=~"$rank"'
_OF_PROCESSES: Final = (
    f"max by (job, instance, {_ID}) (label_replace("
    f'target_info{{{_CHOSEN},{_ID}=~"$id"}}, "{_ID}", "$1", "{_ID}", "(.{{8}}).*"))'
)
"""Which run each process is of, by the first characters of its id, which is on no other series."""
_EACH_RUN: Final = f"{shown(names.RUN_NAME)} {shown(names.RUN_ID)}"
_EACH: Final = f"{shown(names.SECTION_NAME)} · {_EACH_RUN}"
_OWN_NAME: Final = "number"
_EACH_OWN: Final = f"{shown(_OWN_NAME)} · {_EACH_RUN}"
_OWN_TOTALS: Final = '__name__=~"ml_user_.+_total"'
_NO_TOTALS: Final = '__name__=~"ml_user_.+",__name__!~".+_total"'
_NO_STEP: Final = "No training step has ended in this time."
_NONE: Final = "The program has none: om.counter, om.gauge, om.histogram, om.log."
_ON_RUN: Final = to("training-run", "Training run")
_MOST: Final = 20


def _of_runs(operation: str, attributes: tuple[str, ...], inner: str) -> str:
    """What belongs to one run, added up over its processes."""
    joined = f"{inner} * on (job, instance) group_left ({_ID}) {_OF_PROCESSES}"
    return by(operation, attributes, joined)


def _own(operation: str, metrics: str, of: str) -> str:
    """The program's own numbers, each with its name in a label that stays, as ``of`` them."""
    named = (
        f'label_replace({{{metrics},{_CHOSEN}}}, "{_OWN_NAME}", "$1", "__name__", "ml_user_(.+)")'
    )
    return _of_runs(operation, (*_RUN, _OWN_NAME), of.format(named))


_STEPS: Final = _of_runs("sum", _RUN, rate(names.STEP_DURATION, TRAIN))
_COUNTED: Final = _of_runs("sum", _RUN, rate(names.STEPS, TRAIN))
_SPENT: Final = _of_runs("sum", _SECTION, rate(names.SECTION_SELF_TIME, TRAIN))
_CALLS: Final = _of_runs("sum", _SECTION, rate(names.SECTION_DURATION))
_RATE_OF_OWN: Final = f"rate({{}}[{WINDOW}:15s])"
"""A point every 15 s, as they come: Prometheus' own distance of a minute often leaves one."""

_RUNS: Final = Row(
    "Which run is slower?",
    (
        Panel(
            kind="timeseries",
            title="Step time by run",
            question=(
                "Which of the chosen runs makes its steps faster? The mean of all chosen ranks. "
                "Choose several under *Run*, or several ids of one name. Apart from the start: "
                "look below for the section; apart since a moment: what was changed then?"
            ),
            queries=(Query(f"histogram_avg({_STEPS})", _EACH_RUN),),
            unit="s",
            none=_NO_STEP,
            link=_ON_RUN,
        ),
        Panel(
            kind="timeseries",
            title="p95 of the step time by run",
            question=(
                "Which of the runs has slow steps? 95 of 100 were no longer. Far above the mean in "
                "one run only: some of its steps wait for something that others have at hand."
            ),
            queries=(Query(f"histogram_quantile(0.95, {_STEPS})", _EACH_RUN),),
            unit="s",
            none=_NO_STEP,
            link=_ON_RUN,
        ),
    ),
)
_SECTIONS: Final = Row(
    "In which section?",
    (
        Panel(
            kind="timeseries",
            title="p95 by section",
            question=(
                "Which section is slow, in which run? 95 of 100 calls took no longer, what is "
                "inside included; the twenty longest. Two runs apart in one section: "
                "`otel-mlperf compare` says by how much, surely."
            ),
            queries=(Query(f"topk({_MOST}, histogram_quantile(0.95, {_CALLS}))", _EACH),),
            unit="s",
            none="No section has ended in this time.",
            link=_ON_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Self time by section",
            question=(
                "What is a step of each run made of? Self time per step, the twenty largest. The "
                "line that is higher in one run than in the other is where it loses its time."
            ),
            queries=(
                Query(
                    f"topk({_MOST}, {_SPENT} / on ({', '.join(map(label, _RUN))}) group_left "
                    f"{_COUNTED})",
                    _EACH,
                ),
            ),
            unit="s",
            none=_NO_STEP,
            link=_ON_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Calls by section",
            question=(
                "How often is each section called? Per second, the twenty most frequent. More "
                "calls of one in the same steps: a loop around it, or a batch cut into pieces; "
                "thousands per second: `span(aggregate=True)` makes each cheaper."
            ),
            queries=(Query(f"topk({_MOST}, histogram_count({_CALLS}))", _EACH),),
            unit="cps",
            none="No section has ended in this time.",
            link=_ON_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Share within the bound",
            question=(
                "Are calls as fast as they are to be? Of those that have a bound (`within_s`), the "
                "share that took no longer and did not fail. Red: less than 95 %. Look at *p95 by "
                "section* for whether the run itself is slower."
            ),
            queries=(
                Query(
                    f"{_of_runs('sum', _SECTION, rate(names.SECTION_WITHIN))} / "
                    f"{_of_runs('sum', _SECTION, rate(names.SECTION_BOUNDED))}",
                    _EACH,
                ),
            ),
            unit="percentunit",
            limits=(0.95, 0.99),
            falls=True,
            most=1,
            none="Nothing has a bound: within_s, or the setting request_within_s.",
            link=_ON_RUN,
        ),
    ),
)
_NUMBERS: Final = Row(
    "What do its own numbers say?",
    (
        Panel(
            kind="timeseries",
            title="Loss by run",
            question=(
                "Which run learns better? The loss as last logged, mean of the chosen ranks that "
                "have a number, by phase. Faster and worse is no gain: look here before a setting "
                "is kept."
            ),
            queries=(
                Query(
                    _of_runs("avg", (*_RUN, names.ML_PHASE), f"({series(names.LOSS)} > -Inf)"),
                    f"{shown(names.ML_PHASE)} · {_EACH_RUN}",
                ),
            ),
            none="It is not logged: log(loss=...).",
            link=_ON_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Own counters",
            question=(
                "How fast do the program's own counters grow? Per second, all ranks and labels "
                "together. Zero where something should be counted: that part of the program does "
                "not run."
            ),
            queries=(Query(_own("sum", _OWN_TOTALS, _RATE_OF_OWN), _EACH_OWN),),
            none=_NONE,
            link=_ON_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Own gauges and logged values",
            question=(
                "What do the program's own gauges say, and what did it log? The mean of the chosen "
                "ranks. Two runs apart: look whether their parameters differ, too "
                "(`otel-mlperf compare`)."
            ),
            # Above minus infinity is neither a histogram nor what is not a number.
            queries=(Query(_own("avg", _NO_TOTALS, "({} > -Inf)"), _EACH_OWN),),
            none=_NONE,
            link=_ON_RUN,
        ),
        Panel(
            kind="timeseries",
            title="p95 of own histograms",
            question=(
                "How large do the program's own histograms get? 95 of 100 recorded values were no "
                "larger, of all ranks and labels. Rising: something grows with the run."
            ),
            queries=(
                Query(
                    f"histogram_quantile(0.95, {_own('sum', _NO_TOTALS, _RATE_OF_OWN)})", _EACH_OWN
                ),
            ),
            none=_NONE,
            link=_ON_RUN,
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    "sections",
    "Sections and own numbers",
    "Several runs beside each other: which is slower, in which section, by its own numbers?",
    (RANK,),
    (_RUNS, _SECTIONS, _NUMBERS),
    compares=True,
)
