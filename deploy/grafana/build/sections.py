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
_NO_STEP: Final = "No training step ended in this time range."
_NONE: Final = "No custom metrics: om.counter, om.gauge, om.histogram, om.log."
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
    "Step time",
    (
        Panel(
            kind="timeseries",
            title="Step time by run",
            question=(
                "Which run has faster steps? Mean training step time by run, over the selected "
                "ranks. Select several runs under *Run*, or several ids of one name under *Run "
                "id*. Different from the start: find the section below. Different since a point in "
                "time: check what changed then."
            ),
            queries=(Query(f"histogram_avg({_STEPS})", _EACH_RUN),),
            unit="s",
            none=_NO_STEP,
            link=_ON_RUN,
        ),
        Panel(
            kind="timeseries",
            title="p95 step time by run",
            question=(
                "Which run has slow steps? p95 of the training step time by run, over the selected "
                "ranks: 95 % of steps were faster. Far above the mean in one run only: some of its "
                "steps wait; open their traces from *Step time* in *Training run*."
            ),
            queries=(Query(f"histogram_quantile(0.95, {_STEPS})", _EACH_RUN),),
            unit="s",
            none=_NO_STEP,
            link=_ON_RUN,
        ),
    ),
)
_SECTIONS: Final = Row(
    "Sections",
    (
        Panel(
            kind="timeseries",
            title="p95 by section",
            question=(
                "Which section is slow, and in which run? p95 of the section duration by run, "
                "child sections included: 95 % of calls were faster; the 20 longest. Two runs "
                "differ in a section: `otel-mlperf compare` reports by how much, with a confidence "
                "interval."
            ),
            queries=(Query(f"topk({_MOST}, histogram_quantile(0.95, {_CALLS}))", _EACH),),
            unit="s",
            none="No section ended in this time range.",
            link=_ON_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Self time by section",
            question=(
                "Which sections make up a step? Self time per training step by section and run, "
                "mean of the selected ranks; the 20 largest. A section that is higher in one run "
                "is where that run loses time."
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
                "How often is each section called? Calls per second by section and run, summed "
                "over the selected ranks; the 20 most frequent. More calls at the same number of "
                "steps: an additional loop, or a batch in smaller parts. Thousands per second: "
                "`span(aggregate=True)` makes each call cheaper."
            ),
            queries=(Query(f"topk({_MOST}, histogram_count({_CALLS}))", _EACH),),
            unit="cps",
            none="No section ended in this time range.",
            link=_ON_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Share within the duration limit",
            question=(
                "Are calls fast enough? Share of calls with a duration limit (`within_s`) that met "
                "the limit and did not fail, by section and run. Red: less than 95 %; check in "
                "*p95 by section* whether the run itself is slower."
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
            none="No section has a duration limit: within_s, or the setting request_within_s.",
            link=_ON_RUN,
        ),
    ),
)
_NUMBERS: Final = Row(
    "Loss and custom metrics",
    (
        Panel(
            kind="timeseries",
            title="Loss by run",
            question=(
                "Which run learns better? Last logged loss by run and phase, mean of the selected "
                "ranks; NaN is left out. Faster steps with a worse loss are no gain: check this "
                "before you adopt a setting."
            ),
            queries=(
                Query(
                    _of_runs("avg", (*_RUN, names.ML_PHASE), f"({series(names.LOSS)} > -Inf)"),
                    f"{shown(names.ML_PHASE)} · {_EACH_RUN}",
                ),
            ),
            none="Not logged: log(loss=...).",
            link=_ON_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Custom counters",
            question=(
                "How fast do the program's counters grow? Growth per second by counter and run, "
                "summed over the selected ranks and all labels. Zero where growth is expected: "
                "that part of the program does not run."
            ),
            queries=(Query(_own("sum", _OWN_TOTALS, _RATE_OF_OWN), _EACH_OWN),),
            none=_NONE,
            link=_ON_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Custom gauges and logged values",
            question=(
                "What do the program's gauges and logged values show? Last value by name and run, "
                "mean of the selected ranks and all labels. Two runs differ: `otel-mlperf compare` "
                "also shows which parameters differ."
            ),
            # Above minus infinity is neither a histogram nor what is not a number.
            queries=(Query(_own("avg", _NO_TOTALS, "({} > -Inf)"), _EACH_OWN),),
            none=_NONE,
            link=_ON_RUN,
        ),
        Panel(
            kind="timeseries",
            title="p95 of custom histograms",
            question=(
                "How large are the values in the program's histograms? p95 by histogram and run, "
                "over the selected ranks and all labels: 95 % of values were smaller. Rising: the "
                "recorded values grow during the run."
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
    "Compare runs",
    "Several runs compared: step time, sections, loss, and the program's custom metrics.",
    (RANK,),
    (_RUNS, _SECTIONS, _NUMBERS),
    compares=True,
)
