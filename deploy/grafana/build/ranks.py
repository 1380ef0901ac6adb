"""Which rank is unlike the others?"""

from __future__ import annotations

from typing import Final

from dashboard import RANK, Dashboard, to
from panels import Panel, Query, Row
from parts import DATA_WAIT_BY_RANK, EACH_RANK, NO_GPU, OPEN_NOW, TRAIN
from promql import by, rate, series, where

from otel_mlperf import names

_BY: Final = (names.RANK,)
_NO_STEP: Final = "No training step has ended in this time."
_RUN: Final = to("training-run", "Training run")


def _per_step(chosen: str) -> str:
    """Self time per step of each rank, of the sections that are chosen."""
    time = by("sum", _BY, rate(names.SECTION_SELF_TIME, chosen))
    return f"{time} / {by('sum', _BY, rate(names.STEPS, TRAIN))}"


_OWN: Final = where(
    ML_PHASE=names.TRAIN, SECTION_CATEGORY=f"!~{names.COMMUNICATION}|{names.DATA_LOADING}"
)
_TALK: Final = where(ML_PHASE=names.TRAIN, SECTION_CATEGORY=names.COMMUNICATION)

_SLOW: Final = Row(
    "Who is slow?",
    (
        DATA_WAIT_BY_RANK,
        Panel(
            kind="timeseries",
            title="Own work per step",
            question=(
                "Which rank works longest? Self time per step without data wait and communication. "
                "One line above the others: that rank's share of the work, its CPU or its GPU's "
                "clock. (A framework that waits inside backward puts the wait in here: then the "
                "rank that is *lowest* is the one that the others wait for.)"
            ),
            queries=(Query(_per_step(_OWN), EACH_RANK),),
            unit="s",
            none=_NO_STEP,
            link=to("gpus", "GPUs"),
        ),
        Panel(
            kind="timeseries",
            title="Communication per step",
            question=(
                "Who waits for whom? Self time per step in sections of category communication. The "
                "rank that spends least there is the slow one: it comes last, and nobody is left "
                "to wait for."
            ),
            queries=(Query(_per_step(_TALK), EACH_RANK),),
            unit="s",
            none="No section of category communication is recorded.",
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Step time by rank",
            question=(
                "Do the ranks go in step? In a synchronous job all lines are one, and that is the "
                "slowest rank's time. Lines apart: the ranks do not wait for each other."
            ),
            queries=(
                Query(
                    f"histogram_avg({by('sum', _BY, rate(names.STEP_DURATION, TRAIN))})", EACH_RANK
                ),
            ),
            unit="s",
            none=_NO_STEP,
            link=_RUN,
        ),
    ),
)

_STUCK: Final = Row(
    "Who is stuck?",
    (
        OPEN_NOW,
        Panel(
            kind="bargauge",
            title="Steps behind",
            question=(
                "Who is behind? Steps that each rank has yet to make to be where the first one is. "
                "More than one in a synchronous job: that rank hangs or has gone."
            ),
            queries=(
                Query(
                    f"scalar(max({series(names.STEP_NUMBER, TRAIN, every_rank=True)})) - "
                    + by("max", _BY, series(names.STEP_NUMBER, TRAIN)),
                    EACH_RANK,
                ),
            ),
            limits=(2, 10),
            decimals=0,
            none=_NO_STEP,
            link=_RUN,
        ),
        Panel(
            kind="bargauge",
            title="Last step ago by rank",
            question=(
                "Which rank made no step for long? Red: none for five minutes. Its section is in "
                "*Open now*."
            ),
            queries=(
                Query(
                    f"time() - {by('max', _BY, series(names.LAST_STEP_TIME))}",
                    EACH_RANK,
                ),
            ),
            unit="s",
            limits=(60, 300),
            none="No step yet.",
            link=_RUN,
        ),
        Panel(
            kind="bargauge",
            title="Restarts",
            question=(
                "Which rank was started again? Processes of the rank in the time range shown, but "
                "for the first. Above zero: read its log for why it ended."
            ),
            queries=(
                Query(
                    by("count", _BY, f"last_over_time({series(names.RUN_START_TIME)}[$__range])")
                    + " - 1",
                    EACH_RANK,
                ),
            ),
            limits=(1, 3),
            decimals=0,
            none="No rank of this run has sent anything in this time.",
            link=_RUN,
        ),
    ),
)

_USE: Final = Row(
    "What do they use?",
    (
        Panel(
            kind="timeseries",
            title="CPU by rank",
            question=(
                "Does one rank use more or less CPU than the others? Cores, with its DataLoader "
                "workers. Less: it waits; more: its data or its place on the machine differs."
            ),
            queries=(Query(by("sum", _BY, rate(names.PROCESS_CPU_TIME)), EACH_RANK),),
            none="No process is read.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Memory by rank",
            question=(
                "Does one rank's memory grow? Resident memory with its workers. One line that "
                "climbs alone: rank 0 often keeps metrics or checkpoints that others do not."
            ),
            queries=(Query(by("sum", _BY, series(names.PROCESS_MEMORY)), EACH_RANK),),
            unit="bytes",
            none="No process is read.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="GPU utilisation by rank",
            question=(
                "Which rank's GPU is idle? The least busy GPU of each rank. One below the others: "
                "its data wait, or it sits in a collective that the others have left."
            ),
            queries=(
                Query(
                    by("min", _BY, series(names.GPU_UTILIZATION, where(HW_GPU_TASK="general"))),
                    EACH_RANK,
                ),
            ),
            unit="percentunit",
            most=1,
            none=NO_GPU,
            link=to("gpus", "GPUs"),
        ),
        Panel(
            kind="timeseries",
            title="Samples per second by rank",
            question=(
                "Does each rank get its share of the data? One below the others: uneven shards, or "
                "smaller batches."
            ),
            queries=(Query(by("sum", _BY, rate(names.SAMPLES, TRAIN)), EACH_RANK),),
            none="The number of samples is not known.",
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Involuntary switches",
            question=(
                "Does something take a rank's CPU away? Times per second that a thread with work "
                "left lost its CPU. One rank above the others: it shares its cores with somebody."
            ),
            queries=(
                Query(
                    by(
                        "sum",
                        _BY,
                        rate(names.PROCESS_CONTEXT_SWITCHES, where(CONTEXT_SWITCH="involuntary")),
                    ),
                    EACH_RANK,
                ),
            ),
            none="No process is read.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Slowest step by rank",
            question=(
                "Which rank has the rare slow steps? The 99th percentile of its step time. In a "
                "synchronous job look for who is slow in the traces of those steps: click a point "
                "of *Step time* in *Training run*."
            ),
            queries=(
                Query(
                    f"histogram_quantile(0.99, {by('sum', _BY, rate(names.STEP_DURATION, TRAIN))})",
                    EACH_RANK,
                ),
            ),
            unit="s",
            none=_NO_STEP,
            link=_RUN,
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    "ranks",
    "Ranks",
    "The ranks of a run beside each other: who is slow, who is stuck, who uses what?",
    (RANK,),
    (_SLOW, _STUCK, _USE),
)
