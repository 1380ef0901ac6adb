"""What do the GPUs of a run do, what holds them back, and is one of them breaking?"""

from __future__ import annotations

from typing import Final

from dashboard import GPU, HOST, RANK, Dashboard
from gpu_health import BROKEN, LINKS
from gpu_parts import CHOSEN, DEVICE, EACH, NOT_OFFERED, RUN, each, of, per_second
from panels import Panel, Query, Row
from parts import EACH_RANK, NO_GPU, gpu_clock, throttled
from parts import RANK as RANKS
from promql import by, series, shown, where

from otel_mlperf import names

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
            queries=(each(names.GPU_UTILIZATION, where(HW_GPU_TASK="general")),),
            unit="percentunit",
            most=1,
            none=NO_GPU,
            link=RUN,
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
                each(names.HW_POWER),
                Query(f"min({of(names.POWER_LIMIT)})", "limit", dashed=True),
            ),
            unit="watt",
            none=NO_GPU,
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Memory",
            question=(
                "How full is each GPU? Bytes in use, MIG instances by themselves, and the smallest "
                "limit. Near the limit: the next larger batch or a longer sequence ends the run."
            ),
            queries=(
                each(names.GPU_MEMORY_USAGE),
                Query(
                    f"min({of(names.GPU_MEMORY_LIMIT, where(HW_PARENT=''))})", "limit", dashed=True
                ),
            ),
            unit="bytes",
            none=NO_GPU,
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Memory of the training process",
            question=(
                "Whose is the memory? What the run's own process uses on each device. Much less "
                "than *Memory*: somebody else computes on the same GPU."
            ),
            queries=(each(names.DEVICE_PROCESS_MEMORY),),
            unit="bytes",
            none="The driver does not name processes: as in a container.",
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Memory busy",
            question=(
                "Is memory bandwidth the limit? Share of the time in which the memory was read or "
                "written. Near 1 with low power: fuse kernels, or use a smaller type."
            ),
            queries=(each(names.MEMORY_BUSY),),
            unit="percentunit",
            most=1,
            none=NOT_OFFERED,
            link=RUN,
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
                        (*DEVICE, names.HW_GPU_TASK),
                        of(names.GPU_UTILIZATION, where(HW_GPU_TASK="~encoder|decoder")),
                    ),
                    f"{EACH} {shown(names.HW_GPU_TASK)}",
                ),
            ),
            unit="percentunit",
            most=1,
            none=NOT_OFFERED,
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Profiler windows",
            question=(
                "What did profiler windows see? Share of each in which the device was at work, and "
                "in which it did nothing but communicate; operators where no device was. Not busy: "
                "`otel-mlperf kernels` names the gaps. Exposed: overlap it with the backward pass. "
                "Complete below 1: `otel-mlperf doctor` says which records are missing."
            ),
            queries=(
                Query(by("min", RANKS, series(names.WINDOW_DEVICE_BUSY)), f"{EACH_RANK} busy"),
                Query(
                    by("max", RANKS, series(names.WINDOW_DEVICE_EXPOSED)), f"{EACH_RANK} exposed"
                ),
                Query(by("min", RANKS, series(names.WINDOW_HOST_BUSY)), f"{EACH_RANK} operators"),
                Query(by("min", RANKS, series(names.WINDOW_COMPLETENESS)), f"{EACH_RANK} complete"),
            ),
            unit="percentunit",
            most=1,
            none="No profiler window ended in this time.",
            link=RUN,
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
            queries=(Query(gpu_clock(f",{CHOSEN}"), f"{EACH} (rank {shown(names.RANK)})"),),
            unit="percentunit",
            most=1,
            none=NO_GPU,
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Throttled",
            question=(
                "Why are clocks held down? The share of readings in which each reason held. "
                "Thermal or power brake: call whoever looks after the machine."
            ),
            queries=(Query(throttled(f",{CHOSEN}"), f"{EACH}: {shown(names.THROTTLE_REASON)}"),),
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
                    f"{per_second(names.THROTTLE_TIME, (names.THROTTLE_REASON,))} > 0",
                    f"{EACH}: {shown(names.THROTTLE_REASON)}",
                ),
            ),
            unit="percentunit",
            none=f"No time is lost. {NOT_OFFERED}",
            link=RUN,
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
                    by("max", (*DEVICE, names.HW_SENSOR_LOCATION), of(names.HW_TEMPERATURE)),
                    f"{EACH} {shown(names.HW_SENSOR_LOCATION)}",
                ),
                Query(
                    f"min({of(names.HW_TEMPERATURE_LIMIT, where(HW_LIMIT_TYPE='throttled'))})",
                    "throttled from",
                    dashed=True,
                ),
            ),
            unit="celsius",
            none=NO_GPU,
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Degrees left",
            question=(
                "How far is throttling away? Degrees until clocks fall, where the driver says so. "
                "Red: none left."
            ),
            queries=(each(names.TEMPERATURE_MARGIN),),
            unit="celsius",
            limits=(1, 5),
            falls=True,
            none=NOT_OFFERED,
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Performance state",
            question=(
                "Does a GPU leave its fastest state? 0 is the fastest, 15 the slowest. Above 0 "
                "under load: a limit of power or temperature, or a setting of the machine."
            ),
            queries=(each(names.PERFORMANCE_STATE),),
            none=NOT_OFFERED,
            link=RUN,
        ),
    ),
)

DASHBOARD: Final = Dashboard(
    "gpus",
    "GPUs",
    "The GPUs of a run: do they work, what holds them back, do bytes get through, which breaks?",
    (RANK, HOST, GPU),
    (_WORK, _HELD, LINKS, BROKEN),
)
