"""Do bytes get through to the GPUs of a run, and is one of them breaking?"""

from __future__ import annotations

from typing import Final

from gpu_parts import CHOSEN, DEVICE, EACH, NOT_OFFERED, RUN, each, increase, of, per_second
from panels import Panel, Query, Row
from parts import TRAIN
from promql import by, label, rate, shown

from otel_mlperf import names

LINKS: Final = Row(
    "Links and energy",
    (
        Panel(
            kind="timeseries",
            title="PCIe and NVLink traffic",
            question=(
                "How much data do the GPUs transfer? Bytes per second by GPU, link and direction. "
                "High PCIe traffic in every step: copies from the host; pin memory and copy during "
                "computation. NVLink traffic is mostly collectives."
            ),
            queries=(
                Query(
                    per_second(names.GPU_IO, (names.ACCELERATOR_LINK, names.NETWORK_DIRECTION)),
                    f"{EACH} {shown(names.ACCELERATOR_LINK)} {shown(names.NETWORK_DIRECTION)}",
                ),
            ),
            unit="Bps",
            none=NOT_OFFERED,
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="PCIe lanes and generation",
            question=(
                "Does a PCIe link run below its maximum? Lanes and generation in use, each divided "
                "by its maximum, by GPU. *lanes* below 100 % under load: reseat the card or check "
                "the riser. *generation* below 100 % is normal while a GPU is idle."
            ),
            queries=(
                Query(
                    f"{by('min', DEVICE, of(names.PCIE_WIDTH))} / "
                    f"{by('max', DEVICE, of(names.PCIE_WIDTH_LIMIT))}",
                    f"{EACH} lanes",
                ),
                Query(
                    f"{by('min', DEVICE, of(names.PCIE_GENERATION))} / "
                    f"{by('max', DEVICE, of(names.PCIE_GENERATION_LIMIT))}",
                    f"{EACH} generation",
                ),
            ),
            unit="percentunit",
            most=1,
            none=NOT_OFFERED,
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Active NVLinks",
            question=(
                "Is an NVLink down? Number of active NVLinks, by GPU. Fewer than on other GPUs of "
                "the same kind: collectives take a slower path; drain the node."
            ),
            queries=(each(names.NVLINK_ACTIVE),),
            none=NOT_OFFERED,
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Energy per step",
            question=(
                "How much energy does a step use? Energy of all selected GPUs in joules per "
                "training step; with all ranks selected, unused GPUs of the hosts are included. "
                "Rising at a constant step time: mean power has risen; check *Power*."
            ),
            queries=(
                Query(
                    f"sum({rate(names.HW_ENERGY, CHOSEN)}) / "
                    f"avg({by('sum', (names.RANK,), rate(names.STEPS, TRAIN))})",
                    "joules per step",
                ),
            ),
            unit="joule",
            none=NOT_OFFERED,
            link=RUN,
        ),
    ),
)

BROKEN: Final = Row(
    "GPU failures",
    (
        Panel(
            kind="timeseries",
            title="GPU errors",
            question=(
                "Are there new GPU errors? New errors per interval, by GPU and type. "
                "*uncorrected*: results may be wrong; drain the node. *xid*: look up the number in "
                "*Last XID*. *corrected* and *pcie_replay*: a few are normal, a rising rate is "
                "not."
            ),
            queries=(increase(names.HW_ERRORS, names.ERROR_TYPE),),
            decimals=0,
            none="No error, or no GPU readings.",
            link=("XID numbers", "https://docs.nvidia.com/deploy/xid-errors/index.html"),
        ),
        Panel(
            kind="table",
            title="Last XID",
            question=(
                "Which XID error came last? Number of the last XID error since the agent started, "
                "by GPU. 48, 63, 64, 79, 94, 95: the GPU needs a reset or replacement; drain the "
                "node. 13, 31: mostly an error of the program."
            ),
            queries=(each(names.XID),),
            none="No XID error since the agent started.",
            link=("XID numbers", "https://docs.nvidia.com/deploy/xid-errors/index.html"),
            columns={label(names.HOST_NAME): "Host", label(names.HW_NAME): "GPU", "Value": "XID"},
        ),
        Panel(
            kind="timeseries",
            title="Remapped memory",
            question=(
                "Is GPU memory wearing out? Number of memory rows replaced by spare rows, and of "
                "retired pages, by GPU and error type. Rising: plan to replace the GPU."
            ),
            queries=(
                Query(
                    by("max", (*DEVICE, names.ERROR_TYPE), of(names.ROWS_REMAPPED)),
                    f"{EACH} rows {shown(names.ERROR_TYPE)}",
                ),
                Query(
                    by("max", (*DEVICE, names.ERROR_TYPE), of(names.PAGES_RETIRED)),
                    f"{EACH} pages {shown(names.ERROR_TYPE)}",
                ),
            ),
            decimals=0,
            none=NOT_OFFERED,
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Memory repairs",
            question=(
                "Is a memory repair pending, or has one failed? 1 if pending or failed, else 0, by "
                "GPU. *pending*: reset the GPU. *failed*: replace the GPU."
            ),
            queries=(
                Query(
                    by("max", (*DEVICE, names.REPAIR_TYPE), of(names.REPAIR_PENDING)),
                    f"{EACH} {shown(names.REPAIR_TYPE)} pending",
                ),
                each(names.REPAIR_FAILED, legend=f"{EACH} failed"),
            ),
            limits=(1,),
            decimals=0,
            none=NOT_OFFERED,
            link=RUN,
        ),
        Panel(
            kind="timeseries",
            title="Lost GPUs",
            question=(
                "Has a GPU stopped responding? Losses per interval, by GPU: off the bus, reset "
                "required, or no response before the timeout. Above zero: check the kernel log of "
                "that node; *fallen off the bus* is XID 79."
            ),
            queries=(increase(names.DEVICE_LOST),),
            decimals=0,
            none="No lost GPU, or no GPU readings.",
            link=("XID numbers", "https://docs.nvidia.com/deploy/xid-errors/index.html"),
            width=24,
            height=6,
        ),
    ),
)
