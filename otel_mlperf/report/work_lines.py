"""Summary lines about the work of models: operations and utilization."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.quantities import figures, percent
from otel_mlperf.terminal_lines import LABEL, labelled_lines, wrapped

if TYPE_CHECKING:
    from otel_mlperf.analysis.summary.work_figures import WorkFigures
    from otel_mlperf.terminal_lines import Line

_LETTERS: Final = ("", "k", "M", "G", "T", "P", "E")


def amount(count: float, unit: str) -> str:
    """Format a number by thousands: ``1.23 GFLOP``, ``9,610 parameters``."""
    if count < 10_000:
        return f"{count:,.0f} {unit}"
    letters = iter(_LETTERS)
    letter = next(letters)
    while count >= 999.5 and letter != _LETTERS[-1]:
        count, letter = count / 1000, next(letters)
    gap = "" if unit.startswith("FLOP") else " "
    return f"{figures(count)} {letter}{gap}{unit}"


def work_lines(work: WorkFigures | None, width: int) -> list[Line]:
    """Return model size, operations per step and per second, and utilization."""
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
        f"{amount(work.flops_per_step, 'FLOP')} a step",
        f"{amount(work.flops_per_parameter, 'a parameter')}",
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
    return [f"6ND {amount(work.six_nd_flops_per_step, 'FLOP')} a step{share}"]
