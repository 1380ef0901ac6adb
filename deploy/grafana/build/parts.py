"""Which questions do several dashboards ask in the same words?"""

from __future__ import annotations

from typing import Final

from dashboard import to
from panels import Panel, Query
from promql import WINDOW, by, label, rate, series, shown, where

from otel_mlperf import names

TRAIN: Final = where(ML_PHASE=names.TRAIN)
WAITING: Final = where(ML_PHASE=names.TRAIN, SECTION_CATEGORY=names.DATA_LOADING)
EACH_RANK: Final = f"rank {shown(names.RANK)}"
RANK: Final = (names.RANK,)
NO_GPU: Final = "No GPU readings."
WAIT_LIMITS: Final = (0.1, 0.3)


def data_wait(*attributes: str) -> str:
    """The share of the steps' self time that waits for data."""
    waited = by("sum", attributes, rate(names.SECTION_SELF_TIME, WAITING))
    return f"{waited} / {by('sum', attributes, rate(names.SECTION_SELF_TIME, TRAIN))}"


OPEN_NOW: Final = Panel(
    kind="table",
    title="Open now",
    question=(
        "Which section is each rank in, and for how long? The innermost open section of the main "
        "thread and its age, by rank, oldest first. One rank in a different section: the other "
        "ranks wait for it. All ranks in the same section for minutes: check the storage or "
        "network that the section uses. Without a server: `otel-mlperf top`."
    ),
    queries=(
        Query(
            "sort_desc("
            + by(
                "max",
                (names.RANK, names.HOST_NAME, names.SECTION_NAME),
                f"{series(names.OPEN_AGE)} and "
                f"topk by ({label(names.RANK)}) (1, timestamp({series(names.OPEN_AGE)}))",
            )
            + ")",
            f"{EACH_RANK}: {shown(names.SECTION_NAME)}",
        ),
    ),
    unit="s",
    limits=(60, 300),
    none="No open section: the run has ended, or its agent has stopped.",
    link=to("ranks", "Compare the ranks"),
    columns={
        label(names.RANK): "Rank",
        label(names.SECTION_NAME): "Section",
        "Value": "Open for",
        label(names.HOST_NAME): "Host",
    },
)

DATA_WAIT_BY_RANK: Final = Panel(
    kind="timeseries",
    title="Data wait by rank",
    question=(
        "Which rank waits for data? Share of the training step time spent waiting for data, by "
        "rank; concurrent loading is not counted. One rank above the others: its storage, CPU or "
        "DataLoader workers are too slow. All ranks high: use more workers, a larger "
        "prefetch_factor or faster storage. (The step time of a synchronous job is the same on all "
        "ranks, so compare the wait instead.)"
    ),
    queries=(Query(data_wait(names.RANK), EACH_RANK),),
    unit="percentunit",
    limits=WAIT_LIMITS,
    none="No training step ended in this time range.",
    link=to("host", "CPU and disks"),
)

LOST: Final = Panel(
    kind="stat",
    title="Lost telemetry",
    question=(
        "Was telemetry lost? Items (section rows and metric points) lost since the start of the "
        "run, on all ranks: for each signal, the destination with the most losses. Red: items were "
        "lost; *otel_mlperf health* shows the reasons. 0 is also shown if no agent has reported in "
        "the last five minutes."
    ),
    queries=(
        Query(
            f"sum(max by ({label(names.SIGNAL)}) ("
            + by(
                "sum",
                (names.SIGNAL, names.DESTINATION),
                series(names.ITEMS, where(OUTCOME="lost")),
            )
            + ")) or vector(0)",
            "items lost",
        ),
    ),
    limits=(1,),
    decimals=0,
    link=to("health", "otel_mlperf health"),
    width=3,
    height=4,
)


def gpu_clock(chosen: str = "") -> str:
    """The SM clock as a share of its maximum, of each GPU."""
    of_sm = where(CLOCK_DOMAIN="sm") + chosen
    which = (names.RANK, names.HOST_NAME, names.HW_NAME)
    return (
        by("max", which, series(names.CLOCK, of_sm))
        + " / "
        + by("max", which, series(names.CLOCK_LIMIT, of_sm))
    )


def throttled(chosen: str = "") -> str:
    """The share of readings in which a GPU's clocks were held down, by reason; idling is none."""
    why = where(THROTTLE_REASON="!gpu_idle") + chosen
    held = f"avg_over_time({series(names.THROTTLE, why)}[{WINDOW}])"
    which = (names.RANK, names.HOST_NAME, names.HW_NAME, names.THROTTLE_REASON)
    return f"{by('max', which, held)} > 0"
