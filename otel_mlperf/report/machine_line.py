"""Lines about a run's machines and lost devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.quantities import duration, figures, percent, plural, size
from otel_mlperf.terminal_lines import LABEL, Line, labelled_lines, short, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.analysis.summary.summary_shapes import GpuUse, MachineUse, ProcessUse, Summary

_GIB: Final = 2**30
_MOST_LOSSES: Final = 3


def machine_lines(summary: Summary, width: int) -> list[Line]:
    """Return the use of the machines, and the devices that stopped responding."""
    told = _machine(summary.machine) if summary.machine else []
    lines = wrapped("", told, width - LABEL, " · ") if told else []
    process = labelled_lines("process", _process(summary.process) if summary.process else [])
    return [*labelled_lines("machine", lines), *process, *_losses(summary, width)]


def _process(use: ProcessUse) -> list[str]:
    """Return ``0.30 CPUs, peak memory 412 MiB, workers 1.4 GiB, CUDA 61.0 GiB``."""
    told = f"{figures(use.cpus)} CPUs, peak memory {size(use.memory_peak_bytes, 1024)}"
    if use.workers_peak_bytes is not None:
        told += f", workers {size(use.workers_peak_bytes, 1024)}"
    if use.cuda_peak_bytes is not None:
        told += f", CUDA {size(use.cuda_peak_bytes, 1024)}"
    return [told]


def _losses(summary: Summary, width: int) -> list[Line]:
    """Return the devices that stopped responding."""
    lines = []
    for loss in summary.losses[:_MOST_LOSSES]:
        rank = f" of rank {loss.rank}" if summary.ranks > 1 else ""
        often = f", {loss.count} times, first" if loss.count > 1 else ""
        back = "still gone"
        if loss.absent_ns is not None:
            back = f"back after {duration(loss.absent_ns)}"
        line = f"{loss.name}{rank}{often} after {duration(loss.after_ns)}, {back}: {loss.text}"
        lines.append(short(line, width - LABEL))
    if (others := len(summary.losses) - _MOST_LOSSES) > 0:
        lines.append(f"{plural(others, 'more device')}: summary --json has all of them")
    return labelled_lines("lost", lines, "red")


def _machine(machine: MachineUse) -> list[str]:
    """Return ``cpu 41 % of 8, 12.3 of 64.0 GiB`` and ``gpu 0: 87 %, 61.0 GiB, 62 °C``.

    With several GPUs the range of their shares is shown, and the maximum of memory and temperature.
    """
    # The host first: a run without a GPU has nothing else.
    return [part for part in (_host(machine), _gpus(machine.gpus)) if part]


def _host(machine: MachineUse) -> str:
    words = []
    if machine.cpu_share is not None and machine.cpus is not None:
        words.append(f"cpu {percent(machine.cpu_share)} of {machine.cpus:g}")
    if machine.memory_bytes is not None and machine.memory_limit_bytes is not None:
        used, limit = machine.memory_bytes / _GIB, machine.memory_limit_bytes / _GIB
        words.append(f"{figures(used)} of {figures(limit)} GiB")
    return ", ".join(words)


def _gpus(gpus: list[GpuUse]) -> str:
    shares = _known(gpus, lambda gpu: gpu.busy_share)
    memory = _known(gpus, lambda gpu: gpu.memory_bytes)
    heat = _known(gpus, lambda gpu: gpu.temperature_c)
    most = "≤ " if len(gpus) > 1 else ""
    words = []
    if shares:
        least = f"{shares[0] * 100:.0f}–" if round(100 * (shares[-1] - shares[0])) else ""
        words.append(f"{least}{percent(shares[-1])}")
    words += [f"{most}{figures(memory[-1] / _GIB)} GiB"] if memory else []
    words += [f"{most}{heat[-1]:.0f} °C"] if heat else []
    which = f"{len(gpus)} gpus" if len(gpus) > 1 else "".join(f"gpu {gpu.name[3:]}" for gpu in gpus)
    return f"{which}: {', '.join(words)}" if words else ""


def _known(gpus: list[GpuUse], value: Callable[[GpuUse], float | None]) -> list[float]:
    return sorted(known for gpu in gpus if (known := value(gpu)) is not None)
