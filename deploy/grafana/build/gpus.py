"""What do the GPUs of a run do, what holds them back, and is one of them breaking?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dashboard import GPU, HOST, RANK, Dashboard, to
from panels import Panel, Query, Row
from parts import NO_GPU, TRAIN, gpu_clock, throttled
from promql import WINDOW, by, label, rate, series, shown, where

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.names import Metric

_CHOSEN: Final = where(HOST_NAME="~$host", HW_NAME="~$gpu")
_DEVICE: Final = (names.HOST_NAME, names.HW_NAME)
_EACH: Final = f"{shown(names.HOST_NAME)} {shown(names.HW_NAME)}"
_NOT_OFFERED: Final = f"The GPUs do not offer it, or: {NO_GPU}"
_RUN: Final = to("training-run", "Training run")


def _of(metric: Metric, more: str = "") -> str:
    return series(metric, f"{_CHOSEN},{more}" if more else _CHOSEN)


def _each(metric: Metric, more: str = "", legend: str = _EACH) -> Query:
    """One line for each device."""
    return Query(by("max", _DEVICE, _of(metric, more)), legend)


def _per_second(metric: Metric, attributes: tuple[str, ...] = (), more: str = "") -> str:
    chosen = f"{_CHOSEN},{more}" if more else _CHOSEN
    return by("sum", (*_DEVICE, *attributes), rate(metric, chosen))


def _increase(metric: Metric, *attributes: str) -> Query:
    expr = by("sum", (*_DEVICE, *attributes), f"increase({_of(metric)}[{WINDOW}])")
    return Query(f"{expr} > 0", " ".join([_EACH, *map(shown, attributes)]))


_WORK: Final = Row(
    "Do they work?",
    (
        Panel(
            kind="timeseries",
            title="Utilisation",
            question=(
                "Is each GPU busy? Share of the time in which some kernel ran. Low: look at the "
                "data wait of its rank. High says nothing of how well the kernels use it: compare "
                "power with its limit."
            ),
            queries=(_each(names.GPU_UTILIZATION, where(HW_GPU_TASK="general")),),
            unit="percentunit",
            most=1,
            none=NO_GPU,
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Power",
            question=(
                "How hard do they work? Watts drawn, and the lowest limit. Far below the limit at "
                "full utilisation: kernels are small or wait for memory. At the limit: clocks "
                "fall (*sw_power_cap*), which is usual for large matrix products."
            ),
            queries=(
                _each(names.HW_POWER),
                Query(f"min({_of(names.POWER_LIMIT)})", "limit", dashed=True),
            ),
            unit="watt",
            none=NO_GPU,
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Memory",
            question=(
                "How full is each GPU? Bytes in use, MIG instances by themselves, and the smallest "
                "limit. Near the limit: the next larger batch or a longer sequence ends the run."
            ),
            queries=(
                _each(names.GPU_MEMORY_USAGE),
                Query(
                    f"min({_of(names.GPU_MEMORY_LIMIT, where(HW_PARENT=''))})", "limit", dashed=True
                ),
            ),
            unit="bytes",
            none=NO_GPU,
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Memory of the training process",
            question=(
                "Whose is the memory? What the run's own process uses on each device. Much less "
                "than *Memory*: somebody else computes on the same GPU."
            ),
            queries=(_each(names.DEVICE_PROCESS_MEMORY),),
            unit="bytes",
            none="The driver does not name processes: as in a container.",
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Memory busy",
            question=(
                "Is memory bandwidth the limit? Share of the time in which the memory was read or "
                "written. Near 1 with low power: fuse kernels, or use a smaller type."
            ),
            queries=(_each(names.MEMORY_BUSY),),
            unit="percentunit",
            most=1,
            none=_NOT_OFFERED,
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Encoder and decoder",
            question=(
                "Does video decoding hold the data loading up? Busy share of the video engines. "
                "At 1: decode on the CPU as well, or store frames decoded."
            ),
            queries=(
                Query(
                    by(
                        "max",
                        (*_DEVICE, names.HW_GPU_TASK),
                        _of(names.GPU_UTILIZATION, where(HW_GPU_TASK="~encoder|decoder")),
                    ),
                    f"{_EACH} {shown(names.HW_GPU_TASK)}",
                ),
            ),
            unit="percentunit",
            most=1,
            none=_NOT_OFFERED,
            link=_RUN,
        ),
    ),
)

_HELD: Final = Row(
    "What holds them back?",
    (
        Panel(
            kind="timeseries",
            title="Clock",
            question=(
                "Do they run as fast as they can? SM clock divided by its maximum. A line below "
                "the others slows every rank of a synchronous job down."
            ),
            queries=(Query(gpu_clock(f",{_CHOSEN}"), f"{_EACH} (rank {shown(names.RANK)})"),),
            unit="percentunit",
            most=1,
            none=NO_GPU,
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Throttled",
            question=(
                "Why are clocks held down? The share of readings in which each reason held. "
                "Thermal or power brake: call whoever looks after the machine."
            ),
            queries=(Query(throttled(f",{_CHOSEN}"), f"{_EACH}: {shown(names.THROTTLE_REASON)}"),),
            unit="percentunit",
            most=1,
            none=f"No clock is held down, or: {NO_GPU}",
            link=(
                "What the reasons mean",
                "https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html",
            ),
        ),
        Panel(
            kind="timeseries",
            title="Time throttled",
            question=(
                "How much of the time was lost to it? Share of the time in which a policy held the "
                "clocks down, as the driver counts it; short spells between readings are in it."
            ),
            queries=(
                Query(
                    f"{_per_second(names.THROTTLE_TIME, (names.THROTTLE_REASON,))} > 0",
                    f"{_EACH}: {shown(names.THROTTLE_REASON)}",
                ),
            ),
            unit="percentunit",
            none=f"No time is lost. {_NOT_OFFERED}",
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Temperature",
            question=(
                "Are they too hot? Degrees by place, and where clocks begin to be throttled. One "
                "GPU hotter than its neighbours: its fan, its place in the box, or dust."
            ),
            queries=(
                Query(
                    by("max", (*_DEVICE, names.HW_SENSOR_LOCATION), _of(names.HW_TEMPERATURE)),
                    f"{_EACH} {shown(names.HW_SENSOR_LOCATION)}",
                ),
                Query(
                    f"min({_of(names.HW_TEMPERATURE_LIMIT, where(HW_LIMIT_TYPE='throttled'))})",
                    "throttled from",
                    dashed=True,
                ),
            ),
            unit="celsius",
            none=NO_GPU,
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Degrees left",
            question=(
                "How far is throttling away? Degrees until clocks fall, where the driver says so. "
                "Red: none left."
            ),
            queries=(_each(names.TEMPERATURE_MARGIN),),
            unit="celsius",
            limits=(1, 5),
            falls=True,
            none=_NOT_OFFERED,
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Performance state",
            question=(
                "Does a GPU leave its fastest state? 0 is the fastest, 15 the slowest. Above 0 "
                "under load: a limit of power or temperature, or a setting of the machine."
            ),
            queries=(_each(names.PERFORMANCE_STATE),),
            none=_NOT_OFFERED,
            link=_RUN,
        ),
    ),
)

_LINKS: Final = Row(
    "Do bytes get through?",
    (
        Panel(
            kind="timeseries",
            title="PCIe and NVLink",
            question=(
                "How much goes over the links? Bytes per second and direction. PCIe high in every "
                "step: copies from the host; pin memory, copy while computing. NVLink is the "
                "collectives."
            ),
            queries=(
                Query(
                    _per_second(names.GPU_IO, (names.ACCELERATOR_LINK, names.NETWORK_DIRECTION)),
                    f"{_EACH} {shown(names.ACCELERATOR_LINK)} {shown(names.NETWORK_DIRECTION)}",
                ),
            ),
            unit="Bps",
            none=_NOT_OFFERED,
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="PCIe lanes against their number",
            question=(
                "Is a card seated badly? Lanes in use divided by those that there are. Below 1 "
                "under load: reseat the card or look at the riser. (The generation falls while a "
                "GPU is idle; lanes do not.)"
            ),
            queries=(
                Query(
                    f"{by('min', _DEVICE, _of(names.PCIE_WIDTH))} / "
                    f"{by('max', _DEVICE, _of(names.PCIE_WIDTH_LIMIT))}",
                    f"{_EACH} lanes",
                ),
                Query(
                    f"{by('min', _DEVICE, _of(names.PCIE_GENERATION))} / "
                    f"{by('max', _DEVICE, _of(names.PCIE_GENERATION_LIMIT))}",
                    f"{_EACH} generation",
                ),
            ),
            unit="percentunit",
            most=1,
            none=_NOT_OFFERED,
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="NVLinks up",
            question=(
                "Is an NVLink down? Links that are up. Fewer than on the neighbours: collectives "
                "take the slow way; drain the node."
            ),
            queries=(_each(names.NVLINK_ACTIVE),),
            none=_NOT_OFFERED,
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Energy per step",
            question=(
                "What does a step cost? Joules of the run's GPUs divided by its steps. Rising with "
                "an equal step time: the GPUs wait at high clocks."
            ),
            queries=(
                Query(
                    f"sum({rate(names.HW_ENERGY, _CHOSEN)}) / "
                    f"avg({by('sum', (names.RANK,), rate(names.STEPS, TRAIN))})",
                    "joules per step",
                ),
            ),
            unit="joule",
            none=_NOT_OFFERED,
            link=_RUN,
        ),
    ),
)

_BROKEN: Final = Row(
    "Is one breaking?",
    (
        Panel(
            kind="timeseries",
            title="Errors",
            question=(
                "Are there new errors? By kind. *uncorrected* and *xid*: the results may be wrong "
                "or the process dies; drain the node. *corrected* and *pcie_replay*: a few are "
                "usual, a rising rate is not."
            ),
            queries=(_increase(names.HW_ERRORS, names.ERROR_TYPE),),
            decimals=0,
            none=f"No error, or: {NO_GPU}",
            link=("XID numbers", "https://docs.nvidia.com/deploy/xid-errors/index.html"),
        ),
        Panel(
            kind="table",
            title="Last XID",
            question=(
                "Which error came last? Its number, on each GPU that had one since the agent "
                "began. 48, 63, 64, 79, 94, 95: drain the node."
            ),
            queries=(_each(names.XID),),
            none="None came.",
            link=("XID numbers", "https://docs.nvidia.com/deploy/xid-errors/index.html"),
            columns={label(names.HOST_NAME): "Host", label(names.HW_NAME): "GPU", "Value": "XID"},
        ),
        Panel(
            kind="timeseries",
            title="Memory replaced",
            question=(
                "Is memory wearing out? Rows replaced by spare ones and pages taken out of use. "
                "Growing: plan an exchange."
            ),
            queries=(
                Query(
                    by("max", (*_DEVICE, names.ERROR_TYPE), _of(names.ROWS_REMAPPED)),
                    f"{_EACH} rows {shown(names.ERROR_TYPE)}",
                ),
                Query(
                    by("max", (*_DEVICE, names.ERROR_TYPE), _of(names.PAGES_RETIRED)),
                    f"{_EACH} pages {shown(names.ERROR_TYPE)}",
                ),
            ),
            decimals=0,
            none=_NOT_OFFERED,
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Repairs",
            question=(
                "Does a repair wait, or has one failed? 1: it waits for a reset of the GPU; a "
                "failed one means that the GPU is due for exchange."
            ),
            queries=(
                Query(
                    by("max", (*_DEVICE, names.REPAIR_TYPE), _of(names.REPAIR_PENDING)),
                    f"{_EACH} {shown(names.REPAIR_TYPE)} wait",
                ),
                _each(names.REPAIR_FAILED, legend=f"{_EACH} failed"),
            ),
            limits=(1,),
            decimals=0,
            none=_NOT_OFFERED,
            link=_RUN,
        ),
        Panel(
            kind="timeseries",
            title="Lost GPUs",
            question=(
                "Has a GPU stopped answering? Times that it did. Look at the kernel's log of that "
                "node: *fallen off the bus* is XID 79."
            ),
            queries=(_increase(names.DEVICE_LOST),),
            decimals=0,
            none=f"None, or: {NO_GPU}",
            link=("XID numbers", "https://docs.nvidia.com/deploy/xid-errors/index.html"),
            width=24,
            height=6,
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    "gpus",
    "GPUs",
    "The GPUs of a run: do they work, what holds them back, do bytes get through, which breaks?",
    (RANK, HOST, GPU),
    (_WORK, _HELD, _LINKS, _BROKEN),
)
