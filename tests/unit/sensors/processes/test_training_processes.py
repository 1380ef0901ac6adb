"""Readings of training processes and their children are the kernel's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from kernel_files import of, values, write_files
from open_files import open_files

from otel_mlperf import names
from otel_mlperf.sensors.processes import training_processes
from otel_mlperf.sensors.processes.process_usage import PAGE_BYTES
from otel_mlperf.sensors.processes.training_processes import ProcessSensor
from otel_mlperf.sensors.psutil_calls import uptime_s

TICK = os.sysconf("SC_CLK_TCK")
TRAIN, WORKER, TOOL = 100, 101, 102
WORKING = """
import os, sys
children = []
for _ in range(2):
    if not (pid := os.fork()):
        sys.stdin.read()
        os._exit(0)
    children.append(pid)
print(*children, flush=True)
sys.stdin.read()
"""


def stat(pid, command, parent, user, system, start=1000, waited=(0, 0)):
    times = f"{user} {system} {waited[0] * TICK} {waited[1] * TICK}"
    numbers = f"0 0 0 0 0 50 0 5 0 {times} 20 0 3 0 {int(start * TICK)} 0 0"
    return f"{pid} ({command}) S {parent} {numbers} 0 0\n"


def process(pid, parent, *, command="python", cmdline="python\0train.py\0", user=0, resident=10):
    return {
        f"proc/{pid}/stat": stat(pid, command, parent, user * TICK, 0),
        f"proc/{pid}/statm": f"{9 * resident} {resident} 0 0 0 0 0\n",
        f"proc/{pid}/cmdline": cmdline,
        f"proc/{pid}/status": "Cpus_allowed_list:\t0-3\n",
        f"proc/{pid}/io": "rchar: 9\nread_bytes: 4096\nwrite_bytes: 512\n",
        f"proc/{pid}/task/{pid}/children": "",
        f"proc/{pid}/task/{pid}/status": "voluntary_ctxt_switches:\t6\n"
        "nonvoluntary_ctxt_switches:\t2\n",
        f"proc/{pid}/smaps_rollup": "Rss: 9 kB\nPss:  4 kB\n",
        f"proc/{pid}/fd/0": "",
    }


@pytest.mark.parametrize(("known", "seconds"), [({}, 3), ({TRAIN: 107}, 8)])
def test_the_thread_of_the_loop_is_the_one_that_is_told(tmp_path, known, seconds):
    """The first, or that of a library which trains in another one."""
    files = process(TRAIN, 1)
    for thread, used in ((TRAIN, 3), (107, 8)):
        files[f"proc/{TRAIN}/task/{thread}/schedstat"] = f"{used}000000000 1000000000 7\n"
    write_files(tmp_path, files)
    sensor = ProcessSensor(
        "basic", pids=lambda: [TRAIN], loop_threads=lambda: known, proc=tmp_path / "proc",
        sys=tmp_path / "sys",
    )  # fmt: skip
    measured = sensor.read()
    sensor.close()

    (used,) = [one.value for one in measured if one.metric == names.MAIN_THREAD_CPU_TIME.name]
    assert used == seconds


class Clock:
    """A clock that stands until it is moved."""

    now_s = 50.0

    def __call__(self):
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def tree(tmp_path):
    """A training process with a worker and another child."""
    files = process(TRAIN, 1, user=10, resident=100)
    files |= process(WORKER, TRAIN, command="pt_data_worker", user=20, resident=50)
    files |= process(TOOL, TRAIN, command="nvcc", cmdline="nvcc\0", user=5, resident=5)
    files[f"proc/{TRAIN}/task/{TRAIN}/children"] = f"{WORKER} {TOOL} "
    return write_files(tmp_path, files)


@pytest.fixture
def follow(tree, clock):
    sensors = []

    def followed(level="basic", pids=(TRAIN,), uptime_s=lambda: 2000.0):
        sensor = ProcessSensor(
            level, proc=tree / "proc", sys=tree / "sys", clock=clock, uptime_s=uptime_s
        )
        sensor.follow(pids)
        sensors.append(sensor)
        return sensor

    yield followed
    for sensor in sensors:
        sensor.close()


def test_children_are_summed_by_what_they_are_for(follow):
    """The training process, its workers and its other children are three series."""
    found = follow().read()

    assert of(names.PROCESS_CPU_TIME, found) == {
        ("user", "main"): 10, ("system", "main"): 0,
        ("user", "worker"): 20, ("system", "worker"): 0,
        ("user", "other"): 5, ("system", "other"): 0,
        ("user", "ended"): 0, ("system", "ended"): 0,
    }  # fmt: skip
    sizes = {"main": 100, "worker": 50, "other": 5}
    assert of(names.PROCESS_MEMORY, found) == {(k,): v * PAGE_BYTES for k, v in sizes.items()}
    share = 100 * PAGE_BYTES / psutil.virtual_memory().total
    assert of(names.PROCESS_MEMORY_UTILIZATION, found)["main",] == share
    assert of(names.PROCESS_COUNT, found) == {("worker",): 1, ("other",): 1}
    assert of(names.PROCESS_UPTIME, found) == {(): 1000}
    assert {measurement.pid for measurement in found} == {TRAIN}


def test_the_first_reading_has_no_utilization(follow):
    """Since when the processes have worked is not known yet."""
    assert of(names.PROCESS_CPU_UTILIZATION, follow().read()) == {}


def test_utilization_is_of_the_cpus_that_the_process_may_use(follow, tree, clock):
    """CPU time between two readings / (elapsed time x CPUs): 6 s in 2 s on 4 CPUs is 0.75."""
    sensor = follow()
    sensor.read()
    clock.now_s += 2
    write_files(tree, {f"proc/{TRAIN}/stat": stat(TRAIN, "python", 1, 16 * TICK, 0)})

    assert of(names.PROCESS_CPU_UTILIZATION, sensor.read()) == {
        ("main",): 0.75,
        ("worker",): 0,
        ("other",): 0,
    }


def test_counts_of_a_child_that_ended_stay(follow, tree, clock):
    """A counter never falls; what is no count is zero once nobody is left."""
    sensor = follow("detailed")
    before = values(sensor.read())
    # The kernel answers no more on the open files of a process that ended.
    write_files(
        tree, {f"proc/{WORKER}/stat": "", f"proc/{TRAIN}/task/{TRAIN}/children": f"{TOOL} "}
    )
    clock.now_s += 2
    after = values(sensor.read())

    assert after[names.PROCESS_CPU_TIME.name, "user", "worker"] == 20
    assert after[names.PROCESS_DISK_IO.name, "read", "worker"] == 4096
    assert after[names.PROCESS_MEMORY.name, "worker"] == 0
    assert after[names.PROCESS_COUNT.name, "worker"] == 0
    assert before.keys() <= after.keys()


def test_what_no_reading_saw_of_children_that_ended_is_counted_once(follow, tree):
    """The parent's sum, without what was read of them; it stays where a sum is behind."""
    sensor = follow()
    ended = [of(names.PROCESS_CPU_TIME, sensor.read())]
    # Of the worker 20 s were read. It used 3 s more, and another child of 7 s was never met.
    for waited in ((0, 0), (23 + 7, 2)):
        write_files(
            tree,
            {
                f"proc/{WORKER}/stat": "",
                f"proc/{TRAIN}/stat": stat(TRAIN, "python", 1, 10 * TICK, 0, waited=waited),
                f"proc/{TRAIN}/task/{TRAIN}/children": f"{TOOL} ",
            },
        )
        ended.append(of(names.PROCESS_CPU_TIME, sensor.read()))

    assert [found["user", "ended"] for found in ended] == [0, 0, 3 + 7]
    assert [found["system", "ended"] for found in ended] == [0, 0, 2]
    assert [found["user", "worker"] for found in ended] == [20, 20, 20]


ENDED_CHILD = """
import json, os, resource, subprocess, sys
from otel_mlperf import names
from otel_mlperf.sensors.processes.training_processes import ProcessSensor

work = "import time\\nwhile time.process_time() < 0.3: pass"
sensor = ProcessSensor(pids=lambda: (os.getpid(),))
sensor.read()
subprocess.run([sys.executable, "-c", work], check=True)
times = [one for one in sensor.read() if one.metric == names.PROCESS_CPU_TIME.name]
labels = {tuple(one.labels.values()): one.value for one in times}
found = {mode: seconds for (mode, role), seconds in labels.items() if role == "ended"}
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([found, {"user": used.ru_utime, "system": used.ru_stime}]))
"""


def test_children_that_no_reading_met_used_what_the_kernel_says():
    """As ``getrusage`` has it for a process that has waited for all that ended.

    In a process of its own: this one has children that go on, and these have children.
    """
    text = subprocess.check_output([sys.executable, "-c", ENDED_CHILD], text=True)
    found, used = json.loads(text)

    assert found == {mode: pytest.approx(seconds, abs=2 / TICK) for mode, seconds in used.items()}
    assert sum(used.values()) >= 0.3


def test_a_training_process_that_another_waited_for_is_counted_in_its_own_family(follow, tree):
    """With all that it had waited for itself."""
    sensor = follow(pids=(TRAIN, WORKER))
    write_files(
        tree,
        {f"proc/{WORKER}/stat": stat(WORKER, "python", TRAIN, 20 * TICK, 0, waited=(4, 1))},
    )
    sensor.read()
    write_files(
        tree,
        {
            f"proc/{WORKER}/stat": "",
            f"proc/{TRAIN}/stat": stat(TRAIN, "python", 1, 10 * TICK, 0, waited=(24, 1)),
            f"proc/{TRAIN}/task/{TRAIN}/children": f"{TOOL} ",
        },
    )
    sensor.follow((TRAIN,))

    found = of(names.PROCESS_CPU_TIME, sensor.read())
    assert (found["user", "ended"], found["system", "ended"]) == (0, 0)


def test_a_child_that_has_just_begun_is_not_judged_yet(follow, tree):
    """It may be about to become another program."""
    young = stat(WORKER, "python", TRAIN, 0, 0, start=1999.5)
    write_files(tree, {f"proc/{WORKER}/stat": young})
    uptimes_s = iter([2000.0, 2001.0])
    sensor = follow(uptime_s=lambda: next(uptimes_s))
    assert of(names.PROCESS_COUNT, sensor.read()) == {("other",): 1}

    assert of(names.PROCESS_COUNT, sensor.read()) == {("other",): 1, ("worker",): 1}


def test_a_child_that_is_a_training_process_itself_is_not_counted_twice(follow):
    """Each of the followed processes has its own readings."""
    found = follow(pids=(TRAIN, WORKER)).read()

    ours = [m for m in found if m.pid == TRAIN]
    assert of(names.PROCESS_COUNT, ours) == {("other",): 1}
    theirs = [m for m in found if m.pid == WORKER]
    assert of(names.PROCESS_CPU_TIME, theirs)["user", "main"] == 20


def test_levels_add_to_each_other(follow):
    """Each gives what the one before it gives, and more."""
    basic, detailed, most = (
        {m.metric for m in follow(level).read()} for level in ("basic", "detailed", "comprehensive")
    )
    added = (
        names.PROCESS_MEMORY_VIRTUAL,
        names.PROCESS_FAULTS,
        names.PROCESS_DISK_IO,
        names.PROCESS_FILES,
        names.PROCESS_CONTEXT_SWITCHES,
    )

    assert detailed - basic == {metric.name for metric in added}
    assert most - detailed == {names.PROCESS_MEMORY_PSS.name}
    assert basic < detailed < most


def test_what_a_process_does_not_show_is_absent(follow, tree):
    """Files that only their owner may read take their own readings away, and no others."""
    for name in ("io", "smaps_rollup", "status"):
        (tree / f"proc/{TRAIN}/{name}").unlink()
    shutil.rmtree(tree / f"proc/{TRAIN}/fd")
    found = {
        m.metric
        for m in follow("comprehensive").read()
        if m.labels.get(names.PROCESS_ROLE) == "main"
    }

    absent = {names.PROCESS_DISK_IO, names.PROCESS_FILES, names.PROCESS_MEMORY_PSS}
    assert not found & {metric.name for metric in absent}
    assert {names.PROCESS_CPU_TIME.name, names.PROCESS_CONTEXT_SWITCHES.name} <= found


def test_a_process_that_is_gone_says_nothing(follow, tree):
    """Neither of itself nor of children."""
    assert follow(pids=(99,)).read() == []


@pytest.fixture
def training():
    """A real process with two forked workers, all of them waiting."""
    child = subprocess.Popen(
        [sys.executable, "-c", WORKING], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    workers = [int(pid) for pid in child.stdout.readline().split()]
    yield child.pid, workers
    child.communicate()


def later_s():
    """The uptime in ten seconds, so that no child is too young."""
    return uptime_s() + 10


def counted(pid):
    """What the kernel has counted so far of one process."""
    folder = Path("/proc", str(pid))
    fields = (folder / "stat").read_text().rpartition(")")[2].split()
    found = {
        (names.PROCESS_CPU_TIME, "user"): int(fields[11]) / TICK,
        (names.PROCESS_CPU_TIME, "system"): int(fields[12]) / TICK,
        (names.PROCESS_FAULTS, "minor"): int(fields[7]),
    }
    for file, key, *of_metric in (
        ("io", "read_bytes", names.PROCESS_DISK_IO, "read"),
        ("io", "write_bytes", names.PROCESS_DISK_IO, "write"),
        ("status", "voluntary_ctxt_switches", names.PROCESS_CONTEXT_SWITCHES, "voluntary"),
        ("status", "nonvoluntary_ctxt_switches", names.PROCESS_CONTEXT_SWITCHES, "involuntary"),
    ):
        found[tuple(of_metric)] = line(folder / file, key)
    return found


def line(path, key):
    """The number of one line of a file of the kernel."""
    lines = (text.partition(":") for text in path.read_text().splitlines())
    (word,) = (rest.split()[0] for name, _, rest in lines if name == key)
    return int(word)


def summed(pids):
    """Sums over the processes."""
    counts = list(map(counted, pids))
    return {key: sum(one[key] for one in counts) for key in counts[0]}


@pytest.fixture(params=["own", "psutil"])
def real(request, training, tmp_path):
    """A sensor of a real family: by our own code, or as where there is no ``/proc``."""
    proc = {"own": Path("/proc"), "psutil": tmp_path / "none"}[request.param]
    sensor = ProcessSensor("comprehensive", proc=proc, uptime_s=later_s)
    sensor.follow([training[0]])
    yield sensor
    sensor.close()


def test_real_processes_are_as_the_kernel_says(real, training):
    """Counts lie between two of its readings, sizes agree to 4 MiB, numbers of things exactly."""
    pid, workers = training
    roles = {"main": [pid], "worker": workers}
    before = {role: summed(pids) for role, pids in roles.items()}
    found = values(real.read())
    after = {role: summed(pids) for role, pids in roles.items()}

    assert found[names.PROCESS_COUNT.name, "worker"] == 2
    age_s = later_s() - float(Path(f"/proc/{pid}/stat").read_text().split()[21]) / TICK
    assert found[names.PROCESS_UPTIME.name,] == pytest.approx(age_s, abs=60)
    for role, pids in roles.items():
        for (metric, label), low in before[role].items():
            if (metric.name, label, role) in found:
                value = found[metric.name, label, role]
                assert low - 1e-9 <= value <= after[role][metric, label] + 1e-9
        folders = [Path("/proc", str(one)) for one in pids]
        exactly = {
            names.PROCESS_THREADS: sum(line(one / "status", "Threads") for one in folders),
            names.PROCESS_FILES: sum(len(list((one / "fd").iterdir())) for one in folders),
        }
        assert {metric: found[metric.name, role] for metric in exactly} == exactly
        for metric, file, key in (
            (names.PROCESS_MEMORY_VIRTUAL, "status", "VmSize"),
            (names.PROCESS_MEMORY, "smaps_rollup", "Rss"),
            (names.PROCESS_MEMORY_PSS, "smaps_rollup", "Pss"),
        ):
            if (metric.name, role) in found:
                size = sum(line(one / file, key) << 10 for one in folders)
                assert found[metric.name, role] == pytest.approx(size, abs=4 << 20)


def test_without_proc_only_what_linux_alone_counts_is_absent(training, tmp_path):
    """Faults, waits for a CPU, switches, proportional size, calls to write, and control groups."""
    found = []
    for proc in (Path("/proc"), tmp_path / "none"):
        sensor = ProcessSensor("comprehensive", proc=proc, uptime_s=later_s)
        sensor.follow([training[0]])
        sensor.read()
        found.append({one.metric for one in sensor.read()})
        sensor.close()
    linux, elsewhere = found

    absent = {names.PROCESS_FAULTS, names.PROCESS_RUN_DELAY, names.PROCESS_CONTEXT_SWITCHES}
    absent |= {names.PROCESS_MEMORY_PSS, names.PROCESS_WRITE_CALLS}
    absent |= {names.MAIN_THREAD_CPU_TIME, names.MAIN_THREAD_RUN_DELAY}
    assert elsewhere == {
        name
        for name in linux - {metric.name for metric in absent}
        if not name.startswith("linux.cgroup.")
    }


def test_where_children_that_ended_are_not_counted_there_is_no_time_of_them(
    training, tmp_path, monkeypatch
):
    """Psutil returns zeros on macOS: absent, not zero."""
    monkeypatch.setattr(training_processes, "LINUX", False)
    sensor = ProcessSensor("basic", proc=tmp_path / "none", uptime_s=later_s)
    sensor.follow([training[0]])
    roles = {role for _, role in of(names.PROCESS_CPU_TIME, sensor.read())}
    sensor.close()

    assert roles == {"main", "worker"}


def test_without_proc_a_family_ends_with_its_process(training, tmp_path):
    """And children of another training process are its own."""
    pid, (first, _) = training
    sensor = ProcessSensor("basic", proc=tmp_path / "none", uptime_s=later_s)
    sensor.follow([pid, first])
    counts = [one for one in sensor.read() if one.metric == names.PROCESS_COUNT.name]
    sensor.follow([2**22 + 1])

    assert {(one.pid, one.value) for one in counts} == {(pid, 1)}
    assert sensor.read() == []
    sensor.close()


LOADING = """
import sys
import torch
from torch.utils.data import DataLoader
batches = iter(DataLoader(range(1000), num_workers=2))
next(batches)
print(flush=True)
sys.stdin.read()
"""
STARTING = """
import multiprocessing, sys
def wait(ready, end):
    ready.set()
    end.wait()
if __name__ == "__main__":
    start = multiprocessing.get_context(sys.argv[1])
    end, ready = start.Event(), [start.Event(), start.Event()]
    workers = [start.Process(target=wait, args=(one, end)) for one in ready]
    for worker in workers:
        worker.start()
    for one in ready:
        one.wait()
    print(flush=True)
    sys.stdin.read()
    end.set()
    for worker in workers:
        worker.join()
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("script", "method"),
    [(LOADING, "fork"), (STARTING, "fork"), (STARTING, "spawn"), (STARTING, "forkserver")],
    ids=["DataLoader", "fork", "spawn", "forkserver"],
)
def test_workers_are_found_however_they_were_started(tmp_path, script, method):
    """Two workers are two workers; trackers and fork servers are other children."""
    write_files(tmp_path, {"train.py": script})
    command = [sys.executable, str(tmp_path / "train.py"), method]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        sensor = ProcessSensor("basic", uptime_s=later_s)
        sensor.follow([child.pid])
        found = of(names.PROCESS_COUNT, sensor.read())
        sensor.close()

    assert found["worker",] == 2
    assert found.get(("other",), 0) == {"spawn": 1, "forkserver": 2}.get(method, 0)


def test_points_carry_the_labels_that_the_vocabulary_names(follow):
    """A point has no label that its metric is not documented with, and none is of a device."""
    labels = {metric.name: set(metric.labels) for metric in names.METRICS}

    for point in follow("comprehensive").read():
        assert set(point.labels) <= labels[point.metric]
        assert point.device == ""


def test_files_of_a_process_that_ended_are_given_back(training):
    """Neither descriptors nor readings stay."""
    pid, _ = training
    before = open_files()
    sensor = ProcessSensor("comprehensive")
    sensor.follow([pid])
    assert sensor.read()
    sensor.follow([])
    assert sensor.read() == []
    sensor.close()

    assert not open_files() - before
