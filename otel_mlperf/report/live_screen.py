"""Terminal screen of the command ``top``: ranks, devices, requests and warnings of a live job."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final

from otel_mlperf import names
from otel_mlperf.analysis.live.live_view import SPARK_STEPS
from otel_mlperf.analysis.run.run_processes import RUNNING
from otel_mlperf.findings.finding_table import RULES
from otel_mlperf.quantities import column_unit, duration, figures, percent, plural, rate
from otel_mlperf.report.finding_lines import finding_text
from otel_mlperf.report.machine_lines import amount
from otel_mlperf.terminal_lines import WIDTH, Line, bar, columns, folded, left, short, text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from otel_mlperf.analysis.live.live_readings import DeviceNow
    from otel_mlperf.analysis.live.live_requests import RequestsNow
    from otel_mlperf.analysis.live.live_view import Live, RankNow
    from otel_mlperf.findings.finding import Finding
    from otel_mlperf.quantities import Unit
    from otel_mlperf.terminal_lines import Style

_MAX_REQUEST_NAMES: Final = 4
_NAME: Final = 12
_REQUEST_COLUMNS: Final = 67


def live_request_lines(requests: list[RequestsNow], width: int) -> list[Line]:
    """Return one line per request name: open requests, and those ended in the last minute."""
    if not requests:
        return []
    shown = requests[:_MAX_REQUEST_NAMES]
    name = max(_NAME, min(width - _REQUEST_COLUMNS, max(columns(one.name) for one in shown)))
    title = f"{left('requests', name)}{'open':>6}{'oldest':>9}{'calls/s':>10}{'failed':>8}"
    title += "".join(f"{column:>8}" for column in ("p50", "p95", "p99", "max"))
    lines: list[Line] = [[(title, "dim")]]
    lines += [[(_row(one, name), "")] for one in shown]
    if rest := requests[_MAX_REQUEST_NAMES:]:
        lines.append([(f"{plural(len(rest), 'more name')}: top --json contains all", "dim")])
    return lines


def _row(one: RequestsNow, name: int) -> str:
    oldest = duration(one.oldest_ns) if one.oldest_ns is not None else ""
    speed = rate(one.per_s) if one.per_s is not None else ""
    row = f"{left(one.name, name)}{one.open:>6,}{oldest:>9}{speed:>10}{one.failed:>8,}"
    took = (one.p50_ns, one.p95_ns, one.p99_ns, one.max_ns)
    return row + "".join(f"{'–' if ns is None else duration(ns):>8}" for ns in took)


_TICKS: Final = "▁▂▃▄▅▆▇█"
_ASCII_TICKS: Final = "_.-:=+*#"
_STUCK_NS: Final = 60 * 10**9
_WAIT_YELLOW, _WAIT_RED = 0.1, 0.3
_NEARLY: Final = 0.95
_OUTCOMES: Final[dict[str, Style]] = {"finished": "green", RUNNING: "cyan"}
_FEW_LINES: Final = 10
_MAX_LOGGED: Final = 6
_MAX_WARNINGS: Final = 4
_MAX_FINDINGS: Final = 3
_MAX_RANKS: Final = 32
"""Maximum number of ranks to show if the terminal's height is unknown."""
_FIXED: Final = 42
"""Columns of a rank's line except its open section and its sparkline."""
_NARROWEST: Final = 11
"""Minimum columns for a rank's open section, or for its outcome if no section is open."""


def render_top(
    live: Live,
    *,
    width: int = WIDTH,
    height: int | None = None,
    color: bool = False,
    unicode: bool = True,
) -> str:
    """Render the screen as text with at most ``height`` lines (None: no limit)."""
    return text(top_lines(live, width, height, unicode=unicode), color=color, unicode=unicode)


def top_lines(
    live: Live, width: int = WIDTH, height: int | None = None, *, unicode: bool = True
) -> list[Line]:
    """Return the screen as at most ``height`` styled lines (None: no limit)."""
    heading = [*_heading(live, width), *_figures(live, width)]
    heading += live_request_lines(live.requests, width)
    devices = [line for device in live.devices for line in _device(device, width)]
    warnings: list[Line] = [
        [(f"! {short(warning, width - 2)}", "yellow")] for warning in live.warnings
    ]
    if (more := len(warnings) - _MAX_WARNINGS) > 0:
        warnings[_MAX_WARNINGS:] = [[(f"! {more} more: top --json contains all", "yellow")]]
    foot = [*warnings, *_findings(live, width), _foot(live, width)]
    room = _MAX_RANKS + 1
    if height is not None:
        room = max(1, height - len(heading) - len(devices) - len(foot) - 2)
        # A frame never scrolls: in a low terminal ranks take precedence over devices.
        devices = devices[: max(0, height - _FEW_LINES)]
    lines = [*heading, *_ranks(live, width, room, unicode), *devices, *foot]
    lines = [_cut(line, width) for line in lines]
    return lines if height is None else lines[:height]


def _findings(live: Live, width: int) -> list[Line]:
    unwarned = [one for one in live.findings if not _is_warned(one, live.warnings)]
    return [
        [(short(f"→ {finding_text(one, ranks=len(live.ranks))}", width), "yellow")]
        for one in unwarned[:_MAX_FINDINGS]
    ]


def _is_warned(finding: Finding, warnings: Sequence[str]) -> bool:
    """Return whether a warning contains the text that precedes the value in the finding's rule."""
    rule = next((rule for rule in RULES if rule.id == finding.id), None)
    texts = rule.summary.partition("{")[0].strip() if rule else ""
    return bool(texts) and any(texts in warning for warning in warnings)


def _heading(live: Live, width: int) -> list[Line]:
    ranks = plural(len(live.ranks), "rank")
    if live.world_size > len(live.ranks):
        ranks = f"{len(live.ranks)} of {live.world_size} ranks"
    rest = f" · {ranks} · {duration(live.duration_ns)}"
    before = f" · {live.short_id} · "
    at = time.strftime("%H:%M:%S", time.localtime(live.at_ns / 1e9))
    room = width - columns(before + live.outcome + rest) - len(at) - 2
    name = short(live.name, max(8, room))
    style = _OUTCOMES.get(live.outcome, "red")
    filled = columns(name + before + live.outcome + rest)
    gap = " " * max(2, width - filled - len(at))
    return [
        [(name, "bold"), (before, ""), (live.outcome, style), (rest, ""), (f"{gap}{at}", "dim")]
    ]


def _figures(live: Live, width: int) -> list[Line]:
    if live.step is None:
        status = "no step yet" if live.outcome == RUNNING else "no step was made"
        return [[(status, "dim")], *_logged(live, width)]
    of = f" of {live.steps_expected:,}" if live.steps_expected else ""
    line: Line = [(f"{_step_label(live.phase)} {live.step:,}{of}", "bold")]
    more = [
        (live.mean_ns, duration, ""),
        (live.steps_per_s, rate, " steps/s"),
        (live.samples_per_s, rate, " samples/s"),
        (live.tokens_per_s, rate, " tokens/s"),
        (live.flops_per_s, lambda value: amount(value, "FLOP/s"), ""),
    ]
    for value, written, unit in more:
        line += [(f" · {written(value)}{unit}", "")] if value is not None else []
    lines = folded(line, width)
    if live.data_wait is not None:
        share: Line = [
            (f"data wait {percent(live.data_wait)} ", ""),
            (bar(live.data_wait), _wait_style(live.data_wait)),
        ]
        if live.left_ns is not None:
            share.append((f"  {duration(live.left_ns)} left", ""))
        lines.append(share)
    return [*lines, *_logged(live, width)]


def _step_label(phase: str) -> str:
    return "step" if phase in (names.TRAIN, "") else f"{phase} step"


def _wait_style(share: float) -> Style:
    return "red" if share > _WAIT_RED else "yellow" if share > _WAIT_YELLOW else "green"


def _logged(live: Live, width: int) -> list[Line]:
    texts = [f"{name} {value:.4g}" for name, value in list(live.last.items())[:_MAX_LOGGED]]
    texts += [f"… {more} more"] if (more := len(live.last) - _MAX_LOGGED) > 0 else []
    bad = any(not math.isfinite(value) for value in live.last.values())
    return [[(short(" · ".join(texts), width), "red" if bad else "")]] if texts else []


def _ranks(live: Live, width: int, room: int, unicode: bool) -> list[Line]:
    if not live.ranks:
        return [[("no process has recorded yet", "dim")]]
    shown = live.ranks
    if len(shown) > room:
        # If not all ranks fit, show those that died, and those stuck longest.
        worst = sorted(shown, key=lambda rank: (rank.outcome in _OUTCOMES, -(rank.open_ns or 0)))
        shown = sorted(worst[: max(1, room - 1)], key=lambda rank: rank.rank)
    unit = column_unit(max((max(rank.step_ns) for rank in shown if rank.step_ns), default=0))
    free = width - _FIXED
    section = min(
        max(_NARROWEST, *(columns(rank.section) for rank in shown)),
        max(_NARROWEST, free - SPARK_STEPS),
    )
    steps = max(0, min(SPARK_STEPS, free - section))
    title = (
        f"{'rank':>5}{'step':>9}  {left('section', section)}{'open for':>9}"
        f"{f'step {unit.name}':>9}  {'':{steps}}{'data':>6}"
    )
    lines: list[Line] = [[(title, "dim")]]
    ticks = _TICKS if unicode else _ASCII_TICKS
    lines += [_rank(rank, unit, (section, steps), ticks) for rank in shown]
    if len(shown) < len(live.ranks):
        more = plural(len(live.ranks) - len(shown), "more rank")
        more += ", whose sections opened later" if live.outcome == RUNNING else ""
        lines.append([(f"{'':5}{more}", "dim")])
    return lines


def _rank(rank: RankNow, unit: Unit, widths: tuple[int, int], ticks: str) -> Line:
    section, steps = widths
    last = unit.number(rank.step_ns[-1]) if rank.step_ns else ""
    step = f"{rank.step:,}" if rank.step is not None else "–"
    open_now, age = rank.section, duration(rank.open_ns) if rank.open_ns is not None else ""
    style: Style = "red" if (rank.open_ns or 0) > _STUCK_NS else ""
    if not rank.section:
        open_now, style = rank.outcome, _OUTCOMES.get(rank.outcome, "red")
    course = sparkline(rank.step_ns[max(0, len(rank.step_ns) - steps) :], ticks)
    line: Line = [
        (f"{rank.rank:>5}{step:>9}  ", ""),
        (f"{left(open_now, section)}{age:>9}", style),
    ]
    if rank.data_wait is not None:
        line += [
            (f"{last:>9}  ", ""),
            (f"{course:<{steps}}", "cyan"),
            (f"{percent(rank.data_wait):>6}", _wait_style(rank.data_wait)),
        ]
    return line


def sparkline(values: Sequence[float], ticks: str = _TICKS) -> str:
    """Return one of ``ticks`` (low to high) per value; the last from twice the median upward."""
    if not values:
        return ""
    top = 2 * sorted(values)[len(values) // 2] or 1
    max_tick = len(ticks) - 1
    return "".join(ticks[min(max_tick, round(value / top * max_tick))] for value in values)


def _device(device: DeviceNow, width: int) -> list[Line]:
    whose = f" rank {device.rank}" if device.rank is not None else ""
    line: Line = [(left(f"{device.name}{whose}", 13), "")]
    if device.utilization is not None:
        line += [
            (left(bar(device.utilization, 10), 11), "green"),
            (f"{percent(device.utilization):>5}", ""),
        ]
    if device.memory_bytes is not None and device.memory_limit_bytes:
        share = device.memory_bytes / device.memory_limit_bytes
        used, limit = device.memory_bytes / 2**30, device.memory_limit_bytes / 2**30
        full = f" {figures(used)} of {figures(limit)}"
        line += [
            ("  ", ""),
            (left(bar(share, 10), 10), "red" if share > _NEARLY else "blue"),
            (f"{full} GiB", ""),
        ]
    for value, unit in ((device.power_w, "W"), (device.temperature_c, "°C")):
        line.append((f"  {value:.0f} {unit}" if value is not None else "", ""))
    why = "  " + ", ".join(device.throttled)
    if device.throttled and sum(columns(part) for part, _ in line) + columns(why) > width:
        return [line, [(f"     throttled:{why[1:]}", "yellow")]]
    return [[*line, (why, "yellow")]]


def _cut(line: Line, width: int) -> Line:
    fitting: Line = []
    for part, style in line:
        room = width - sum(columns(known) for known, _ in fitting)
        if columns(part) > room:
            blanks = part[: len(part) - len(part.lstrip())]
            return (
                [*fitting, (blanks + short(part, room - len(blanks)), style)]
                if room > 3
                else fitting
            )
        fitting.append((part, style))
    return fitting


def _foot(live: Live, width: int) -> Line:
    texts = []
    ages = [rank.last_step_ns for rank in live.ranks if rank.last_step_ns is not None]
    if live.outcome != RUNNING:
        texts.append(f"run {live.outcome}: last known state")
    elif ages:
        texts.append(f"last step {duration(min(ages))} ago")
    if live.outcome == RUNNING and not live.is_seen:
        texts.append("not on this node: state from the run folder")
    memory = [now.memory_bytes for now in live.ranks if now.memory_bytes is not None]
    cpus = [now.cpus for now in live.ranks if now.cpus is not None]
    if cpus:
        texts.append(f"{figures(sum(cpus))} CPUs")
    if memory:
        texts.append(f"memory {figures(sum(memory) / 2**30)} GiB")
    if live.readings_age_ns is not None and live.outcome == RUNNING:
        texts.append(f"readings {duration(live.readings_age_ns)} old")
    if live.lost:
        texts.append(f"{plural(live.lost, 'record')} lost")
    late = live.outcome == RUNNING and bool(ages) and min(ages) > _STUCK_NS
    return [(short(" · ".join(texts), width), "red" if late or live.lost else "dim")]
