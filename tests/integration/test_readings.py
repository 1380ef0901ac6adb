"""Readings of host, processes and GPUs are found in the real Prometheus as they were made."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from itertools import product
from pathlib import Path

import psutil
import pytest
from nvml.scripted import LOST, Reader, Script, uuid_of
from runs import LIMIT_S, PROGRAMS, Ended, adds_up, ending, environment
from servers.running import wait_until

from otel_mlperf import names
from otel_mlperf.sensors.host.host_sensor import HostSensor
from otel_mlperf.sensors.processes.training_processes import ProcessSensor

pytestmark = pytest.mark.servers

METRICS = {metric.name: metric for metric in names.METRICS}
LEVEL = "comprehensive"
HOLD_BYTES = 200 << 20
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
UTILIZATION = names.GPU_UTILIZATION.prometheus


class Job:
    """Two ranks on one node with two scripted GPUs, which rest until they are told to end."""

    def __init__(
        self,
        servers,
        folder: Path,
        library: Path,
        *,
        without: tuple[str, ...] = (),
        **settings: str,
    ) -> None:
        """``without``: what the script of the GPUs lacks from the beginning."""
        self._servers, self.runs = servers, folder / "runs"
        self.script = Script(folder / "gpus", 2)
        self.script.change({}, *without)
        self.nvml, self.id = library, uuid.uuid4().hex
        seen = self.script.environment(library)
        variables = {name: seen[name] for name in ("LD_LIBRARY_PATH", "FAKE_NVML_SCRIPT")}
        variables |= {
            "OTEL_EXPORTER_OTLP_ENDPOINT": servers.otlp_endpoint,
            "OTEL_METRIC_EXPORT_INTERVAL": "400",
            "OTEL_MLPERF_READINGS": LEVEL,
            "OTEL_MLPERF_READINGS_INTERVAL": "400",
            "OTEL_MLPERF_RUN_ID": self.id,
            "OTEL_SERVICE_NAME": self.id,
            "CUDA_VISIBLE_DEVICES": "1,0",
            "WORLD_SIZE": "2",
        }
        self.ranks = [self._start(rank, variables | settings) for rank in ("0", "1")]
        self.pids: list[int] = []

    def __enter__(self) -> Job:
        try:
            self.pids = [int(rank.stdout.readline().split()[1]) for rank in self.ranks]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with ending(self.ranks):
            pass

    def _start(self, rank: str, variables: dict[str, str]) -> subprocess.Popen:
        command = [sys.executable, str(PROGRAMS / "resting.py"), "--hold", str(HOLD_BYTES)]
        return subprocess.Popen(
            command,
            env=environment(self.runs, RANK=rank, LOCAL_RANK=rank, **variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end(self) -> Ended:
        errors = [rank.communicate("end\n", timeout=LIMIT_S)[1] for rank in self.ranks]
        code = max(rank.returncode for rank in self.ranks)
        return Ended(code, "", "".join(errors), self.runs, self.runs)

    def ask(self, metric: str, **labels: str) -> list:
        """The series of a metric of this run that have a value now."""
        pairs = ({"service_name": self.id} | labels).items()
        which = ",".join(f'{name.replace(".", "_")}="{value}"' for name, value in pairs)
        return self._servers.promql(f"{metric}{{{which}}}")

    def times(self, metric: str, **labels: str) -> list[float]:
        """When these were read, Unix seconds."""
        pairs = ({"service_name": self.id} | labels).items()
        which = ",".join(f'{name.replace(".", "_")}="{value}"' for name, value in pairs)
        return [one.value for one in self._servers.promql(f"timestamp({metric}{{{which}}})")]

    def value(self, metric: names.Metric, labels: dict[str, str], rank: int | None) -> float:
        """The one value of a series, read from now on."""
        of = dict(labels) | {"ml_distributed_rank": "" if rank is None else str(rank)}
        now = time.time()
        wait_until(
            lambda: any(at > now for at in self.times(metric.prometheus, **of)), what=metric.name
        )
        (sample,) = self.ask(metric.prometheus, **of)
        return sample.value


@pytest.fixture(scope="module")
def job(servers, tmp_path_factory, nvml_library):
    with Job(servers, tmp_path_factory.mktemp("readings"), nvml_library) as made:
        wait_until(lambda: len(made.ask(UTILIZATION, hw_gpu_task="general")) == 2, what="GPUs")
        yield made


def lacking(job, expected) -> list:
    """What was measured here under a documented name, unit and labels, and is not there."""
    missing = []
    for metric, labels, rank in expected:
        of = dict(labels) | {"ml_distributed_rank": "" if rank is None else str(rank)}
        assert set(labels) <= set(METRICS[metric].labels), metric
        if len(job.ask(METRICS[metric].prometheus, **of)) != 1:
            missing.append((metric, of))
    return missing


def test_all_that_the_host_gives_is_in_prometheus(job) -> None:
    """Each series that a sensor makes here has its counterpart of the node, of no rank."""
    sensor = HostSensor(LEVEL)
    sensor.read()
    found = [(one.metric, one.labels, None) for one in sensor.read()]
    sensor.close()

    assert len({metric for metric, _, _ in found}) > 15
    wait_until(lambda: not lacking(job, found), what="readings of the host")


def test_all_that_the_processes_give_is_in_prometheus(job) -> None:
    """Of each rank its own process, its worker, and the limits that hold for it."""
    sensor = ProcessSensor(LEVEL)
    sensor.follow(job.pids)

    def measured():
        return [(one.metric, one.labels, job.pids.index(one.pid)) for one in sensor.read()]

    def roles():
        return {labels.get(names.PROCESS_ROLE) for _, labels, _ in measured()}

    wait_until(
        lambda: roles() == {"main", "worker", "ended", None}, what="workers that are told apart"
    )
    found = measured()
    sensor.close()

    wait_until(lambda: not lacking(job, found), what="readings of the processes")


def test_all_that_the_gpus_give_is_in_prometheus_under_their_ranks(job) -> None:
    """Every value of the script, of the rank that the list of visible devices gives the GPU to."""
    with Reader(job.script, job.nvml, level=LEVEL) as reader:
        told = reader.ask("read")
    rank_of = {uuid_of(0): 1, uuid_of(1): 0}
    given = [one for one in told if one[4] and one[0] != names.DEVICE_LOST.name]
    wait_until(
        lambda: not lacking(job, [(one[0], one[1], rank_of[one[4]]) for one in given]),
        what="readings of the GPUs",
    )
    found = {}
    for metric, labels, value, _, device, _ in given:
        name, of = METRICS[metric].prometheus, {"ml_distributed_rank": str(rank_of[device])}
        (sample,) = job.ask(name, **labels, **of)
        assert sample.labels["host_name"]
        assert sample.labels["ml_run_name"] == "resting"
        found[name, *labels.values()] = (sample.value, value)

    assert len(found) > 100
    assert {key: here for key, (here, _) in found.items()} == {
        key: pytest.approx(there) for key, (_, there) in found.items()
    }


def between(job, metric, labels, rank, read, slack: float = 0.0) -> None:
    """A total lies between what an independent reading says before and after."""
    before = read()
    value = job.value(metric, labels, rank)
    assert before - slack <= value <= read() + slack


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("mode", ["user", "system"])
def test_cpu_time_of_a_rank_is_the_kernels(job, rank, mode) -> None:
    """Between psutil's before and after; one tick is what the kernel rounds."""
    process = psutil.Process(job.pids[rank])
    labels = {names.CPU_MODE: mode, names.PROCESS_ROLE: "main"}
    between(
        job, names.PROCESS_CPU_TIME, labels, rank, lambda: getattr(process.cpu_times(), mode),
        TICK_S,
    )  # fmt: skip


def test_memory_of_a_rank_is_the_kernels(job) -> None:
    """Within 2 % of psutil's: the process rests."""
    expected = psutil.Process(job.pids[0]).memory_info().rss
    value = job.value(names.PROCESS_MEMORY, {names.PROCESS_ROLE: "main"}, 0)

    assert expected > HOLD_BYTES
    assert value == pytest.approx(expected, rel=0.02)


def test_worker_of_a_rank_is_counted_apart(job) -> None:
    """One child, with the CPU time that psutil says, between before and after."""
    (worker,) = psutil.Process(job.pids[1]).children()
    labels = {names.PROCESS_ROLE: "worker"}

    assert job.value(names.PROCESS_COUNT, labels, 1) == 1
    between(
        job, names.PROCESS_CPU_TIME, labels | {names.CPU_MODE: "user"}, 1,
        lambda: worker.cpu_times().user, TICK_S,
    )  # fmt: skip


def first_count(path: str, name: str) -> int:
    """The first number behind a name in a file of the kernel."""
    lines = map(str.strip, Path(path).read_text().splitlines())
    (counts,) = (line.removeprefix(name) for line in lines if line.startswith(name))
    return int(counts.split()[0])


def test_totals_of_the_host_are_the_kernels(job) -> None:
    """CPU time of each processor and bytes of interfaces, between two readings of the kernel."""
    for cpu in range(os.cpu_count()):
        between(
            job, names.SYSTEM_CPU_TIME, {names.CPU_MODE: "user", names.CPU_NUMBER: str(cpu)}, None,
            lambda cpu=cpu: first_count("/proc/stat", f"cpu{cpu} ") * TICK_S, TICK_S,
        )  # fmt: skip
    for interface in os.listdir("/sys/class/net"):
        labels = {names.NETWORK_INTERFACE: interface, names.NETWORK_DIRECTION: "receive"}
        if job.ask(names.NETWORK_IO.prometheus, **labels):
            between(
                job, names.NETWORK_IO, labels, None,
                lambda name=interface: first_count("/proc/net/dev", f"{name}:"),
            )  # fmt: skip


def test_memory_of_the_host_is_the_kernels(job) -> None:
    """The size exactly; what is available within 2 % of it, once nobody takes or gives much."""

    def kernel(name: str) -> int:
        return first_count("/proc/meminfo", name) << 10

    def is_near() -> bool:
        available = job.value(names.SYSTEM_MEMORY_AVAILABLE, {}, None)
        return abs(available - kernel("MemAvailable:")) <= 0.02 * kernel("MemTotal:")

    assert job.value(names.SYSTEM_MEMORY_LIMIT, {}, None) == kernel("MemTotal:")
    wait_until(is_near, what="memory that is available")


def test_space_of_the_run_folder_is_the_filesystems(job) -> None:
    """Size exactly, free space within 1 % of it, once nobody writes or removes much."""

    def is_near() -> bool:
        free = job.value(names.FILESYSTEM_USAGE, {names.FILESYSTEM_STATE: "free"}, None)
        disk = os.statvfs(job.runs)
        return abs(free - disk.f_bavail * disk.f_frsize) <= 0.01 * disk.f_blocks * disk.f_frsize

    wait_until(is_near, what="free space")
    (limit,) = job.ask(names.FILESYSTEM_LIMIT.prometheus)
    stat = os.statvfs(job.runs)
    assert limit.value == stat.f_blocks * stat.f_frsize


def test_own_health_is_told(job) -> None:
    """The agent's CPU time and memory, journals, and each sampler's duration."""
    samplers = {"host", "process", "gpu", "filesystem", "agent"}

    def told(metric: names.Metric, label: str) -> dict[str, float]:
        return {one.labels[label]: one.value for one in job.ask(metric.prometheus)}

    def filled() -> bool:
        used = told(names.JOURNAL_USAGE, "ml_distributed_rank")
        limits = told(names.JOURNAL_LIMIT, "ml_distributed_rank")
        return limits.keys() == used.keys() == {"0", "1"} and all(
            0 < used[rank] < limits[rank] for rank in used
        )

    wait_until(filled, what="journals in which something waits")
    wait_until(
        lambda: told(names.SAMPLER_DURATION, "otel_mlperf_sampler_name").keys() == samplers,
        what="all samplers",
    )
    assert told(names.AGENT_CPU_TIME, "cpu_mode").keys() == {"user", "system"}
    (memory,) = job.ask(names.AGENT_MEMORY.prometheus)
    assert memory.value < 120 << 20


@pytest.mark.fault("F73")
def test_hang_of_the_driver_delays_nothing_else(job) -> None:
    """GPUs are absent while a call hangs, the host is read on, and GPUs come back after it."""
    load = names.LOAD_1M.prometheus
    job.script.change({"hang.nvmlDeviceGetPowerUsage": 1})
    try:
        wait_until(lambda: not job.ask(UTILIZATION), what="GPUs that are absent")
        (late,) = wait_until(
            lambda: [
                one
                for one in job.ask(names.SAMPLER_LATE.prometheus)
                if one.labels["otel_mlperf_sampler_name"] == "gpu" and one.value
            ],
            what="a late pass",
        )
        seen: set[float] = set()
        wait_until(lambda: seen.update(job.times(load)) or len(seen) > 5, what="the host's load")
    finally:
        job.script.change({}, "hang.")
    wait_until(lambda: len(job.ask(UTILIZATION, hw_gpu_task="general")) == 2, what="GPUs again")

    assert late.value >= 1


@pytest.mark.fault("F72")
def test_lost_gpu_is_absent_and_comes_back(job) -> None:
    """The other GPU goes on; the loss is counted."""
    lost = {"hw_id": uuid_of(0)}
    job.script.change({"0.lost": LOST})
    try:
        wait_until(lambda: not job.ask(UTILIZATION, **lost), what="a GPU that is absent")
        (count,) = wait_until(
            lambda: [
                one for one in job.ask(names.DEVICE_LOST.prometheus, **lost) if one.value >= 1
            ],
            what="the loss",
        )
        assert job.ask(UTILIZATION, hw_id=uuid_of(1))
    finally:
        job.script.change({}, "0.lost")
    wait_until(lambda: job.ask(UTILIZATION, **lost), what="the GPU again")
    assert count.value == 1


def test_job_that_ends_leaves_its_readings_in_the_run_folder(servers, tmp_path, nvml_library):
    """Each rank's and the node's; what is not offered or switched off is nowhere."""
    settings = {"OTEL_MLPERF_READINGS": "basic", "OTEL_MLPERF_DISABLED_READINGS": "filesystem"}
    lacking_power = ("0.power", "0.field.83")
    with Job(servers, tmp_path, nvml_library, without=lacking_power, **settings) as job:
        for metric, rank in product((UTILIZATION, names.PROCESS_MEMORY.prometheus), "01"):
            wait_until(lambda m=metric, r=rank: job.ask(m, ml_distributed_rank=r), what="readings")
        ended = job.end().settled()
    assert ended.code == 0, ended.errors
    rows = ended.rows("SELECT DISTINCT rank, name, labels FROM readings")
    ranks_of = {}
    for row in rows:
        ranks_of.setdefault(row["name"], set()).add(row["rank"])

    assert ranks_of[names.SYSTEM_MEMORY.name] == {None}
    assert ranks_of[names.PROCESS_MEMORY.name] == {0, 1}
    # Until a rank has joined its GPU is the node's.
    assert ranks_of[names.HW_POWER.name] - {None} == {0}
    assert names.FILESYSTEM_USAGE.name not in ranks_of
    assert names.PROCESS_MEMORY_PSS.name not in ranks_of
    account = ended.accounts()["metrics"]["otlp"]
    assert adds_up(account)
    assert (account["lost"], account["pending"]) == ({}, 0)
