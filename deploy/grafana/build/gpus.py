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
    "GPU load",
    (
        Panel(
            kind="timeseries",
            title="Utilization",
            question=(
                "Is each GPU busy? Share of time in which a kernel ran, by GPU. Low: check the "
                "data wait of its rank. High does not mean efficient: compare *Power* with its "
                "limit."
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
                "How hard do the GPUs work? Power drawn in watts, by GPU; dashed: the lowest power "
                "limit. Far below the limit at full utilization: kernels are small or wait for "
                "memory. At the limit: clocks fall (*sw_power_cap*), which is normal for large "
                "matrix products."
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
                "How full is each GPU? Memory in use in bytes, by GPU and MIG instance; dashed: "
                "size of the smallest GPU. Near the limit: a larger batch or a longer sequence "
                "runs out of memory."
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
                "How much GPU memory does the run use? Device memory of the training process in "
                "bytes, by GPU; the largest process if ranks share a GPU. Far below *Memory*: "
                "another process uses the same GPU."
            ),
            queries=(each(names.DEVICE_PROCESS_MEMORY),),
            unit="bytes",
            none="Not at this level of readings, or processes are hidden (e.g. in a container).",
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Memory busy",
            question=(
                "Is memory bandwidth the bottleneck? Share of time in which GPU memory was read or "
                "written, by GPU. Near 100 % with low power: fuse kernels or use a smaller data "
                "type."
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
                "Does video decoding limit data loading? Share of time in which the video encoder "
                "or decoder was busy, by GPU. Near 100 %: decode on the CPU as well, or store "
                "decoded frames."
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
                "How busy was the device in profiler windows? Shares of the last window by rank, "
                "of the worst device: *busy* (device busy), *exposed* (communication without "
                "concurrent computation), *operators* (operators running, in windows without "
                "device work), *complete* (records present). Low *busy*: `otel-mlperf kernels` "
                "lists the gaps. High *exposed*: overlap communication with the backward pass. "
                "*complete* below 100 %: `otel-mlperf doctor` lists the missing records."
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
            none="No profiler window ended in this time range.",
            link=RUN,
        ),
    ),
)

_HELD: Final = Row(
    "Clocks and throttling",
    (
        Panel(
            kind="timeseries",
            title="Clock",
            question=(
                "Do the GPUs run at full clock? SM clock divided by the maximum SM clock, by GPU. "
                "One GPU below the others slows down every rank of a synchronous job; *Throttled* "
                "shows the reason."
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
                "Why are GPU clocks throttled? Share of readings in which each throttle reason was "
                "active, by GPU, without *gpu_idle*; no line: not throttled. *hw_thermal_slowdown* "
                "or *hw_power_brake_slowdown*: have cooling and power supply checked. "
                "*sw_power_cap* is normal at full load."
            ),
            queries=(Query(throttled(f",{CHOSEN}"), f"{EACH}: {shown(names.THROTTLE_REASON)}"),),
            unit="percentunit",
            most=1,
            none="No throttling, or no GPU readings.",
            link=(
                "What the reasons mean",
                "https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html",
            ),
        ),
        Panel(
            kind="timeseries",
            title="Time throttled by policy",
            question=(
                "How long were GPU clocks throttled? Share of time in which a policy kept the "
                "clocks below the requested frequency, by GPU and policy, as counted by the "
                "driver; short periods between readings are included. *thermal*: check the "
                "cooling. *power* is normal at full load, *low_utilization* on a GPU with little "
                "work."
            ),
            queries=(
                Query(
                    f"{per_second(names.THROTTLE_TIME, (names.THROTTLE_REASON,))} > 0",
                    f"{EACH}: {shown(names.THROTTLE_REASON)}",
                ),
            ),
            unit="percentunit",
            none="No throttling, not supported by the GPU, or not at this level of readings.",
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Temperature",
            question=(
                "Are the GPUs too hot? Temperature in °C by GPU and sensor; dashed: the lowest "
                "temperature at which clocks are throttled. One GPU hotter than its neighbors: "
                "check its fan, its airflow and dust."
            ),
            queries=(
                Query(
                    by("max", (*DEVICE, names.HW_SENSOR_LOCATION), of(names.HW_TEMPERATURE)),
                    f"{EACH} {shown(names.HW_SENSOR_LOCATION)}",
                ),
                Query(
                    f"min({of(names.HW_TEMPERATURE_LIMIT, where(HW_LIMIT_TYPE='throttled'))})",
                    "throttling starts",
                    dashed=True,
                ),
            ),
            unit="celsius",
            none=NO_GPU,
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Temperature margin",
            question=(
                "How close is thermal throttling? Degrees (°C) left until the clocks are "
                "throttled, by GPU. Red: less than 1 °C left; check the cooling."
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
                "Has a GPU left its fastest state? P-state by GPU: 0 is the fastest, 15 the "
                "slowest. Above 0 under load: a power or temperature limit, or a setting of the "
                "machine."
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
    "The GPUs of a run: load, throttling, PCIe and NVLink, failures.",
    (RANK, HOST, GPU),
    (_WORK, _HELD, LINKS, BROKEN),
)
