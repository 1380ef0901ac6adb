"""Which rank is unlike the others?"""

from __future__ import annotations

from typing import Final

from dashboard import RANK, Dashboard, to
from panels import Panel, Query, Row
from parts import DATA_WAIT_BY_RANK, EACH_RANK, NO_GPU, OPEN_NOW, TRAIN
from promql import by, rate, series, where

from otel_mlperf import names

_BY: Final = (names.RANK,)
_NO_STEP: Final = "No training step ended in this time range."
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
    "Slow ranks",
    (
        DATA_WAIT_BY_RANK,
        Panel(
            kind="timeseries",
            title="Own work per step",
            question=(
                "Which rank works longest? Self time per training step without data wait and "
                "communication, by rank. One rank above the others: it has more work, a slower CPU "
                "or a lower GPU clock. If the framework waits for other ranks inside backward, "
                "that wait is included: then the *lowest* rank may be the straggler."
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
                "Which rank do the others wait for? Self time per training step in sections of "
                "category communication, by rank. The rank with the lowest time is the straggler: "
                "it arrives last and does not wait."
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
                "Are the ranks synchronized? Mean training step time, by rank. In a synchronous "
                "job all lines coincide, at the time of the slowest rank. Different lines: the "
                "ranks do not wait for each other."
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
    "Stuck ranks",
    (
        OPEN_NOW,
        Panel(
            kind="bargauge",
            title="Steps behind",
            question=(
                "Is a rank behind? Number of steps between the first of all ranks and each "
                "selected rank. More than one in a synchronous job: the rank hangs or has stopped."
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
                "Which rank makes no steps? Time since the last step ended, by rank. Red: no step "
                "for five minutes; *Open now* shows the section that the rank is in."
            ),
            queries=(
                Query(
                    f"time() - {by('max', _BY, series(names.LAST_STEP_TIME))}",
                    EACH_RANK,
                ),
            ),
            unit="s",
            limits=(60, 300),
            none="No step yet, or no metrics in the last five minutes.",
            link=_RUN,
        ),
        Panel(
            kind="bargauge",
            title="Restarts",
            question=(
                "Was a rank restarted? Number of processes of each rank in the selected time "
                "range, minus one. Above zero: check the rank's log for the reason."
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
            none="No rank sent metrics in this time range.",
            link=_RUN,
        ),
    ),
)

_USE: Final = Row(
    "Resource use by rank",
    (
        Panel(
            kind="timeseries",
            title="CPU by rank",
            question=(
                "Does a rank use more or less CPU than the others? CPU cores in use by rank, "
                "DataLoader workers included. Less: the rank waits. More: its data or its "
                "placement on the host differs."
            ),
            queries=(Query(by("sum", _BY, rate(names.PROCESS_CPU_TIME)), EACH_RANK),),
            none="No process readings.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Memory by rank",
            question=(
                "Does the memory of one rank grow? Resident memory in bytes by rank, DataLoader "
                "workers included. One line rises alone: often rank 0, which collects metrics or "
                "checkpoints."
            ),
            queries=(Query(by("sum", _BY, series(names.PROCESS_MEMORY)), EACH_RANK),),
            unit="bytes",
            none="No process readings.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="GPU utilization by rank",
            question=(
                "Which rank's GPU is idle? Share of time in which a kernel ran: the least busy GPU "
                "of each rank. One rank below the others: check its data wait and CPU. An NCCL "
                "kernel that waits for other ranks counts as busy."
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
                "Does each rank process its share of the data? Training samples per second, by "
                "rank. One rank below the others: uneven shards or smaller batches."
            ),
            queries=(Query(by("sum", _BY, rate(names.SAMPLES, TRAIN)), EACH_RANK),),
            none="The number of samples is unknown.",
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Involuntary context switches",
            question=(
                "Do other processes take CPU from a rank? Involuntary context switches per second "
                "by rank, DataLoader workers included: a thread with work left lost its CPU. One "
                "rank above the others: it shares its cores with other processes."
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
            none="No process readings, or not at this level of readings.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="p99 step time by rank",
            question=(
                "Which rank has rare slow steps? p99 of the training step time, by rank: 99 % of "
                "steps were faster. One rank above the others, or all in a synchronous job: click "
                "a point of *Step time* in *Training run* to see in the trace which rank is slow."
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
    "The ranks of a run: slow ranks, stuck ranks, and the resources that each rank uses.",
    (RANK,),
    (_SLOW, _STUCK, _USE),
)
