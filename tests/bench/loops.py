"""Are sections of untouched loops as long as a stopwatch says that is placed by hand in a copy?

    python tests/bench/loops.py [ROUNDS [LOOP ...]]

Each loop of ``tests/programs/loops`` is run untouched, as a copy with a stopwatch, and as that copy
under ``otel-mlperf run``, all in shuffled order. *in one run* divides what was recorded by what the
stopwatch of the same process has measured; *beside a copy* divides medians of an untouched program
and of a copy that nobody records, both without their first step: what differs there is also what
recording adds, and how unlike two runs on this machine are (*copies*: the spread of the copies
themselves, half the distance between their quartiles). Times are a section's with what is inside
it, a closure's forward in its optimizer; a step's are without validations and checkpoints.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from loop_programs import BETWEEN, LOOPS, PARTS, read_watch, start_loop

ROUNDS = 5
STYLES = ("untouched", "plain", "watched")
BEYOND = 0.03
STEP = "step"


def by_stopwatch(ended, *, warm):
    """Nanoseconds of each section, and of all steps without what they are interrupted for."""
    watched, spent = read_watch(ended), defaultdict(int)
    steps_ns = dict(enumerate(watched.steps_ns))
    for name, step, _, took_ns in watched.parts:
        if name in BETWEEN.values() and step in steps_ns:
            steps_ns[step] -= took_ns
        if name in BETWEEN.values() or not (warm and step == 0):
            spent[name] += took_ns
    spent[STEP] = sum(took_ns for step, took_ns in steps_ns.items() if step or not warm)
    return spent


def by_recording(ended, *, warm):
    """The same, as it was recorded."""
    kept = "n > 0" if warm else "true"
    rows = ended.rows(
        f"SELECT name, sum(sum_ns)::BIGINT AS ns FROM sections WHERE name IN "
        f"{(*PARTS.values(), *BETWEEN.values())} AND path NOT LIKE '%validate/%' "
        f"AND (n IS NULL OR {kept}) GROUP BY name UNION ALL "
        f"SELECT '{STEP}', sum(duration_ns)::BIGINT FROM steps WHERE phase = 'train' AND {kept}"
    )
    return {row["name"]: row["ns"] for row in rows if row["ns"]}


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


def ratios_in_one_run(ends):
    """By section, in each run with both."""
    found = defaultdict(list)
    for ended in ends:
        measured, recorded = by_stopwatch(ended, warm=False), by_recording(ended, warm=False)
        for name in measured:
            if name in recorded:
                found[name].append(recorded[name] / measured[name])
    return found


def medians(ends, read):
    """By section, over all runs; and by how much the runs differ."""
    found = defaultdict(list)
    for ended in ends:
        for name, spent in read(ended, warm=True).items():
            found[name].append(spent)
    return {name: (statistics.median(all_ns), spread(all_ns)) for name, all_ns in found.items()}


def spread(values):
    """Half the distance between the quartiles, as a share of the median."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / 2 / middle if middle else 0.0


def print_table(loops, left):
    beyond = []
    print(
        f"{'loop':<20}{'section':<12}{'ms':>8}{'in one run':>12}{'beside a copy':>15}{'copies':>9}"
    )
    for loop in loops:
        in_one = ratios_in_one_run(left[loop, "watched"])
        recorded = medians(left[loop, "untouched"], by_recording)
        copied = medians(left[loop, "plain"], by_stopwatch)
        for name in (STEP, *PARTS.values(), *BETWEEN.values()):
            if name not in copied:
                continue
            spent, uneven = copied[name]
            ratio = statistics.median(in_one[name]) if in_one.get(name) else None
            beside = recorded[name][0] / spent if name in recorded and spent else None
            print(f"{loop:<20}{name:<12}{spent / 1e6:>8.1f}{told(ratio):>12}{told(beside):>15}"
                  f"{uneven:>8.1%}")  # fmt: skip
            if ratio is None or abs(ratio - 1) > BEYOND:
                beyond.append(f"{loop} {name} {told(ratio)}")
    print(f"\nbeyond {BEYOND:.0%} in one run: {', '.join(beyond) or 'none'}")


def told(ratio):
    return "unseen" if ratio is None else f"{ratio:.3f}"


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    loops = sys.argv[2:] or LOOPS
    print_table(loops, run_all(loops, rounds))


if __name__ == "__main__":
    main()
