"""Terminal lines about the GPU time of steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.quantities import duration, percent
from otel_mlperf.terminal_lines import LABEL, Line, labelled_lines, wrapped

if TYPE_CHECKING:
    from otel_mlperf.analysis.steps.step_shapes import StepOnGpu
    from otel_mlperf.analysis.summary.gpu_use import StepsOnGpu

_BOUND: Final = {"host": "host-bound", "device": "device-bound"}


def gpu_lines(gpu: StepsOnGpu | None, width: int) -> list[Line]:
    """Return the GPU time of a step, its idle part, and which side set the pace."""
    if gpu is None:
        return []
    texts = [f"{duration(gpu.gpu_ns)} a step"]
    if gpu.idle_ns is not None and gpu.idle_share is not None:
        texts.append(f"idle {duration(gpu.idle_ns)} ({percent(gpu.idle_share).strip()})")
    texts.append(_BOUND.get(gpu.paced_by, "neither host nor device set the pace"))
    shares = (("device", gpu.device_share), ("host", gpu.host_share))
    pace = ", ".join(f"{percent(share).strip()} by the {who}" for who, share in shares)
    texts.append(f"paced {pace}")
    return labelled_lines("gpu time", wrapped("", texts, width - LABEL))


def step_gpu_words(gpu: StepOnGpu | None) -> list[str]:
    """Return the text for one step: ``GPU 80.1 ms, idle 12.3 ms, device-bound``."""
    if gpu is None:
        return []
    texts = [f"GPU {duration(gpu.gpu_ns)}"]
    texts += [f"idle {duration(gpu.idle_ns)}"] if gpu.idle_ns is not None else []
    texts += [_BOUND[gpu.paced_by]] if gpu.paced_by else []
    return [", ".join(texts)]
