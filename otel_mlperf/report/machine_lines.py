"""Summary lines on the load of machines, the GPU time of steps, and the work of models in FLOP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.quantities import duration, figures, percent, plural, size
from otel_mlperf.terminal_lines import LABEL, Line, labelled_lines, short, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.analysis.steps.step_shapes import StepOnGpu
    from otel_mlperf.analysis.summary.gpu_use import StepsOnGpu
    from otel_mlperf.analysis.summary.summary_shapes import GpuUse, MachineUse, ProcessUse, Summary
    from otel_mlperf.analysis.summary.work_figures import WorkFigures

_GIB: Final = 2**30
_MAX_LOSSES: Final = 3


def machine_lines(summary: Summary, width: int) -> list[Line]:
    """Return lines on the load of machines and processes, and on devices that were lost."""
    texts = _machine(summary.machine) if summary.machine else []
    lines = wrapped("", texts, width - LABEL, " · ") if texts else []
    process = labelled_lines("process", _process(summary.process) if summary.process else [])
    return [*labelled_lines("machine", lines), *process, *_losses(summary, width)]


def _process(use: ProcessUse) -> list[str]:
    """Return ``0.30 CPUs, peak memory 412 MiB, workers 1.4 GiB in total, CUDA 61.0 GiB``."""
    usage = f"{figures(use.cpus)} CPUs, peak memory {size(use.memory_peak_bytes, 1024)}"
    if use.workers_peak_bytes is not None:
        usage += f", workers {size(use.workers_peak_bytes, 1024)} in total"
    if use.cuda_peak_bytes is not None:
        usage += f", CUDA {size(use.cuda_peak_bytes, 1024)}"
    return [usage]


def _losses(summary: Summary, width: int) -> list[Line]:
    lines = []
    for loss in summary.losses[:_MAX_LOSSES]:
        rank = f" of rank {loss.rank}" if summary.ranks > 1 else ""
        often = f", {loss.count} times, first" if loss.count > 1 else ""
        back = "not back yet"
        if loss.absent_ns is not None:
            back = f"back after {duration(loss.absent_ns)}"
        line = f"{loss.name}{rank}{often} after {duration(loss.after_ns)}, {back}: {loss.text}"
        lines.append(short(line, width - LABEL))
    if (omitted := len(summary.losses) - _MAX_LOSSES) > 0:
        lines.append(f"{plural(omitted, 'more device')}: summary --json contains all")
    return labelled_lines("lost", lines, "red")


def _machine(machine: MachineUse) -> list[str]:
    """Return ``CPU 41 % of 8, memory 12.3 of 64.0 GiB`` and ``GPU 0: 87 %, 61.0 GiB, 62 °C``.

    Several GPUs share one text, with the range of their busy shares and the maximum of their memory
    and temperature.
    """
    # The host comes first, since a run without GPUs has only the host's figures.
    return [part for part in (_host(machine), _gpus(machine.gpus)) if part]


def _host(machine: MachineUse) -> str:
    readings = []
    if machine.cpu_share is not None and machine.cpus is not None:
        readings.append(f"CPU {percent(machine.cpu_share)} of {machine.cpus:g}")
    if machine.memory_bytes is not None and machine.memory_limit_bytes is not None:
        used, limit = machine.memory_bytes / _GIB, machine.memory_limit_bytes / _GIB
        readings.append(f"memory {figures(used)} of {figures(limit)} GiB")
    return ", ".join(readings)


def _gpus(gpus: list[GpuUse]) -> str:
    shares = _known(gpus, lambda gpu: gpu.busy_share)
    memory = _known(gpus, lambda gpu: gpu.memory_bytes)
    heat = _known(gpus, lambda gpu: gpu.temperature_c)
    at_most = "≤ " if len(gpus) > 1 else ""
    readings = []
    if shares:
        lowest = f"{shares[0] * 100:.0f}–" if round(100 * (shares[-1] - shares[0])) else ""
        readings.append(f"{lowest}{percent(shares[-1])}")
    readings += [f"{at_most}{figures(memory[-1] / _GIB)} GiB"] if memory else []
    readings += [f"{at_most}{heat[-1]:.0f} °C"] if heat else []
    which = f"{len(gpus)} GPUs" if len(gpus) > 1 else "".join(f"GPU {gpu.name[3:]}" for gpu in gpus)
    return f"{which}: {', '.join(readings)}" if readings else ""


def _known(gpus: list[GpuUse], value: Callable[[GpuUse], float | None]) -> list[float]:
    return sorted(known for gpu in gpus if (known := value(gpu)) is not None)


_BOUND: Final = {"host": "host-bound", "device": "device-bound"}


def gpu_lines(gpu: StepsOnGpu | None, width: int) -> list[Line]:
    """Return lines on a step's GPU time, GPU idle time and pace; empty if ``gpu`` is None."""
    if gpu is None:
        return []
    texts = [f"{duration(gpu.gpu_ns)} per step"]
    if gpu.idle_ns is not None and gpu.idle_share is not None:
        texts.append(f"idle {duration(gpu.idle_ns)} ({percent(gpu.idle_share).strip()})")
    texts.append(_BOUND.get(gpu.paced_by, "neither host nor device set the pace"))
    shares = (("device", gpu.device_share), ("host", gpu.host_share))
    pace = ", ".join(f"{percent(share).strip()} by the {who}" for who, share in shares)
    texts.append(f"paced {pace}")
    return labelled_lines("gpu time", wrapped("", texts, width - LABEL))


def step_gpu_texts(gpu: StepOnGpu | None) -> list[str]:
    """Return ``GPU 80.1 ms, idle 12.3 ms, device-bound`` in a list; empty if ``gpu`` is None."""
    if gpu is None:
        return []
    texts = [f"GPU {duration(gpu.gpu_ns)}"]
    texts += [f"idle {duration(gpu.idle_ns)}"] if gpu.idle_ns is not None else []
    texts += [_BOUND[gpu.paced_by]] if gpu.paced_by else []
    return [", ".join(texts)]


_LETTERS: Final = ("", "k", "M", "G", "T", "P", "E")


def amount(count: float, unit: str) -> str:
    """Format a count with an SI prefix from 10,000 upward: ``1.23 GFLOP``, ``9,610 parameters``."""
    if count < 10_000:
        return f"{count:,.0f} {unit}"
    letters = iter(_LETTERS)
    letter = next(letters)
    while count >= 999.5 and letter != _LETTERS[-1]:
        count, letter = count / 1000, next(letters)
    gap = "" if unit.startswith("FLOP") else " "
    return f"{figures(count)} {letter}{gap}{unit}"


def work_lines(work: WorkFigures | None, width: int) -> list[Line]:
    """Return lines on model size, FLOP and model FLOPs utilization; empty if ``work`` is None."""
    if work is None:
        return []
    size = amount(work.parameters, "parameters")
    if work.trainable != work.parameters:
        size += f" ({amount(work.trainable, 'trainable')})"
    texts = [size, *_counted(work), *_six_nd(work)]
    return labelled_lines("work", wrapped("", texts, width - LABEL, " · "))


def _counted(work: WorkFigures) -> list[str]:
    if work.flops_per_step is None or work.flops_per_parameter is None:
        return []
    texts = [
        f"{amount(work.flops_per_step, 'FLOP')} per step",
        f"{amount(work.flops_per_parameter, 'per parameter')}",
    ]
    if work.flops_per_s is not None:
        texts.append(amount(work.flops_per_s, "FLOP/s"))
    if work.mfu is not None and work.peak_flops_per_s is not None:
        of = f"{amount(work.peak_flops_per_s, 'FLOP/s')} ({work.peak_type}, {work.peak_source})"
        texts.append(f"MFU {percent(work.mfu)} of {of}")
    return texts


def _six_nd(work: WorkFigures) -> list[str]:
    if work.six_nd_flops_per_step is None:
        return []
    share = f", MFU {percent(work.six_nd_mfu)}" if work.six_nd_mfu is not None else ""
    return [f"6ND {amount(work.six_nd_flops_per_step, 'FLOP')} per step{share}"]
