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
    "GPUs",
    (
        Panel(
            kind="timeseries",
            title="Clock",
            question=(
                "Do the GPUs run at full clock? SM clock divided by the maximum SM clock, by GPU. "
                "One GPU below the others slows down every rank of a synchronous job; *Throttled* "
                "shows the reason."
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
                "Why are GPU clocks throttled? Share of readings in which each throttle reason was "
                "active, by GPU, without *gpu_idle*; no line: not throttled. *hw_thermal_slowdown* "
                "or *hw_power_brake_slowdown*: have cooling and power supply checked. "
                "*sw_power_cap* is normal at full load."
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
            none="No throttling, or no GPU readings.",
            link=(
                "What the reasons mean",
                "https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html",
            ),
        ),
        Panel(
            kind="timeseries",
            title="Lowest GPU utilization by rank",
            question=(
                "Which rank's GPU is idle? Share of time in which a kernel ran: the least busy GPU "
                "of each rank. Low with a high data wait: load data faster. Low on one rank only: "
                "the host delays that rank, or its process hangs. High does not mean efficient: "
                "any running kernel counts, also an NCCL kernel that waits for other ranks."
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
                "How close is GPU memory to its limit? Bytes by rank: memory in use on the fullest "
                "GPU, and memory reserved and allocated by PyTorch; dashed: size of the smallest "
                "GPU. Near the limit: use a smaller batch or activation checkpointing, or look for "
                "a leaked tensor. Reserved far above allocated, with *Allocator retries*: "
                "fragmentation (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)."
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
                "Does PyTorch run out of GPU memory? Allocations per interval, by rank: *retries* "
                "succeeded only after cached memory was released; *out of memory* failed. Each "
                "retry synchronizes the device: use a smaller batch or expandable segments."
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
            none="No readings of PyTorch's CUDA allocator.",
            link=to("gpus", "GPUs"),
            height=6,
        ),
        Panel(
            kind="timeseries",
            title="ECC errors and XIDs",
            question=(
                "Is a GPU failing? New errors per interval, by GPU and type (ECC, XID, PCIe, "
                "NVLink). *uncorrected*: drain the node. *xid*: look up the number; 13 and 31 are "
                "mostly errors of the program. A few *corrected* errors are normal."
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
            none="No error, or no GPU readings.",
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
                "Are the processes short of CPU? CPU cores by rank: in use, DataLoader workers "
                "included, and withheld by the CPU quota (*throttled*); dashed: the lowest CPU "
                "limit. At the limit or throttled: use fewer workers or a larger quota."
            ),
            queries=(
                Query(by("sum", RANK, rate(names.PROCESS_CPU_TIME)), EACH_RANK),
                Query(
                    by("max", RANK, rate(names.CGROUP_THROTTLED_TIME)) + " > 0",
                    f"{EACH_RANK} throttled",
                ),
                Query(f"min({series(names.CGROUP_CPU_LIMIT)})", "limit", dashed=True),
            ),
            none="No process readings.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Memory of processes",
            question=(
                "Does a process leak memory? Resident memory by rank in bytes, DataLoader workers "
                "included; dashed: the lowest memory limit. A line that rises with every epoch is "
                "a leak: often a list of tensors, or a loss stored with its autograd graph."
            ),
            queries=(
                Query(by("sum", RANK, series(names.PROCESS_MEMORY)), EACH_RANK),
                Query(f"min({series(names.CGROUP_MEMORY_LIMIT)})", "limit", dashed=True),
            ),
            unit="bytes",
            none="No process readings.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Pressure",
            question=(
                "Do tasks wait for CPU, memory or I/O? Share of the last 10 seconds in which at "
                "least one task waited (PSI *some*), by host and resource. Memory above zero: the "
                "host swaps or reclaims memory. I/O high with a high data wait: storage is the "
                "bottleneck."
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
            none="No host readings, or the kernel has no PSI.",
            link=to("host", "Host"),
        ),
        Panel(
            kind="timeseries",
            title="Disk and network",
            question=(
                "Does data still arrive? Bytes per second by host and direction: all disks, and "
                "all interfaces except loopback. A constant maximum with a high data wait: that "
                "disk or network is the bottleneck. Zero: data comes from the page cache, or "
                "nothing is read."
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
            none="No host readings.",
            link=to("host", "Host"),
        ),
    ),
)
