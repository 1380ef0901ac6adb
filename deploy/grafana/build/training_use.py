"""Does the hardware hold a training run back: its GPUs, its host?"""

from __future__ import annotations

from typing import Final

from dashboard import to
from panels import Panel, Query, Row
from parts import EACH_RANK, NO_GPU, RANK, gpu_clock, throttled
from promql import WINDOW, by, rate, series, shown, where

from otel_mlperf import names

_EACH_GPU: Final = f"{shown(names.HOST_NAME)} {shown(names.HW_NAME)} (rank {shown(names.RANK)})"

DEVICE: Final = Row(
    "Device",
    (
        Panel(
            kind="timeseries",
            title="Clock",
            question=(
                "Do the GPUs run as fast as they can? SM clock divided by its maximum. A line "
                "below the others: that GPU slows every rank down; *Throttled* says why."
            ),
            queries=(Query(gpu_clock(), _EACH_GPU),),
            unit="percentunit",
            most=1,
            none=NO_GPU,
            link=to("gpus", "GPUs"),
        ),
        Panel(
            kind="timeseries",
            title="Throttled",
            question=(
                "Why are clocks held down? The share of readings in which each reason held; "
                "without a line nothing held them. *hw_thermal_slowdown*, "
                "*hw_power_brake_slowdown*: call whoever looks after the machine. *sw_power_cap* "
                "is usual at full load."
            ),
            queries=(
                Query(
                    throttled(),
                    f"{shown(names.HOST_NAME)} {shown(names.HW_NAME)}: "
                    f"{shown(names.THROTTLE_REASON)}",
                ),
            ),
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
            title="Lowest GPU utilisation by rank",
            question=(
                "Which rank's GPU has nothing to do? The least busy GPU of each rank. Low with a "
                "high data wait: feed it faster. Low on one rank alone: it waits for the others, "
                "or its process hangs. High says only that some kernel ran, not that it ran well."
            ),
            queries=(
                Query(
                    by("min", RANK, series(names.GPU_UTILIZATION, where(HW_GPU_TASK="general"))),
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
            title="GPU memory",
            question=(
                "How near is it to running out of memory? The fullest GPU of each rank and its "
                "limit; and what PyTorch has reserved and given to tensors. Near the limit: a "
                "smaller batch, activation checkpointing, or look for a tensor that is kept. "
                "Reserved far above allocated, with *Allocator retries*: fragmentation "
                "(PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)."
            ),
            queries=(
                Query(
                    by("max", RANK, series(names.GPU_MEMORY_USAGE, where(HW_PARENT=""))),
                    f"{EACH_RANK} used",
                ),
                Query(
                    by("max", (*RANK, names.CUDA_MEMORY_STATE), series(names.CUDA_MEMORY)),
                    f"{EACH_RANK} {shown(names.CUDA_MEMORY_STATE)}",
                ),
                Query(
                    f"min({series(names.GPU_MEMORY_LIMIT, where(HW_PARENT=''))})",
                    "limit",
                    dashed=True,
                ),
            ),
            unit="bytes",
            none=NO_GPU,
            link=to("gpus", "GPUs"),
        ),
        Panel(
            kind="timeseries",
            title="Allocator retries",
            question=(
                "Does PyTorch fight for memory? Allocations that failed until cached memory was "
                "given back, and those that failed for good. Each retry stops the whole device: a "
                "smaller batch, or expandable segments."
            ),
            queries=(
                Query(
                    by("sum", RANK, f"increase({series(names.CUDA_RETRIES)}[{WINDOW}])"),
                    f"{EACH_RANK} retries",
                ),
                Query(
                    by("sum", RANK, f"increase({series(names.CUDA_OOMS)}[{WINDOW}])"),
                    f"{EACH_RANK} out of memory",
                ),
            ),
            limits=(1,),
            decimals=0,
            none="The program uses no CUDA.",
            link=to("gpus", "GPUs"),
            height=6,
        ),
        Panel(
            kind="timeseries",
            title="ECC errors and XIDs",
            question=(
                "Is a GPU breaking? New errors by kind in each interval. *uncorrected* or *xid*: "
                "drain the node and look the number up; a few *corrected* ones are usual."
            ),
            queries=(
                Query(
                    by(
                        "sum",
                        (names.HOST_NAME, names.HW_NAME, names.ERROR_TYPE),
                        f"increase({series(names.HW_ERRORS)}[{WINDOW}])",
                    )
                    + " > 0",
                    f"{shown(names.HOST_NAME)} {shown(names.HW_NAME)}: {shown(names.ERROR_TYPE)}",
                ),
            ),
            decimals=0,
            none=f"No error, or: {NO_GPU}",
            link=("XID numbers", "https://docs.nvidia.com/deploy/xid-errors/index.html"),
            height=6,
        ),
    ),
)

HOST: Final = Row(
    "Host",
    (
        Panel(
            kind="timeseries",
            title="CPU",
            question=(
                "Are processes and their DataLoader workers short of CPU? Cores in use by rank, "
                "what its container may use, and cores' worth of waiting for the quota. At the "
                "limit, or throttled: fewer workers, or a larger quota."
            ),
            queries=(
                Query(by("sum", RANK, rate(names.PROCESS_CPU_TIME)), EACH_RANK),
                Query(
                    by("max", RANK, rate(names.CGROUP_THROTTLED_TIME)) + " > 0",
                    f"{EACH_RANK} throttled",
                ),
                Query(f"min({series(names.CGROUP_CPU_LIMIT)})", "limit", dashed=True),
            ),
            none="No process is read.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Memory of processes",
            question=(
                "Does memory grow without end? Resident memory with the workers, by rank, and what "
                "the container may use. A line that climbs from epoch to epoch is a leak: often a "
                "list of tensors, or a loss kept with its graph."
            ),
            queries=(
                Query(by("sum", RANK, series(names.PROCESS_MEMORY)), EACH_RANK),
                Query(f"min({series(names.CGROUP_MEMORY_LIMIT)})", "limit", dashed=True),
            ),
            unit="bytes",
            none="No process is read.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Pressure",
            question=(
                "Does anything on the host wait for CPU, memory or disks? Share of the last ten "
                "seconds in which at least one task waited. Memory above zero: something swaps. "
                "I/O high with a high data wait: the storage is the limit."
            ),
            queries=(
                Query(
                    by(
                        "max",
                        (names.HOST_NAME, names.PSI_RESOURCE),
                        series(names.PSI_AVERAGE, where(PSI_KIND="some")),
                    ),
                    f"{shown(names.HOST_NAME)}: {shown(names.PSI_RESOURCE)}",
                ),
            ),
            unit="percentunit",
            none="The kernel does not say (no PSI).",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Disk and network",
            question=(
                "Is data still flowing? Bytes per second of all disks and of all interfaces of a "
                "host. A flat ceiling with a high data wait: that is the bottleneck. Nothing at "
                "all: the data is in the page cache, or nobody reads."
            ),
            queries=(
                Query(
                    by("sum", (names.HOST_NAME, names.DISK_DIRECTION), rate(names.DISK_IO)),
                    f"{shown(names.HOST_NAME)} disk {shown(names.DISK_DIRECTION)}",
                ),
                Query(
                    by("sum", (names.HOST_NAME, names.NETWORK_DIRECTION), rate(names.NETWORK_IO)),
                    f"{shown(names.HOST_NAME)} network {shown(names.NETWORK_DIRECTION)}",
                ),
            ),
            unit="Bps",
            none="No disk and no interface is read.",
            link=to("host", "Host"),
        ),
    ),
)
