"""The points that a tracker must show of a run, by the run's own tables."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from otel_mlperf.store.table_reader import Store

if TYPE_CHECKING:
    from pathlib import Path

_ALL = {"scalars": 0, "tensors": 0}
_WITHOUT_STEP = ("readings/", "run/", "result/")
_OUTCOMES = ["running", "finished", "interrupted", "killed", "failed"]


def in_tables(run_folder: Path) -> Counter[tuple]:
    """Rank, name, value and time of each; and the step's number, where the table has one."""
    store = Store(run_folder)
    found: Counter[tuple] = Counter()
    for row in store.records("SELECT * FROM steps"):
        name, value = f"{row['phase']}/step_duration_s", row["duration_ns"] / 1e9
        found[row["rank"], name, value, row["end_ns"], row["number"]] += 1
    for row in store.records('SELECT * FROM "values"'):
        name = f"{row['phase']}/{row['name']}"
        found[row["rank"], name, row["value"], row["time_ns"], row["number"]] += 1
    for row in store.records("SELECT * FROM readings"):
        name = "/".join(("readings", row["name"], *json.loads(row["labels"]).values()))
        found[row["rank"], name, row["value"], row["time_ns"], None] += 1
    for row in store.records("SELECT * FROM processes WHERE outcome != 'running'"):
        ended = {f"result/{name}": value for name, value in json.loads(row["result"]).items()}
        ended["run/outcome"] = _OUTCOMES.index(row["outcome"])
        for name, value in ended.items():
            found[row["rank"], name, value, row["end_ns"], None] += 1
    return found


def in_event_files(folder: Path) -> Counter[tuple]:
    """The same by TensorBoard, which keeps values as 32 bits; of readings without a number."""
    found: Counter[tuple] = Counter()
    for place in folder.iterdir():
        rank = int(place.name[4:]) if place.name.startswith("rank") else None
        shown = loaded(place)
        for tag in shown.Tags()["scalars"]:
            for event in shown.Scalars(tag):
                number = None if tag.startswith(_WITHOUT_STEP) else event.step
                found[rank, tag, event.value, event.wall_time, number] += 1
    return found


def of_the_program(points: Counter[tuple]) -> Counter[tuple]:
    """Without findings, which depend on who else uses the machine."""
    return Counter(
        {point: count for point, count in points.items() if not point[1].startswith("findings/")}
    )


def rounded(points: Counter[tuple]) -> Counter[tuple]:
    """As an event file holds them."""
    found: Counter[tuple] = Counter()
    for (rank, tag, value, time_ns, number), count in points.items():
        found[rank, tag, float(np.float32(value)), time_ns / 1e9, number] += count
    return found


def loaded(place: Path) -> EventAccumulator:
    """Whatever TensorBoard reads in a folder of event files."""
    shown = EventAccumulator(str(place), size_guidance=_ALL)
    shown.Reload()
    return shown
