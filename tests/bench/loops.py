"""Are sections of untouched loops as long as a stopwatch says that is placed by hand in a copy?

    python tests/bench/loops.py [ROUNDS [LOOP ... | frameworks]]

Each loop of ``tests/programs/loops`` (or each that is named, or those of
``tests/programs/frameworks`` that have a stopwatch at every place) is run untouched, as a copy with
a stopwatch, and as that copy under ``otel-mlperf run``, all in shuffled order. *in one run* divides
what was recorded by what the stopwatch of the same process has measured, and *short* is what lies
between the two, in microseconds a call: the loops here are small, so that a few of them are a large
share. *beside a copy* divides medians of an untouched program and of a copy that nobody records,
both without their first step: what differs there is also what recording adds, and how unlike two
runs on this machine are (*copies*: the spread of the copies themselves, half the distance between
their quartiles). Times are a section's with what is inside it, a closure's forward in its
optimizer; a step's are without validations and checkpoints, of steps that finished. What nobody can
see who does not know the program is *unseen*.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).parents[1]))
from loop_programs import BETWEEN, LOOPS, PARTS, read_watch, start_loop, true_counts

ROUNDS = 5
STYLES = ("untouched", "plain", "watched")
BEYOND = 0.03
STEP = "step"
CLOCKED = [
    "lightning_fit",
    "lightning_by_hand",
    "fabric_loop",
    "trainer_loop",
    "accelerate_loop",
    "trl_sft",
]


class Spent(NamedTuple):
    """All calls of a section together, or all steps."""

    ns: int
    calls: int


def by_stopwatch(ended, true, *, warm):
    """What was spent in each section, and in all steps without what they are interrupted for."""
    watched, spent = read_watch(ended), defaultdict(list)
    finished = len(watched.steps_ns) - bool(true.unfinished)
    steps_ns = dict(enumerate(watched.steps_ns[:finished]))
    for name, step, _, took_ns in watched.parts:
        if name in BETWEEN.values() and step in steps_ns:
            steps_ns[step] -= took_ns
        if name in BETWEEN.values() or not (warm and step == 0):
            spent[name].append(took_ns)
    if steps_ns:  # not every framework has places for a stopwatch around its steps
        spent[STEP] = [took_ns for step, took_ns in steps_ns.items() if step or not warm]
    return {name: Spent(sum(all_ns), len(all_ns)) for name, all_ns in spent.items()}


def by_recording(ended, *, warm):
    """The same, as it was recorded."""
    kept = "n > 0" if warm else "true"
    rows = ended.rows(
        f"SELECT name, sum(sum_ns)::BIGINT AS ns, sum(count)::BIGINT AS calls FROM sections "
        f"WHERE name IN {(*PARTS.values(), *BETWEEN.values())} AND path NOT LIKE '%validate/%' "
        f"AND (n IS NULL OR {kept}) GROUP BY name UNION ALL "
        f"SELECT '{STEP}', sum(duration_ns)::BIGINT, count(*) FROM steps "
        f"WHERE phase = 'train' AND NOT error AND {kept}"
    )
    return {row["name"]: Spent(row["ns"], row["calls"]) for row in rows if row["ns"]}


def run_all(loops, rounds):
    """What each start of each loop and style has left."""
    order = [(name, style) for name in loops for style in STYLES] * rounds
    random.shuffle(order)
    left = defaultdict(list)
    for done, (name, style) in enumerate(order, start=1):
        folder = Path(tempfile.mkdtemp(prefix=f"loops-{name}-"))
        ended = start_loop(name, style, folder)
        left[name, style].append(ended if style == "plain" else ended.settled())
        print(f"\r{done} of {len(order)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return left


def in_one_run(ends, true):
    """Of each section: its ratio, and microseconds that are missing of a call; medians."""
    found = defaultdict(list)
    for ended in ends:
        measured, recorded = by_stopwatch(ended, true, warm=False), by_recording(ended, warm=False)
        for name in measured.keys() & recorded.keys():
            ns, calls = measured[name]
            found[name].append((recorded[name].ns / ns, (ns - recorded[name].ns) / calls / 1e3))
    return {name: [*map(statistics.median, zip(*each, strict=True))]
            for name, each in found.items()}  # fmt: skip


def medians(spent):
    """Of each section, over all runs; and by how much the runs differ."""
    found = defaultdict(list)
    for run in spent:
        for name, (ns, _) in run.items():
            found[name].append(ns)
    return {name: (statistics.median(all_ns), spread(all_ns)) for name, all_ns in found.items()}


def spread(values):
    """Half the distance between the quartiles, as a share of the median."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / middle if middle else 0.0


def print_table(loops, left):
    beyond = []
    print(f"{'loop':<20}{'section':<12}{'ms':>8}{'in one run':>12}{'short':>10}"
          f"{'beside a copy':>15}{'copies':>9}")  # fmt: skip
    for loop in loops:
        true = true_counts(loop)[0]
        in_one = in_one_run(left[loop, "watched"], true)
        recorded = medians(by_recording(ended, warm=True) for ended in left[loop, "untouched"])
        copied = medians(by_stopwatch(ended, true, warm=True) for ended in left[loop, "plain"])
        unseen = {PARTS.get(kind, STEP) for kind in true.unseen}
        for name in (STEP, *PARTS.values(), *BETWEEN.values()):
            if name not in copied:
                continue
            spent, uneven = copied[name]
            ratio, short_us = in_one.get(name, (None, None))
            beside = recorded[name][0] / spent if name in recorded and spent else None
            short = told(short_us, ".1f", " µs")
            print(f"{loop:<20}{name:<12}{spent / 1e6:>8.1f}{told(ratio):>12}{short:>10}"
                  f"{told(beside):>15}{uneven:>9.1%}")  # fmt: skip
            if name not in unseen and (ratio is None or abs(ratio - 1) > BEYOND):
                beyond.append(f"{loop} {name} {told(ratio)} ({short})")
    print(f"\nbeyond {BEYOND:.0%} in one run: {', '.join(beyond) or 'none'}")


def told(value, how=".3f", unit=""):
    return "unseen" if value is None else f"{value:{how}}{unit}"


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    loops = CLOCKED if sys.argv[2:] == ["frameworks"] else sys.argv[2:] or LOOPS
    print_table(loops, run_all(loops, rounds))


if __name__ == "__main__":
    main()
