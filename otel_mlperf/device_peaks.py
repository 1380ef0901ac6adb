"""Table of peak floating point operations per second by device and number type.

The figures are those for dense matrix products in the vendors' data sheets. Figures that a data
sheet gives with sparsity are halved. The peaks of devices that are not in the table are unknown.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping


class Peak(NamedTuple):
    """Peak operations per second of one device for one number type, such as ``bfloat16``."""

    flops_per_s: float
    type: str
    device: str
    """Name of the device as reported by PyTorch."""
    source: str
    """Title of the data sheet, or ``given`` if the user's program set the peak."""


class Device(NamedTuple):
    """Row of the table, for all devices with the same peaks."""

    pattern: str
    """Regular expression for the device's name as reported by PyTorch."""
    tflops: Mapping[str, float]
    """Peaks in TFLOP/s by number type; ``float16`` and ``bfloat16`` accumulate in float32."""
    source: str
    """Title of the data sheet with these figures; required for each row."""


def _halves(both: float, **more: float) -> dict[str, float]:
    return {"bfloat16": both, "float16": both} | more


_A100: Final = "NVIDIA A100 Tensor Core GPU data sheet"
_H100: Final = "NVIDIA H100 Tensor Core GPU data sheet"
_GH200: Final = "NVIDIA GH200 Grace Hopper Superchip data sheet"
_H200: Final = "NVIDIA H200 Tensor Core GPU data sheet"
_V100: Final = "NVIDIA V100 Tensor Core GPU data sheet"
_CDNA3: Final = "AMD Instinct MI300X Accelerator data sheet"

# The first matching row is used: more specific patterns must come first.
DEVICES: Final = (
    Device(r"\bB200\b", _halves(2250.0), "NVIDIA DGX B200 data sheet"),
    Device(r"\bH200 NVL\b", _halves(835.5, tf32=417.5, float32=60.0), _H200),
    Device(r"\bGH200\b", _halves(989.5, tf32=494.5, float32=67.0), _GH200),
    Device(r"\bH200\b", _halves(989.5, tf32=494.5, float32=67.0), _H200),
    Device(r"\bH100 NVL\b", _halves(835.5, tf32=417.5, float32=60.0), _H100),
    Device(r"\bH100 PCIe\b", _halves(756.5, tf32=378.0, float32=51.0), _H100),
    Device(r"\bH100\b", _halves(989.5, tf32=494.5, float32=67.0), _H100),
    Device(r"\bA100\b", _halves(312.0, tf32=156.0, float32=19.5), _A100),
    Device(r"\bA30\b", _halves(165.0, tf32=82.0, float32=10.3), "NVIDIA A30 data sheet"),
    Device(r"\bA40\b", _halves(149.7, tf32=74.8, float32=37.4), "NVIDIA A40 data sheet"),
    Device(r"\bA10\b", _halves(125.0, tf32=62.5, float32=31.2), "NVIDIA A10 data sheet"),
    Device(r"\bL40S\b", _halves(362.05, tf32=183.0, float32=91.6), "NVIDIA L40S data sheet"),
    Device(r"\bL4\b", _halves(121.0, tf32=60.0, float32=30.3), "NVIDIA L4 data sheet"),
    Device(r"\bV100-SXM", {"float16": 125.0, "float32": 15.7}, _V100),
    Device(r"\bV100-PCIE", {"float16": 112.0, "float32": 14.0}, _V100),
    Device(r"\bT4\b", {"float16": 65.0, "float32": 8.1}, "NVIDIA T4 data sheet"),
    Device(r"\bMI300X\b", _halves(1307.4, tf32=653.7, float32=163.4), _CDNA3),
)


def find_peak(device: str, kind: str) -> Peak | None:
    """Return a device's peak for the number type ``kind``; None if the table has no such peak.

    ``device`` is the name as reported by PyTorch. A MIG instance has no peak, because vendors
    document no peak of a part of a GPU.
    """
    if "MIG" in device:
        return None
    for known in DEVICES:
        if re.search(known.pattern, device):
            tflops = known.tflops.get(kind)
            return None if tflops is None else Peak(tflops * 1e12, kind, device, known.source)
    return None
