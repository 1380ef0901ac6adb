"""GPU time of a phase's steps: idle time, and whether the host or the device set the pace."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from otel_mlperf.analysis.steps.step_shapes import WarmUp
    from otel_mlperf.store.table_reader import Store

_ENOUGH = 0.5


class StepsOnGpu(msgspec.Struct, frozen=True, kw_only=True):
    """GPU times of a phase's steps: means of all steps with known times, over all ranks."""

    steps: int
    gpu_ns: float
    """Time from start to end of a step on the device."""
    idle_ns: float | None
    """Part of ``gpu_ns`` outside sections that launch device work; None: no section launches
    any."""
    host_share: float
    """Share of ``gpu_ns`` in which the host set the pace: the device had no other work."""
    device_share: float
    """Share of ``gpu_ns`` in which the device set the pace: it was still busy. For the remaining
    time the pacing side is unknown."""

    @property
    def idle_share(self) -> float | None:
        """Return the idle time as a share of the GPU time; None if the idle time is unknown."""
        return None if self.idle_ns is None else self.idle_ns / self.gpu_ns

    @property
    def paced_by(self) -> str:
        """Return the side that mostly set the pace: ``host``, ``device``, or empty if unknown."""
        if self.host_share > _ENOUGH:
            return "host"
        return "device" if self.device_share > _ENOUGH else ""


def read_steps_on_gpu(store: Store, phase: str, warm_up: WarmUp | None) -> StepsOnGpu | None:
    """Return the GPU times of the phase's steps, or None if they are unknown for all steps."""
    ((count, gpu, idle, of_idle, host, device),) = store.rows(
        "SELECT count(*), sum(gpu_ns), sum(idle_ns), count(idle_ns), sum(host_paced_ns), "
        "sum(device_paced_ns) FROM gpu_steps WHERE phase = $phase AND n >= $first",
        phase=phase,
        first=1 if warm_up else 0,
    )
    if not count or not gpu:
        return None
    return StepsOnGpu(
        steps=count,
        gpu_ns=float(gpu) / count,
        idle_ns=float(idle) / of_idle if of_idle else None,
        host_share=float(host) / float(gpu),
        device_share=float(device) / float(gpu),
    )
