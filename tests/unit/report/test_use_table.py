"""A summary and a span show what sections used."""

from __future__ import annotations

import pytest

from otel_mlperf import names
from otel_mlperf.analysis.summary.call_shapes import SectionUse, UseFigures
from otel_mlperf.report.section_tables import usage_texts, use_lines
from otel_mlperf.terminal_lines import columns


def figure(mean, most=None):
    return UseFigures(count=3, total=0, mean=mean, least=0, most=most or 0, variance=0.0)


def use(name, path="", phase="train", **figures):
    return SectionUse(name=name, category="other", phase=phase, path=path, in_step=not path,
                      beside=False, calls=1234, figures=figures)  # fmt: skip


def shown(uses, width=80):
    lines = ["".join(part for part, _ in line).rstrip() for line in use_lines(uses, width)]
    assert all(columns(line) <= width for line in lines)
    return lines


def test_table():
    """The mean of a call and the highest peak; what was not known is a dash."""
    uses = [
        use("forward", cpu_ns=figure(12_300_000), memory_growth_bytes=figure(-1_500_000),
            memory_peak_bytes=figure(1, 412_000_000), read_bytes=figure(0.0),
            written_bytes=figure(5000.0), voluntary_switches=figure(2.5)),
        use("waits", memory_growth_bytes=figure(0.0)),
    ]  # fmt: skip

    assert shown(uses) == [
        "  mean of a call     calls      CPU   memory     peak     read  written    waits",
        "  forward            1,234  12.3 ms -1.50 MB  393 MiB      0 B  5.00 kB     2.50",
        "  waits              1,234        –      0 B        –        –        –        –",
    ]


def test_gpu_memory_comes_before_bytes():
    """Where there is not room for all, memory of the GPU is told rather than what was read."""
    one = use("forward", **{measure.key: figure(1.0, 1) for measure in names.MEASURES})

    assert shown([one], 70)[0].endswith("calls      CPU   memory     peak  GPU mem")
    assert shown([one], 80)[0].endswith("peak  GPU mem GPU peak     read")


def test_one_name_at_two_places():
    """Both are told by their paths."""
    lines = shown([use("load", "load", cpu_ns=figure(1)), use("load", "a/load", cpu_ns=figure(1))])
    assert [line.split()[0] for line in lines[1:]] == ["load", "a/load"]


def test_one_name_in_two_phases():
    """The phase tells them apart; what is in one alone needs none."""
    uses = [use("forward", phase=phase, cpu_ns=figure(1)) for phase in ("train", "predict")]
    lines = shown([*uses, use("decode", phase="predict", cpu_ns=figure(1))])

    assert [line.split()[0] for line in lines[1:]] == ["train/forward", "predict/forward", "decode"]


def test_many():
    """Ten lines, and how many more there are."""
    lines = shown([use(f"s{i}", cpu_ns=figure(1)) for i in range(12)])
    assert len(lines) == 12
    assert lines[-1] == "  2 others: summary --json contains all"


@pytest.mark.parametrize("width", [70, 80, 200])
def test_nothing(width):
    """Without a measured section there is no table."""
    assert shown([], width) == []


def test_words_of_a_span():
    """Only what is known, each with its unit."""
    attributes = {
        names.CPU_NS.attribute: 12_100_000,
        names.MEMORY_GROWTH.attribute: -2_000,
        names.CUDA_MEMORY_PEAK: 5_000_000,
        names.SWITCHES.attribute: 0,
        "rows": 3,
    }
    assert usage_texts(attributes) == [
        "CPU 12.1 ms", "memory -2.00 kB", "GPU peak 4.77 MiB", "waits 0",
    ]  # fmt: skip
