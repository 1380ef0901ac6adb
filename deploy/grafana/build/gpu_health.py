"""Do bytes get through to the GPUs of a run, and is one of them breaking?"""

from __future__ import annotations

from typing import Final

from gpu_parts import CHOSEN, DEVICE, EACH, NOT_OFFERED, RUN, each, increase, of, per_second
from panels import Panel, Query, Row
from parts import NO_GPU, TRAIN
from promql import by, label, rate, shown

from otel_mlperf import names

LINKS: Final = Row(
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
            title="PCIe lanes against their number",
            question=(
                "Is a card seated badly? Lanes in use divided by those that there are. Below 1 "
                "under load: reseat the card or look at the riser. (The generation falls while a "
                "GPU is idle; lanes do not.)"
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
            title="NVLinks up",
            question=(
                "Is an NVLink down? Links that are up. Fewer than on the neighbours: collectives "
                "take the slow way; drain the node."
            ),
            queries=(each(names.NVLINK_ACTIVE),),
            none=NOT_OFFERED,
            link=RUN,
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
            queries=(increase(names.HW_ERRORS, names.ERROR_TYPE),),
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
            queries=(each(names.XID),),
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
            title="Repairs",
            question=(
                "Does a repair wait, or has one failed? 1: it waits for a reset of the GPU; a "
                "failed one means that the GPU is due for exchange."
            ),
            queries=(
                Query(
                    by("max", (*DEVICE, names.REPAIR_TYPE), of(names.REPAIR_PENDING)),
                    f"{EACH} {shown(names.REPAIR_TYPE)} wait",
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
                "Has a GPU stopped answering? Times that it did. Look at the kernel's log of that "
                "node: *fallen off the bus* is XID 79."
            ),
            queries=(increase(names.DEVICE_LOST),),
            decimals=0,
            none=f"None, or: {NO_GPU}",
            link=("XID numbers", "https://docs.nvidia.com/deploy/xid-errors/index.html"),
            width=24,
            height=6,
        ),
    ),
)
