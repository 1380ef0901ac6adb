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

_NO_STEP: Final = "No training step has ended in this time."
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
    "Is it alive?",
    (
        Panel(
            kind="stat",
            title="Last step ago",
            question=(
                "Is the run still making steps? Red: none for five minutes. Look at *Open now* for "
                "the section that every rank is in; one rank in another section than the others is "
                "the one that they wait for. A finished run turns red too: look whether it is "
                "meant to be over."
            ),
            queries=(Query(f"time() - max({series(names.LAST_STEP_TIME)})", "last step"),),
            unit="s",
            limits=(60, 300),
            none="No step yet.",
            link=to("ranks", "Which rank"),
            width=3,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Step",
            question=(
                "How far is it? The number of the newest training step and, where the run says so "
                "(`steps(..., total=...)`), of how many."
            ),
            queries=(
                Query(f"max({series(names.STEP_NUMBER, TRAIN)})", "step"),
                Query(f"max({series(names.STEPS_EXPECTED)})", "of"),
            ),
            decimals=0,
            none="The run does not say.",
            link=to("ranks", "Which rank is behind"),
            width=3,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Step time against its normal",
            question=(
                "Is it slower than it used to be? The mean step of the last five minutes divided "
                "by the median of the last six hours. Red: 30 % slower. Look at *Where a step "
                "goes* for the kind of work that grew, then at *Clock* and *Throttled*."
            ),
            queries=(
                Query(f"{_STEP_5M} / quantile_over_time(0.5, ({_STEP_5M})[6h:5m])", "of normal"),
            ),
            unit="percentunit",
            limits=(1.1, 1.3),
            none="The run is too young.",
            link=to("gpus", "Throttled GPUs"),
            width=4,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Throughput",
            question=(
                "How fast does it train now? Steps are the mean of the ranks, since each of them "
                "makes every step; samples and tokens are of all chosen ranks together. Compare "
                "runs by these when batch sizes differ."
            ),
            queries=(
                Query(_STEPS, "steps/s"),
                Query(f"sum({rate(names.SAMPLES, TRAIN)})", "samples/s"),
                Query(f"sum({rate(names.TOKENS, TRAIN)})", "tokens/s"),
            ),
            none="Not known.",
            link=to("ranks", "By rank"),
            width=5,
            height=4,
        ),
        Panel(
            kind="stat",
            title="Data wait",
            question=(
                "Which part of a step waits for data? What ran beside the step is not in it. Red: "
                "more than 30 %. Give the DataLoader more workers, larger prefetch or faster "
                "storage before touching the model."
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
                "When will it be over? The steps that are left times what a step took in the last "
                "15 minutes, validation and checkpoints included. Twice what it was: look at *Step "
                "time against its normal*."
            ),
            queries=(Query(_time_left(), "left"),),
            unit="s",
            none="The run does not say how many steps it plans: steps(..., total=...).",
            link=to("ranks", "By rank"),
            width=3,
            height=4,
        ),
        LOST,
    ),
)

_GREW: Final = Row(
    "What grew?",
    (
        Panel(
            kind="timeseries",
            title="Step time",
            question=(
                "How long does a step take, and does it get slower? A p95 far above the median: "
                "some steps wait for something; click a point (exemplar) to open the trace of such "
                "a step. Everything rising together: look at *Where a step goes*."
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
                "Which kind of work fills a step? Seconds of self time per step and category, on "
                "top of each other; together they are the step. The layer that grows is the one to "
                "look into. Category step is what no section covers: put a span around it."
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
                "Which section costs most, over the time range shown? Mean self time per step, the "
                "fifteen largest. Begin at the top: halving a small one changes nothing."
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
        "What is wrong, since when? For how many ranks or devices each finding holds, of those "
        "judged while the run goes on. What to do is in the span *finding* of the run's trace, and "
        "in `otel-mlperf findings`, which also has those of the whole run."
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
    none="Nothing that is judged live was found.",
    link=to("ranks", "Ranks"),
    decimals=0,
    width=24,
    height=6,
)
_WHO: Final = Row("Who?", (OPEN_NOW, DATA_WAIT_BY_RANK, _FOUND))

_STEP_TRACES: Final = TraceTable(
    title="Traces of steps",
    question=(
        "What happened in single steps? The newest sampled steps of this run in the time range, "
        "sorted by any column; click a trace id to open it. The first steps, slow ones and one of "
        "every hundred are sampled."
    ),
    service="$service",
    operation=names.step_span(names.TRAIN),
    tags=f"{names.RUN_ID}=$id",
    link=to("ranks", "Ranks"),
)

DASHBOARD: Final = Dashboard(
    "training-run",
    "Training run",
    "One training run: is it alive, what grew, who is slow, and what does it learn?",
    (RANK_VARIABLE, TRACES, SERVICE),
    (
        _ALIVE,
        _GREW,
        _WHO,
        Row("Which steps?", (_STEP_TRACES,)),
        DEVICE,
        SECTION_USE,
        REQUESTS,
        HOST,
        LEARNING,
    ),
)
