"""Terminal rendering of a loader benchmark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from otel_mlperf.quantities import duration, percent, plural, rate, size
from otel_mlperf.terminal_lines import (
    LABEL,
    WIDTH,
    Line,
    bar,
    broken,
    columns,
    labelled,
    labelled_lines,
    left,
    short,
    text,
    wrapped,
)

if TYPE_CHECKING:
    from otel_mlperf.loader_trial.loader_settings import Inside, LoaderAnswer, Trial
    from otel_mlperf.terminal_lines import Style

_NAME: Final = 25
_MAX_TRANSFORMS: Final = 12
_MIN_START_SHARE: Final = 0.01
"""Minimum share of an epoch from which the start of the workers is mentioned."""


def render_loader(
    answer: LoaderAnswer, *, width: int = WIDTH, color: bool = False, unicode: bool = True
) -> str:
    """Return the terminal page: trials, parts of a batch's cost, and the best setting."""
    lines = [_heading(answer, width), *_trials(answer)]
    if answer.inside is not None:
        lines += _inside(answer.inside, width)
    return text([*lines, *_best(answer, width)], color=color, unicode=unicode)


def _heading(answer: LoaderAnswer, width: int) -> Line:
    parts = [f" · {answer.kind}" + (f" of {answer.dataset}" if answer.dataset else "")]
    if answer.batch_samples is not None:
        parts.append(f" · {plural(answer.batch_samples, 'sample')}")
    parts.append(f" · {size(answer.batch_bytes)} per batch")
    rest = "".join(parts)
    return [(short(answer.target, max(8, width - columns(rest))), "bold"), (rest, "")]


def _trials(answer: LoaderAnswer) -> list[Line]:
    title = f"{'batches/s':>10}{'samples/s':>10}{'per batch':>10}{'±':>6}{'first':>8}{'memory':>9}"
    lines: list[Line] = [[(f"  {left('setting', _NAME)}{title}", "dim")]]
    for trial in answer.trials:
        samples = "–" if trial.samples_per_s is None else rate(trial.samples_per_s)
        grown = "–" if trial.memory_bytes is None else f"+{size(trial.memory_bytes)}"
        cells = (
            f"{rate(trial.batches_per_s):>10}{samples:>10}{duration(trial.batch_ns):>10}"
            f"{percent(trial.noise):>6}{duration(trial.first_batch_ns):>8}{grown:>9}"
        )
        is_best = answer.best is not None and trial.setting == answer.best
        style: Style = "green" if is_best else ""
        lines.append([(f"  {left(_named(trial, answer), _NAME)}{cells}", style)])
    return lines


def _named(trial: Trial, answer: LoaderAnswer) -> str:
    setting = trial.setting
    if setting is None:
        return "current settings"
    if setting.prefetch_factor is not None or answer.now is None:
        return setting.words
    is_now = answer.now.num_workers == setting.num_workers
    return f"{setting.words} (current)" if is_now else setting.words


def _inside(inside: Inside, width: int) -> list[Line]:
    title = f"  {left('one batch, no workers', _NAME)}{'mean':>10}  share"
    lines: list[Line] = [[(title, "dim")]]
    whole = inside.items_ns + inside.collate_ns
    slowest = sorted(inside.transforms, key=lambda one: one.batch_ns, reverse=True)[
        :_MAX_TRANSFORMS
    ]
    rows = [("__getitem__", inside.items_ns)]
    rows += [(f"  {one.name}", one.batch_ns) for one in inside.transforms if one in slowest]
    for name, spent in [*rows, ("collate", inside.collate_ns)]:
        share = spent / whole if whole else 0.0
        indent = "  " * (1 + name.startswith(" "))
        label = left(name, _NAME + 2 - len(indent))
        row = f"{indent}{label}{duration(spent):>10}{percent(share):>7}  "
        lines.append([(row, ""), (bar(share, max(4, width - columns(row) - 14)), "cyan")])
    return lines


def _best(answer: LoaderAnswer, width: int) -> list[Line]:
    best = next((t for t in answer.trials if answer.best and t.setting == answer.best), None)
    if best is None or answer.line is None:
        return [labelled("best", "settings cannot be varied: the loader is not a DataLoader")]
    lines: list[Line] = [[("best      ", "dim"), (answer.line, "bold")]]
    parts = [f"{rate(best.batches_per_s)} batches/s ± {percent(best.noise)}"]
    if answer.gain is not None:
        parts.append(
            "current settings"
            if _is_now(answer)
            else f"{answer.gain:.1f} times as fast as currently"
        )
    parts += _start(answer, best)
    lines += labelled_lines("", wrapped("", parts, width - LABEL))
    for note in answer.notes:
        lines += labelled_lines("note", broken(note, width - LABEL))
    return lines


def _is_now(answer: LoaderAnswer) -> bool:
    best, now = answer.best, answer.now
    if best is None or now is None or best.prefetch_factor is not None:
        return False
    return best.num_workers == now.num_workers


def _start(answer: LoaderAnswer, best: Trial) -> list[str]:
    if not answer.best or not answer.best.num_workers or not answer.epoch_batches:
        return []
    epoch_ns = best.first_batch_ns + answer.epoch_batches * best.batch_ns
    share = best.first_batch_ns / epoch_ns if epoch_ns else 0.0
    if share < _MIN_START_SHARE:
        return []
    return [f"persistent workers: their start-up costs {percent(share)} of an epoch"]
