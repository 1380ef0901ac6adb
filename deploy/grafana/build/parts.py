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
NO_GPU: Final = "No GPU of this run is read."
WAIT_LIMITS: Final = (0.1, 0.3)


def data_wait(*attributes: str) -> str:
    """The share of the steps' self time that waits for data."""
    waited = by("sum", attributes, rate(names.SECTION_SELF_TIME, WAITING))
    return f"{waited} / {by('sum', attributes, rate(names.SECTION_SELF_TIME, TRAIN))}"


OPEN_NOW: Final = Panel(
    kind="table",
    title="Open now",
    question=(
        "What is every rank doing right now, and since when? The innermost section that is open in "
        "its main thread, the oldest first. One rank in another section than all others: the "
        "others wait for it. All in the same one for minutes: look at the storage or the network "
        "that it needs; `otel-mlperf top` shows the same without a server."
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
    none="Nothing is open: the run has ended, or its agent has gone.",
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
        "Which rank waits for its data? The step time of a synchronous job is the same on all "
        "ranks, so it is never compared; this is. One line above the others: that rank's storage, "
        "CPU or DataLoader workers do not keep up. All of them high: more workers, larger prefetch "
        "or faster storage for everyone."
    ),
    queries=(Query(data_wait(names.RANK), EACH_RANK),),
    unit="percentunit",
    limits=WAIT_LIMITS,
    none="No training step has ended in this time.",
    link=to("host", "CPU and disks"),
)

LOST: Final = Panel(
    kind="stat",
    title="Lost telemetry",
    question=(
        "Can these dashboards be believed? Red: items were lost; *otel_mlperf health* names the "
        "reason. Zero means that every item is delivered, or counted as left out on purpose. An "
        "item that is lost on the way to two places counts once, and what one node's agent counts "
        "is of all its ranks: the choice of ranks changes nothing here."
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
    link=to("health", "Why"),
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
