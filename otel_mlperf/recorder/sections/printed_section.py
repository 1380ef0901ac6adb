"""How is one call of a section told on stderr: its time and, if it is measured, what it used?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf import names

if TYPE_CHECKING:
    from otel_mlperf.recorder.sections.usage import Usage

_TOLD: Final = (
    ("cpu {:.2f} ms", names.CPU_NS, 1e6),
    ("memory {:+.2f} MB", names.MEMORY_GROWTH, 1e6),
    ("peak {:.2f} MB", names.MEMORY_PEAK, 1e6),
    ("gpu memory {:+.2f} MB", names.CUDA_GROWTH, 1e6),
    ("gpu peak {:.2f} MB", names.CUDA_PEAK, 1e6),
)


def printed_line(name: str, duration_ns: int, usage: Usage | None) -> str:
    """``collate 3.20 ms: cpu 3.10 ms, memory +4.19 MB``; what is not known is left out."""
    line = f"{name} {duration_ns / 1e6:.2f} ms"
    figures = usage.figures if usage is not None else None
    if not figures:
        return line
    by_key = {measure.key: value for measure, value in zip(names.MEASURES, figures, strict=True)}
    told = [
        words.format(value / unit)
        for words, measure, unit in _TOLD
        if (value := by_key[measure.key]) is not None
    ]
    return f"{line}: {', '.join(told)}" if told else line
