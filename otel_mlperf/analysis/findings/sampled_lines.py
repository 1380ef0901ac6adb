"""Do output or conversions hold up the main thread, by the lines at which it was found?

A line is what most of the calls are that it was found in, as far as these are known here by their
name or their library. That a call of such a name does what the name says is likely, no more.
"""

from __future__ import annotations

from math import sqrt
from typing import TYPE_CHECKING, Final, Literal

from msgspec.structs import replace

from otel_mlperf import names
from otel_mlperf.analysis.findings.gpu_busy import read_gpu_busy
from otel_mlperf.analysis.findings.run_numbers import once_a_run
from otel_mlperf.analysis.findings.stack_lines import lifted_stack_lines
from otel_mlperf.findings.finding import Finding, Gain, Where
from otel_mlperf.findings.finding_table import row_of

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.run_numbers import RunNumbers
    from otel_mlperf.analysis.findings.stack_lines import Call, Line, StackLines

Kind = Literal["sync_in_loop", "conversions", "transfer"]
_FEWEST: Final = 10
"""Steps from which on there is anything to say about a usual one."""
_PINNED: Final = "SELECT count(*) FROM instruments WHERE name = $name"
_KNOWN: Final = 0.1
"""Share of a line's samples that must be in calls of its kind: the rest is between them."""
_ITERATION: Final = "iteration"
"""Of a sample: no call, a ``for`` asks for the next one."""
_LEAST_SAVED: Final = 0.75
_LEAST_SAVED_BESIDE: Final = 0.5
_LIKELY: Final = "likely in {call} ({place})"
_LOGGERS: Final = frozenset(
    {"logging", "loguru", "structlog", "tensorboard", "tensorboardX", "wandb", "mlflow", "rich",
     "tqdm", "csv", "sqlite3", "requests", "urllib", "urllib3", "matplotlib", "aim", "comet_ml"}
)  # fmt: skip
_OUTPUT: Final = frozenset(
    {"print", "debug", "info", "warning", "error", "log", "write", "writelines", "writerow",
     "writerows", "flush", "fsync", "fdatasync", "sync", "dump", "add_scalar", "add_scalars",
     "add_histogram", "add_image", "add_text", "log_metric", "log_metrics", "savefig", "save",
     "savez", "savetxt", "to_csv", "sleep", "system", "check_output", "check_call", "urlopen",
     "sendall", "commit", "open", "close", "item"}
)  # fmt: skip
_CONVERSIONS: Final = frozenset(
    {"numpy", "tolist", "from_numpy", "tensor", "as_tensor", "array", "asarray", "fromiter",
     "FloatTensor", "LongTensor", "float", "int", "to", "type", "astype", "double", "half",
     "bfloat16", "long", "byte", "bool", "contiguous", "ascontiguousarray"}
)  # fmt: skip
_COPIES: Final = frozenset({"to", "cuda", "copy_"})
"""Where there is a GPU: one that takes long is a copy from the host that is waited for."""
_WAITS: Final = frozenset(
    {"item", "tolist", "cpu", "numpy", "synchronize", "float", "int", "bool", "print", "array",
     "asarray"}
)  # fmt: skip
"""In these the loop waits for a GPU, where there is one, until all its work is done."""


@once_a_run
def find_sampled_lines(numbers: RunNumbers) -> list[Finding]:
    """One for output and one for conversions: of the rank that it holds up most."""
    return _found(numbers, "sync_in_loop") + _found(numbers, "conversions")


@once_a_run
def find_copying_lines(numbers: RunNumbers) -> list[Finding]:
    """One, of the rank that waits most for copies to its GPU, where batches are not pinned."""
    ((pinned,),) = numbers.store.rows(_PINNED, name=names.LOADER_PIN.name)
    return [] if pinned else _found(numbers, "transfer")


def _found(numbers: RunNumbers, kind: Kind) -> list[Finding]:
    steps = numbers.summary.steps
    if steps is None or steps.count < _FEWEST:
        return []
    judged = [_judge(kind, rank, numbers) for rank in lifted_stack_lines(numbers)]
    known = [(share, finding) for share, finding in judged if finding is not None]
    return [max(known, key=lambda one: one[0])[1]] if known else []


def _judge(kind: Kind, rank: StackLines, numbers: RunNumbers) -> tuple[float, Finding | None]:
    row, has_gpu = row_of(kind), numbers.uses_gpu
    busy = read_gpu_busy(numbers).get(rank.rank) if has_gpu else 0.0
    lines = [line for line in rank.calls if _kind_of(line, rank, has_gpu=has_gpu) == kind]
    share = rank.share(lines)
    # Of few samples a share is known to within twice its standard error.
    unsure = 2 * sqrt(share * (1 - share) / rank.total)
    # The work that is waited for has to be done in any case: the rest of a step can be won.
    won = min(share, 1 - (busy or 0.0))
    if (busy is None and kind == "sync_in_loop") or not row.holds(won - unsure / 2):
        return share, None
    most = max(lines, key=lambda line: rank.share([line]))
    calls = rank.calls[most]
    named = [call for call in calls if _kind_of_call(call, has_gpu=has_gpu) == kind]
    call = max(named, key=lambda one: calls[one])
    words = {"value": share, "call": f"{call.name}()", "place": str(most)}
    words["how"] = _LIKELY.format(**words)
    gain = _gain_of_copies(won) if kind == "transfer" else _gain(won, unsure, has_gpu=has_gpu)
    evidence = {
        "share": share,
        "share_of_that_line": rank.share([most]),
        "samples": rank.total,
        "lines": float(len(lines)),
    }
    if has_gpu and busy is not None:
        evidence["gpu_busy"] = busy
    summary = row.summary.format(**words)
    around = 0.0 if has_gpu else _around(lines, most, rank, numbers)
    if around > won + unsure:
        summary += f"; with the rest of that function {around:.0%}"
        evidence["share_of_function"] = around
        gain = replace(gain, high=around)
    return share, Finding(
        id=row.id,
        severity=row.severity,
        summary=summary,
        action=row.action,
        evidence=evidence,
        where=Where(section=str(most), rank=rank.rank),
        gain=gain,
        command=f"otel-mlperf show {numbers.summary.short_id}",
    )


def _around(lines: list[Line], most: Line, rank: StackLines, numbers: RunNumbers) -> float:
    """Share of a step of these lines with the whole function of one of them, 0.0 to 1.0.

    Who goes through a batch by its elements does more with each than to ask for it. A function that
    calls a part of the training as well is not taken as a whole.
    """
    part = next((part for part in rank.own_parts() if most in part), [])
    return min(rank.share({*lines, *part}), numbers.uncovered)


def _gain(won: float, unsure: float, *, has_gpu: bool) -> Gain:
    """At least three quarters are: some of the output or the numbers may be needed.

    With a GPU half: what else the loop does may come to wait for it then.
    """
    least = _LEAST_SAVED_BESIDE if has_gpu else _LEAST_SAVED
    return Gain(low=least * max(0.0, won - unsure), high=min(1.0, won + unsure))


def _gain_of_copies(share: float) -> Gain:
    """Into pinned memory another thread copies beside the step, which takes as long."""
    high = min(share, 1 - share)
    return Gain(low=high / 2, high=high)


def _kind_of(line: Line, rank: StackLines, *, has_gpu: bool) -> Kind | None:
    """What a line does, by what it was found calling; what a DataLoader calls is loading."""
    if line.within == "loading":
        return None
    calls = rank.calls[line]
    found: dict[Kind | None, float] = {}
    for call, samples in calls.items():
        if call.name and call.name != _ITERATION:
            kind = _kind_of_call(call, has_gpu=has_gpu)
            found[kind] = found.get(kind, 0.0) + samples
    # What Python does between the calls is of the kind that they are.
    most = max(found, key=lambda kind: found[kind], default=None)
    return most if most and found[most] >= _KNOWN * sum(calls.values()) else None


def _kind_of_call(call: Call, *, has_gpu: bool) -> Kind | None:
    if has_gpu and call.name in _COPIES:
        return "transfer"
    if has_gpu and call.name in _WAITS:
        return "sync_in_loop"
    if call.package in _LOGGERS or call.name in _OUTPUT:
        return "sync_in_loop"
    return "conversions" if call.name in _CONVERSIONS else None
