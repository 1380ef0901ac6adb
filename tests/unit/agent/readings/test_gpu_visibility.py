"""What samplers say reaches the agent, once and while it is fresh."""

from __future__ import annotations

import pytest

from otel_mlperf import names
from otel_mlperf.agent.readings.gpu_visibility import (
    AGENT,
    Sampled,
    TaskGpus,
    View,
    detect_place,
    read_view,
    write_sampled,
    write_view,
)
from otel_mlperf.agent.readings.reading_rounds import find_owners
from otel_mlperf.journal.meta import JournalMeta
from otel_mlperf.sensors.gpus.gpu import Device, Instance
from otel_mlperf.sensors.measurement import Measurement

S = 10**9
PART = Instance("MIG-0", 1, 0)
GPUS = (Device("GPU-0", 0, "H100", (PART,)), Device("GPU-1", 1, "H100"), Device("GPU-2", 2, "H100"))


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


def power(device: str, watts: float) -> Measurement:
    return Measurement(names.HW_POWER.name, {names.HW_ID: device}, watts, device=device)


def late(pid: int) -> Measurement:
    return Measurement(names.SAMPLER_LATE.name, {names.SAMPLER: "gpu"}, 1.0, pid)


def test_each_device_is_told_once_and_by_the_agent_first(tmp_path, clock) -> None:
    """Of what a sampler says nothing is taken that the agent sees, instances included."""
    source = TaskGpus(tmp_path, lambda: GPUS[:1], 5.0, clock=clock)
    said = [power("GPU-0", 1), power("MIG-0", 2), power("GPU-1", 3), power("GPU-1", 4), late(7)]
    write_sampled(tmp_path, "a", Sampled(99 * S, said))
    write_sampled(tmp_path, "b", Sampled(99 * S, [power("GPU-1", 5), power("GPU-2", 6), late(8)]))

    assert source.take() == [
        power("GPU-1", 3),
        power("GPU-1", 4),
        late(7),
        power("GPU-2", 6),
        late(8),
    ]


def test_sampler_that_says_nothing_new_is_not_listened_to(tmp_path, clock) -> None:
    """Its last word holds for three readings, so that one which comes late leaves no hole."""
    source = TaskGpus(tmp_path, tuple, 5.0, clock=clock)
    write_sampled(tmp_path, "a", Sampled(100 * S, [power("GPU-1", 3)]))
    counts = []
    for clock.now_s in (100.0, 115.0, 117.0):
        counts.append(len(source.take()))

    assert counts == [1, 1, 0]


def test_agent_tells_what_it_sees_when_it_has_looked(tmp_path, clock) -> None:
    """Until then its own look is waited for, for two seconds; samplers count without it."""
    looked: list[tuple[Device, ...]] = []
    source = TaskGpus(tmp_path, lambda: looked[-1] if looked else None, 5.0, clock=clock)
    write_sampled(tmp_path, "a", Sampled(100 * S, [power("GPU-1", 3)]))
    assert source.take() is None
    clock.now_s += 3
    assert source.take() == [power("GPU-1", 3)]
    assert read_view(tmp_path, AGENT) is None
    looked.append(GPUS[:2])

    assert source.take() == []
    assert read_view(tmp_path, AGENT).devices == GPUS[:2]
    source.close()
    assert list(tmp_path.iterdir()) == []


def test_views_are_of_ranks_that_are_there(tmp_path, clock) -> None:
    """What is left of a journal that has gone is removed."""
    source = TaskGpus(tmp_path, tuple, 5.0, clock=clock)
    (tmp_path / "1-1-1.journal").touch()
    for name, gpus in (("1-1-1.journal", GPUS[1:2]), ("2-2-1.journal", GPUS[2:])):
        write_view(tmp_path, name, View("there", gpus))
    source.take()

    assert source.views == {"1-1-1.journal": GPUS[1:2]}
    assert not (tmp_path / "2-2-1.journal.gpus").exists()


def test_unreadable_files_are_nobodys_word(tmp_path, clock) -> None:
    """A file that is damaged, or from another version, counts for nothing."""
    source = TaskGpus(tmp_path, tuple, 5.0, clock=clock)
    (tmp_path / "1.journal").touch()
    for name in ("1.journal.gpus", "agent.gpus", "a.sampled"):
        (tmp_path / name).write_bytes(b"\x93nothing")

    assert source.take() == []
    assert source.views == {}


def test_rank_counts_the_gpus_that_it_sees_itself(tmp_path) -> None:
    """Two tasks that both count from zero have not the same GPU."""

    def meta(rank: int, **visible: str) -> JournalMeta:
        return JournalMeta(
            run_id="r", run_name="n", run_folder="/x", service="s", host="h", pid=rank + 1,
            rank=rank, local_rank=rank, run_span=7, monotonic_ns=5, unix_ns=9, visible=visible,
        )  # fmt: skip

    mains = {name: meta(rank, CUDA_VISIBLE_DEVICES="0") for rank, name in enumerate("abc")}
    views = {"b": GPUS[1:2], "c": GPUS[2:]}
    whole = (Device("GPU-9", 0, "H100"),)

    found = find_owners(whole, mains, {"c": frozenset({"GPU-2"})}, tmp_path, views)
    assert found == {"GPU-9": "a", "GPU-1": "b", "GPU-2": "c"}


def test_place_tells_tasks_apart(tmp_path) -> None:
    """Another control group, or another container, may hide other devices."""
    places = []
    for group, given in (("task_0", "all"), ("task_1", "all"), ("task_0", "GPU-1")):
        (tmp_path / "self").mkdir(exist_ok=True)
        (tmp_path / "self" / "cgroup").write_text(f"0::/job/{group}\n")
        places.append(detect_place({"NVIDIA_VISIBLE_DEVICES": given}, tmp_path))

    assert len(set(places)) == 3
