"""How often does ``compare`` call equal runs different, and how often does it find three percent?

python tests/bench/comparison.py [--pairs 1000] [--steps 300] [RUN …]

Pairs of runs are drawn from one pool of steps, in blocks, so that what steps remember of each other
stays. Of equal pairs each row that is called slower or faster is a false alarm; in the others one
section takes 3 % longer, and counts as found where the word of its row is *slower*. Pools are made,
by how far the times of a section lie apart and how long they remember; with a RUN its own steps are
one, too. What is drawn depends on nothing but ``--seed``.
"""

from __future__ import annotations

import argparse

import numpy as np

from otel_mlperf.analysis.comparison.comparison import compare_runs
from otel_mlperf.analysis.comparison.comparison_shapes import RunMeasures
from otel_mlperf.analysis.comparison.run_measures import STEP, measure_times
from otel_mlperf.analysis.steps.step_series import read_section_series
from otel_mlperf.store.run_folders import find_run
from otel_mlperf.store.table_reader import Store

SECTIONS = {"data wait": 2e6, "forward": 10e6, "backward": 20e6, "optimizer": 5e6}
SLOWED = "backward"
POOL, BLOCK = 20_000, 25


def made(rng, spread, memory=0.0, stalls=0.0):
    """A pool of steps: each section's times lie ``spread`` apart, and remember (AR 1)."""
    pool = {}
    for name, usual_ns in SECTIONS.items():
        shocks = rng.standard_normal(POOL) * np.sqrt(1 - memory**2)
        values = np.empty(POOL)
        last = 0.0
        for at, shock in enumerate(shocks.tolist()):
            values[at] = last = memory * last + shock
        pool[name] = usual_ns * np.exp(spread * values)
    pool[SLOWED][rng.random(POOL) < stalls] *= 5.0
    return pool


def recorded(run):
    """The steps of a run as a pool."""
    folder = find_run(run)
    series = read_section_series(Store(folder.path), "train", has_warm_up=True)
    return {one.name: one.own_ns for one in series}


def drawn(rng, pool, steps, slowed="", factor=1.0):
    """One run of so many steps, in blocks of the pool."""
    size = len(next(iter(pool.values())))
    first = rng.integers(0, size - BLOCK, -(-steps // BLOCK))
    at = (first[:, None] + np.arange(BLOCK)).ravel()[:steps]
    times = {name: of[at] * (factor if name == slowed else 1.0) for name, of in pool.items()}
    rows = [measure_times(STEP, "", sum(times.values()))]
    rows += [measure_times(name, "", of) for name, of in times.items()]
    return RunMeasures(
        id="", short_id="", name="", outcome="", phase="train", steps=steps, left_out={},
        times=rows, numbers={}, params={}, result={}, last={}, machine={},
    )  # fmt: skip


def judged(rng, pool, pairs, steps, slowed, factor):
    """Pairs with a false alarm, pairs in which the slower section was found, and with any other."""
    alarms = found = others = 0
    for _ in range(pairs):
        words = words_of(drawn(rng, pool, steps), drawn(rng, pool, steps))
        alarms += any(word in ("slower", "faster") for word in words.values())
        words = words_of(drawn(rng, pool, steps), drawn(rng, pool, steps, slowed, factor))
        found += words[slowed] == "slower"
        others += any(
            word in ("slower", "faster")
            for name, word in words.items()
            if name not in (slowed, STEP)
        )
    return alarms, found, others


def words_of(before, after):
    return {time.name: time.word for time in compare_runs(before, after).times}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--slower", type=float, default=0.03)
    parser.add_argument("runs", nargs="*")
    given = parser.parse_args()
    rng = np.random.default_rng(given.seed)
    pools = {
        "3 % apart": made(rng, 0.03),
        "5 % apart": made(rng, 0.05),
        "10 % apart": made(rng, 0.10),
        "5 %, and remember 10 steps": made(rng, 0.05, memory=0.9),
        "5 %, 1 step of 100 stalls": made(rng, 0.05, stalls=0.01),
    }
    pools |= {f"run {run}": recorded(run) for run in given.runs}
    print(f"{given.pairs:,} pairs of {given.steps} steps; {given.slower:.0%} slower in one section")
    print(f"{'steps':<30}{'false alarms':>14}{'found':>9}{'another section':>17}")
    for name, pool in pools.items():
        slowed = max(pool, key=lambda section, pool=pool: pool[section].mean())
        counts = judged(rng, pool, given.pairs, given.steps, slowed, 1 + given.slower)
        alarms, found, others = (count / given.pairs for count in counts)
        print(f"{name:<30}{alarms:>14.1%}{found:>9.1%}{others:>17.1%}")


if __name__ == "__main__":
    main()
