"""A frame of ``top`` can be read at a glance, in any terminal."""

from __future__ import annotations

import pytest

from otel_mlperf.analysis.live.live_readings import DeviceNow
from otel_mlperf.analysis.live.live_requests import RequestsNow
from otel_mlperf.analysis.live.live_view import Live, RankNow
from otel_mlperf.report.live_screen import render_top, sparkline
from otel_mlperf.terminal_lines import columns

MS, S = 10**6, 10**9


def rank(number=0, **fields):
    known = {
        "rank": number, "host": "node1", "outcome": "running", "step": 1204,
        "section": "forward", "open_ns": 12 * MS, "step_ns": [70 * MS] * 23 + [140 * MS],
        "data_wait": 0.05, "last_step_ns": 20 * MS, "memory_bytes": 2.0**31, "cpus": 1.5,
    }  # fmt: skip
    return RankNow(**known | fields)


def live(**fields):
    known = {
        "id": "3f2a9c0d", "short_id": "3f2a", "name": "digits", "outcome": "running",
        "is_seen": True, "at_ns": 1_760_000_000 * S, "duration_ns": 192 * S, "world_size": 1,
        "phase": "train", "step": 1203, "steps_expected": 9000, "left_ns": 602 * S,
        "mean_ns": 70.5 * MS, "steps_per_s": 14.1, "samples_per_s": 225.0, "tokens_per_s": 1800.0,
        "flops_per_s": None,
        "data_wait": 0.43, "last": {"loss": 0.0801, "lr": 0.001}, "ranks": [rank()],
        "devices": [], "readings_age_ns": 2 * S, "lost": 0,
        "warnings": [],
    }  # fmt: skip
    return Live(**known | fields)


def shown(**fields):
    """A frame without the time of day, which depends on where one is."""
    lines = render_top(live(**fields)).splitlines()
    return [lines[0][:70].rstrip(), *lines[1:]]


def test_a_running_job_at_a_glance():
    """Which run, how fast, what it waits for, where each rank is, in 80 columns."""
    assert shown(ranks=[rank(), rank(1, section="data.load", open_ns=90 * MS, data_wait=0.57)]) == [
        "digits · 3f2a · running · 2 ranks · 3 m 12 s",
        "step 1,203 of 9,000 · 70.5 ms · 14.1 steps/s · 225 samples/s · 1,800 tokens/s",
        "data wait 43 % ▇▇▇▇▇▇▇▇▇  10 m 02 s left",
        "loss 0.0801 · lr 0.001",
        " rank     step  section     open for  step ms                            data",
        "    0    1,204  forward      12.0 ms    140.0  ▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅█   5 %",
        "    1    1,204  data.load    90.0 ms    140.0  ▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅▅█  57 %",
        "last step 20.0 ms ago · 3.00 CPUs · memory 4.00 GiB · readings 2.00 s old",
    ]


def test_a_narrow_terminal_leaves_out_no_figure():
    """What has no room stands on the next line; what is not shown is counted."""
    more = {f"metric{n}": 1.0 for n in range(8)}
    frame = render_top(live(last=more, warnings=[f"w{n}" for n in range(6)]), width=60).splitlines()

    assert frame[1:3] == [
        "step 1,203 of 9,000 · 70.5 ms · 14.1 steps/s · 225 samples/s",
        "  1,800 tokens/s",
    ]
    assert "metric5 1 · … 2 more" in render_top(live(last=more), width=120)
    assert frame[-6:-1] == ["! w0", "! w1", "! w2", "! w3", "! 2 more: top --json contains all"]


def test_gpus_have_bars():
    """Busy, memory, power, temperature, and why one is held back; what is not offered is absent."""
    devices = [
        DeviceNow(
            id="GPU-a", name="gpu0", rank=0, utilization=0.93, memory_bytes=60 * 2.0**30,
            memory_limit_bytes=80 * 2.0**30, power_w=612.4, temperature_c=64.0,
        ),
        DeviceNow(id="GPU-b", name="gpu1", rank=None, utilization=0.0, throttled=["sw_power_cap"]),
    ]  # fmt: skip

    assert shown(devices=devices)[-3:-1] == [
        "gpu0 rank 0  ▇▇▇▇▇▇▇▇▇   93 %  ▇▇▇▇▇▇▇▇   60.0 of 80.0 GiB  612 W  64 °C",
        "gpu1                      0 %  sw_power_cap",
    ]


def test_why_a_gpu_is_held_back_has_a_line_where_there_is_no_room():
    """The reason is never cut: it is what one looks for."""
    gpu = DeviceNow(
        id="GPU-a", name="gpu0", rank=0, utilization=1.0, memory_bytes=60 * 2.0**30,
        memory_limit_bytes=80 * 2.0**30, power_w=612.4, temperature_c=88.0,
        throttled=["hw_thermal_slowdown"],
    )  # fmt: skip

    assert shown(devices=[gpu])[-2] == "     throttled: hw_thermal_slowdown"


def test_warnings_that_hold_are_shown():
    """What the run itself warns of, before the last line."""
    warning = "rank 1: the job uses 93% of its memory limit"

    assert shown(warnings=[warning])[-2] == f"! {warning}"


def test_an_ended_run_says_so():
    """It is shown as it was last, and nobody thinks that it goes on."""
    lines = shown(
        outcome="killed", is_seen=False, left_ns=None,
        ranks=[rank(section="", open_ns=None, outcome="killed")],
    )  # fmt: skip

    assert lines[0] == "digits · 3f2a · killed · 1 rank · 3 m 12 s"
    assert lines[-2].split() == ["0", "1,204", "killed", "140.0", "▅" * 23 + "█", "5", "%"]
    assert lines[-1].startswith("run killed: last known state")


def test_before_the_first_step_it_says_what_is_open():
    """Set-up is where it is, and no figure is made up."""
    lines = shown(
        step=None, mean_ns=None, steps_per_s=None, samples_per_s=None, tokens_per_s=None,
        flops_per_s=None,
        data_wait=None, left_ns=None, last={}, readings_age_ns=None, lost=None,
        ranks=[rank(step=None, section="load_data", open_ns=31 * S, step_ns=[], data_wait=None,
                    last_step_ns=None, memory_bytes=None, cpus=None)],
    )  # fmt: skip

    assert lines[1] == "no step yet"
    assert lines[3] == "    0        –  load_data     31.0 s"
    assert lines[4] == ""


def test_of_thousands_of_ranks_a_few_are_printed():
    """Where no terminal says how many have room; one that died is among them."""
    ranks = [rank(n, section="", open_ns=None, outcome="finished") for n in range(4096)]
    ranks[3000] = rank(3000, section="", open_ns=None, outcome="killed")
    lines = shown(ranks=ranks, world_size=4096, outcome="killed")

    assert len(lines) < 60
    assert [line.split()[0] for line in lines if line.strip().endswith("5 %")][-1] == "3000"
    assert any(line.strip() == "4,064 more ranks" for line in lines)


def test_nobody_has_recorded_yet():
    """A run folder without a process is no error."""
    assert "no process has recorded yet" in shown(ranks=[], step=None, last={})


def test_a_run_elsewhere_says_how_it_is_known():
    """What the folder says may be a minute old."""
    assert "not on this node: state from the run folder" in shown(is_seen=False)[-1]


def test_of_many_ranks_those_that_are_stuck_are_shown():
    """In a terminal of 24 lines, the sections that have been open longest, in the ranks' order."""
    ranks = [rank(n, open_ns=(900 if n % 100 == 7 else 1) * S) for n in range(1000)]
    frame = render_top(live(ranks=ranks, world_size=1000), height=24)

    lines = frame.splitlines()
    numbers = [int(line.split()[0]) for line in lines[5:-2]]
    assert len(lines) <= 24
    assert set(range(7, 1000, 100)) <= set(numbers)
    assert numbers == sorted(numbers)
    assert lines[-2].strip() == f"{1000 - len(numbers)} more ranks, whose sections opened later"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("height", [None, 8, 24])
def test_no_line_is_wider_and_no_frame_higher_than_the_terminal(width, height):
    """Long names are cut, wherever they come from."""
    frame = render_top(
        live(
            name="名" * 90,
            last={f"a_long_name_{n}": 1.0 for n in range(9)},
            ranks=[rank(n, section="a.section.of.a.very.long.name" * 3) for n in range(40)],
            devices=[DeviceNow(id=str(n), name="gpu0", rank=n, utilization=1.0, memory_bytes=7.5e10,
                            memory_limit_bytes=8e10, power_w=700.0, temperature_c=88.0,
                            throttled=["hw_thermal_slowdown", "sw_power_cap"]) for n in range(8)],
        ),
        width=width,
        height=height,
    )  # fmt: skip

    lines = frame.splitlines()
    assert max(map(columns, lines)) <= width
    assert height is None or len(lines) <= height


@pytest.mark.fault("S19")
def test_names_cannot_move_the_cursor():
    """A program's words are made printable."""
    assert "\x1b" not in render_top(live(name="\x1b[2J", ranks=[rank(section="\x1b[1A")]))


def test_trouble_is_red():
    """A section open for minutes, a high wait, a loss that is no number, lost telemetry."""
    calm = render_top(live(data_wait=0.01), color=True)
    for trouble in (
        {"ranks": [rank(open_ns=90 * S)]},
        {"data_wait": 0.5},
        {"last": {"loss": float("nan")}},
        {"lost": 3},
    ):
        assert "\x1b[31m" in render_top(live(**{"data_wait": 0.01} | trouble), color=True)
    assert "\x1b[31m" not in calm


def test_a_terminal_of_ascii_gets_ascii():
    """Without Unicode there is a line all the same."""
    assert render_top(live(), unicode=False).isascii()
    assert sparkline([1, 1, 1, 4], "_.-:=+*#") == "===="[:3] + "#"


def test_a_sparkline_shows_what_stands_out():
    """Twice the median is full, half of it is a quarter; nothing is nothing."""
    assert sparkline([10, 10, 20, 5, 10]) == "▅▅█▃▅"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"


def test_requests_have_rows_of_their_own():
    """What is open now, and how those of the last minute went."""
    now = RequestsNow(
        name="predict", open=3, oldest_ns=90 * MS, count=600, failed=2, per_s=10.0,
        p50_ns=20 * MS, p95_ns=40 * MS, p99_ns=80 * MS, max_ns=S,
    )  # fmt: skip
    lines = shown(requests=[now])

    assert "requests      open   oldest   calls/s  failed     p50     p95     p99     max" in lines
    assert "predict          3  90.0 ms      10.0       2 20.0 ms 40.0 ms 80.0 ms  1.00 s" in lines


def test_operations_a_second():
    """Where a model is named; by thousands, for they are many."""
    assert "  45.0 TFLOP/s" in shown(flops_per_s=4.5e13)
