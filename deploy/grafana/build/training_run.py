"""A run is slow, or does not move: where to look, from top to bottom?"""

from __future__ import annotations

from typing import Final

from dashboard import RANK as RANK_VARIABLE
from dashboard import SERVICE, TRACES, Dashboard, to
from panels import Panel, Query, Row, TraceTable
from parts import (
    DATA_WAIT_BY_RANK,
    LOST,
    OPEN_NOW,
    RANK,
    TRAIN,
    WAIT_LIMITS,
    data_wait,
)
from promql import by, label, rate, series, shown
from training_learning import LEARNING
from training_requests import REQUESTS
from training_sections import SECTION_USE
from training_use import DEVICE, HOST

from otel_mlperf import names

_NO_STEP: Final = "No training step ended in this time range."
_STEP_5M: Final = f"histogram_avg(sum({rate(names.STEP_DURATION, TRAIN, window='5m')}))"
_STEPS: Final = f"avg({by('sum', RANK, rate(names.STEPS, TRAIN))})"
_RECENT: Final = "15m"
_EACH_GPU: Final = f"{shown(names.HOST_NAME)} {shown(names.HW_NAME)} (rank {shown(names.RANK)})"


def _recent(operation: str, of: str) -> str:
    outer = operation.partition("_")[0]
    return f"{outer}({operation}({of}[{_RECENT}]))"


def _time_left() -> str:
    """Steps that are left x the time that a step took of late, with the pauses in between."""
    number, last = series(names.STEP_NUMBER, TRAIN), series(names.LAST_STEP_TIME)
    left = f"max({series(names.STEPS_EXPECTED)}) - 1 - max({number})"
    time = f"{_recent('max_over_time', last)} - {_recent('min_over_time', last)}"
    steps = f"{_recent('max_over_time', number)} - {_recent('min_over_time', number)}"
    return f"({left}) * ({time}) / ({steps})"


_ALIVE: Final = Row(
    "Run status",
    (
        Panel(
            kind="stat",
            title="Last step ago",
            question=(
                "Is the run still making steps? Time since the last step ended on any selected "
                "rank. Red: no step for five minutes; check *Open now*: if one rank is in a "
                "different section, the other ranks wait for it. After the end of a run, the value "
                "rises and disappears within five minutes."
            ),
            queries=(Query(f"time() - max({series(names.LAST_STEP_TIME)})", "last step"),),
            unit="s",
            limits=(60, 300),
            none="No step yet, or no metrics in the last five minutes.",
            link=to("ranks", "Ranks"),
            width=3,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Step",
            question=(
                "How far is the run? Number of the newest training step and, if the program "
                "declares it (`steps(..., total=...)`), the planned number of steps. If the number "
                "does not rise, check *Last step ago*."
            ),
            queries=(
                Query(f"max({series(names.STEP_NUMBER, TRAIN)})", "step"),
                Query(f"max({series(names.STEPS_EXPECTED)})", "planned"),
            ),
            decimals=0,
            none="No training step yet, or no metrics in the last five minutes.",
            link=to("ranks", "Ranks"),
            width=3,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Step time vs. 6 h median",
            question=(
                "Have steps become slower? Mean step time of the last 5 minutes, divided by the "
                "median of the last 6 hours; selected ranks together. Red: at least 30 % slower; "
                "check in *Where a step goes* which category grew, then *Clock* and *Throttled*."
            ),
            queries=(
                Query(
                    f"{_STEP_5M} / quantile_over_time(0.5, ({_STEP_5M})[6h:5m])",
                    "of the 6 h median",
                ),
            ),
            unit="percentunit",
            limits=(1.1, 1.3),
            none="Too few steps in the last five minutes.",
            link=to("gpus", "Throttled GPUs"),
            width=4,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Throughput",
            question=(
                "How fast is the training? Steps per second: mean of the selected ranks, because "
                "each rank makes every step. Samples and tokens per second: sum over the selected "
                "ranks. Lower than before: check *Step time*. To compare runs with different batch "
                "sizes, use samples or tokens."
            ),
            queries=(
                Query(_STEPS, "steps/s"),
                Query(f"sum({rate(names.SAMPLES, TRAIN)})", "samples/s"),
                Query(f"sum({rate(names.TOKENS, TRAIN)})", "tokens/s"),
            ),
            none="No training step ended in this time range.",
            link=to("ranks", "Ranks"),
            width=5,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Data wait",
            question=(
                "How much of a step is spent waiting for data? Data wait as a share of the "
                "training step time, over the selected ranks; concurrent loading is not counted. "
                "Red: more than 30 %; use more DataLoader workers, a larger prefetch_factor or "
                "faster storage before you optimize the model."
            ),
            queries=(Query(data_wait(), "data wait"),),
            unit="percentunit",
            limits=WAIT_LIMITS,
            none=_NO_STEP,
            link=to("host", "CPU and disks"),
            width=3,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Time to finish",
            question=(
                "When will the run finish? Remaining steps x mean time per step in the last 15 "
                "minutes, including validation and checkpoints. Much longer than before: check "
                "*Step time vs. 6 h median*."
            ),
            queries=(Query(_time_left(), "remaining"),),
            unit="s",
            none="The planned number of steps is unknown: steps(..., total=...).",
            link=to("ranks", "Ranks"),
            width=3,
            height=4,
        ),
        LOST,
    ),
)

_GREW: Final = Row(
    "Time per step",
    (
        Panel(
            kind="timeseries",
            title="Step time",
            question=(
                "How long is a step, and does it get slower? Mean, median (p50) and p95 of the "
                "training step time over the selected ranks; 95 % of steps were faster than p95. "
                "p95 far above p50: some steps wait; click a point (exemplar) to open the trace of "
                "a sampled step. All lines rise: check *Where a step goes*."
            ),
            queries=(
                Query(f"histogram_avg(sum({rate(names.STEP_DURATION, TRAIN)}))", "mean"),
                Query(f"histogram_quantile(0.5, sum({rate(names.STEP_DURATION, TRAIN)}))", "p50"),
                Query(
                    f"histogram_quantile(0.95, sum({rate(names.STEP_DURATION, TRAIN)}))",
                    "p95",
                    exemplars=True,
                ),
            ),
            unit="s",
            none=_NO_STEP,
            link=to("ranks", "Ranks"),
            height=9,
        ),
        Panel(
            kind="timeseries",
            title="Where a step goes",
            question=(
                "Which kind of work fills a step? Self time per training step by section category, "
                "mean of the selected ranks, stacked; the sum is the step time. Check the category "
                "that grows. Category *step* is time outside all sections: add spans there."
            ),
            queries=(
                Query(
                    by("sum", (names.SECTION_CATEGORY,), rate(names.SECTION_SELF_TIME, TRAIN))
                    + f" / ignoring ({label(names.SECTION_CATEGORY)}) group_left "
                    + f"sum({rate(names.STEPS, TRAIN)})",
                    shown(names.SECTION_CATEGORY),
                ),
            ),
            unit="s",
            stacked=True,
            none=_NO_STEP,
            link=to("ranks", "Ranks"),
            height=9,
        ),
        Panel(
            kind="bargauge",
            title="Most expensive sections",
            question=(
                "Which sections cost the most time? Self time per training step in the selected "
                "time range, mean of the selected ranks; the 15 largest sections. Start with the "
                "largest: halving a small section gains little."
            ),
            queries=(
                Query(
                    f"topk(15, sum by ({label(names.SECTION_NAME)}) "
                    f"(increase({series(names.SECTION_SELF_TIME, TRAIN)}[$__range])) "
                    f"/ ignoring ({label(names.SECTION_NAME)}) group_left "
                    f"sum(increase({series(names.STEPS, TRAIN)}[$__range])))",
                    shown(names.SECTION_NAME),
                ),
            ),
            unit="s",
            none=_NO_STEP,
            link=to("ranks", "Ranks"),
            width=24,
            height=7,
        ),
    ),
)

_FOUND: Final = Panel(
    kind="timeseries",
    title="Findings",
    question=(
        "Which problems does the run have, and since when? Number of ranks or devices with each "
        "active live finding, by finding and severity. Any line: see the recommended action in the "
        "span *finding* of the run's trace or in `otel-mlperf findings`, which also lists the "
        "findings of the whole run."
    ),
    queries=(
        Query(
            by(
                "count",
                (names.FINDING_ID, names.FINDING_SEVERITY),
                series(names.FINDING),
            ),
            f"{shown(names.FINDING_ID)} ({shown(names.FINDING_SEVERITY)})",
        ),
    ),
    none="No live finding is active.",
    link=to("ranks", "Ranks"),
    decimals=0,
    width=24,
    height=6,
)
_WHO: Final = Row("Ranks and findings", (OPEN_NOW, DATA_WAIT_BY_RANK, _FOUND))

_STEP_TRACES: Final = TraceTable(
    title="Traces of steps",
    question=(
        "What happened in individual steps? Up to 20 sampled training steps of this run in the "
        "selected time range. Sort by duration and click a trace ID to open a slow step. By "
        "default, the first 5 steps, 1 step in 100, and slow and failed steps are sampled."
    ),
    service="$service",
    operation=names.step_span(names.TRAIN),
    tags=f"{names.RUN_ID}=$id",
    link=to("ranks", "Ranks"),
)

DASHBOARD: Final = Dashboard(
    "training-run",
    "Training run",
    "One training run: status, step time, ranks, hardware, requests and learning.",
    (RANK_VARIABLE, TRACES, SERVICE),
    (
        _ALIVE,
        _GREW,
        _WHO,
        Row("Sampled steps", (_STEP_TRACES,)),
        DEVICE,
        SECTION_USE,
        REQUESTS,
        HOST,
        LEARNING,
    ),
)
