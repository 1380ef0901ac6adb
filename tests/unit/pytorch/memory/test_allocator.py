"""The CUDA allocator's account is published unchanged, at low cost, and CUDA is left alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from fake_cuda import Account, fake_torch

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.pytorch.memory.allocator import Allocator, labels_of, loaded_torch

MS = 1_000_000
GPU = (("cuda.device.index", "0"), ("hw.id", "GPU-00000000-0000-0000-0000-000000000000"))
ALLOCATED, RESERVED = (
    (*GPU, ("pytorch.cuda.memory.state", state)) for state in ("allocated", "reserved")
)


@pytest.fixture
def recorder(tmp_path):
    """That of an active run."""
    with om.start("x", dir=tmp_path, agent="none", console=False, readings="none") as run:
        yield run._recorder


def published(recorder):
    """Value by metric and labels."""
    reader = JournalReader(recorder.journal.path, recorder.journal.buffer)
    entries = reader.new_entries()
    return {
        (entries[int(cell[0])][2], tuple(map(tuple, entries[int(cell[0])][4]))): float(
            cell.view("f8")[1]
        )
        for cell in reader.cells()
    }


def test_account(recorder):
    """Memory, peaks, fragmentation, retries, failures and requests are as torch has them."""
    account = Account(split=3 << 20, retries=5, ooms=1, device_allocations=40)
    allocator = Allocator(recorder, lambda: fake_torch(account))
    account.allocate(10 << 20)
    account.allocate(-4 << 20)
    allocator.look(0)
    account.retries, account.ooms, account.device_allocations = 7, 2, 70
    allocator.look(10_000 * MS)
    account.retries = 1  # reset_accumulated_memory_stats(), and once more
    allocator.look(20_000 * MS)

    assert published(recorder) == {
        (names.CUDA_MEMORY.name, ALLOCATED): 6 << 20,
        (names.CUDA_MEMORY.name, RESERVED): 10 << 20,
        (names.CUDA_MEMORY_PEAK_USAGE.name, ALLOCATED): 10 << 20,
        (names.CUDA_MEMORY_PEAK_USAGE.name, RESERVED): 10 << 20,
        (names.CUDA_MEMORY_SPLIT.name, GPU): 3 << 20,
        (names.CUDA_RETRIES.name, GPU): 3,
        (names.CUDA_OOMS.name, GPU): 1,
        (names.CUDA_DEVICE_ALLOCATIONS.name, GPU): 30,
    }


def test_nothing_is_reset(recorder):
    """The peak that the program may read stays as it is."""
    faked = fake_torch(Account(allocated=5, reserved=5, peak=9, reserved_peak=9))
    allocator = Allocator(recorder, lambda: faked)
    allocator.look(0)
    allocator.finish()

    assert (faked.cuda.resets, faked.cuda.accounts[0].peak) == (0, 9)


def test_devices_that_are_not_used(recorder):
    """A device has series once it holds memory; those without are looked at now and then."""
    accounts = [Account(), Account(), Account()]
    faked = fake_torch(*accounts)
    accounts[1].allocate(100)
    allocator = Allocator(recorder, lambda: faked, clock=lambda: 0)
    faked.cuda.read = 0
    allocator.look(0)
    first = faked.cuda.read
    for n in range(1, 10):
        allocator.look(n * 400 * MS)
    then = faked.cuda.read - first
    accounts[2].allocate(100)
    allocator.look(6000 * MS)

    assert (first, then) == (3, 9)
    assert {labels[0][1] for _, labels in published(recorder)} == {"1", "2"}


@pytest.mark.parametrize(("took_us", "times"), [(40, 40), (1000, 11)])
def test_cost_is_bounded(recorder, took_us, times):
    """It is read four times a second at most, and for a thousandth of the time at most."""
    faked, now = fake_torch(Account(peak=1, reserved_peak=1)), 0

    def clock():
        nonlocal now
        now += took_us * 1000
        return now

    allocator = Allocator(recorder, lambda: faked, clock)
    faked.cuda.read = 0
    for at in range(0, 10_000, 10):
        allocator.look(at * MS)

    assert times - 2 <= faked.cuda.read <= times


def test_cuda_is_never_initialised(recorder):
    """As long as the program has not initialised CUDA nothing of it is asked."""
    faked = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))
    found = []

    def find():
        found.append(faked.cuda.is_initialized())

    Allocator(recorder, find).look(0)

    assert found == [False, False]  # when it begins, and when it looks
    assert published(recorder) == {}
    if not torch.cuda.is_available():
        assert loaded_torch() is None
        assert not torch.cuda.is_initialized()


def test_peak_of_a_later_run_is_not_that_of_the_process(recorder):
    """What an earlier run of the process allocated at most is not the later one's."""
    account = Account()
    account.allocate(8_000)
    account.allocate(-8_000)
    faked = fake_torch(account)
    allocator = Allocator(recorder, lambda: faked)
    account.allocate(500)
    allocator.look(0)
    of_run = published(recorder)
    account.allocate(9_000)
    peaks = allocator.peaks()

    assert of_run[names.CUDA_MEMORY_PEAK_USAGE.name, ALLOCATED] == 500
    assert peaks == {names.EPOCH_CUDA_PEAK: 9_500, names.EPOCH_CUDA_RESERVED: 9_500}


def test_torch_is_not_imported():
    """Where the program has not imported torch nothing of ours does."""
    code = (
        "import sys; from otel_mlperf.pytorch.memory.allocator import loaded_torch; "
        "assert loaded_torch() is None; assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)

    assert done.returncode == 0


def test_torch_that_answers_otherwise(recorder, caplog):
    """An account that is not understood is said once, and not read again."""
    faked = fake_torch(Account(peak=1, reserved_peak=1))
    faked.cuda.memory_stats_as_nested_dict = lambda device: {"other": 1}
    allocator = Allocator(recorder, lambda: faked)
    allocator.look(0)
    allocator.look(10_000 * MS)

    assert [record.getMessage() for record in caplog.records] == [
        "the memory of the CUDA allocator cannot be read: KeyError: 'reserved_bytes'"
    ]


def test_time_limit_meanwhile(recorder):
    """What a signal handler of the program raises while the account is read is the program's."""
    faked = fake_torch(Account(peak=1, reserved_peak=1))
    account = faked.cuda.memory_stats_as_nested_dict

    def end(number, frame):
        raise TimeoutError

    before = signal.signal(signal.SIGUSR1, end)
    allocator = Allocator(recorder, lambda: faked)
    faked.cuda.memory_stats_as_nested_dict = lambda device: signal.raise_signal(signal.SIGUSR1)
    try:
        with pytest.raises(TimeoutError):
            allocator.look(0)
    finally:
        signal.signal(signal.SIGUSR1, before)
    faked.cuda.memory_stats_as_nested_dict = account
    allocator.look(10_000 * MS)

    assert published(recorder)


@pytest.mark.parametrize(
    ("hip", "name", "uuid"),
    [(None, "NVIDIA H100 MIG 1g.10gb", "0"), ("6.2", "AMD MI300X", "0"), (None, "H100", None)],
)
def test_device_whose_uuid_is_not_nvmls(hip, name, uuid):
    """Where torch does not tell the UUID that NVML has, the number alone is the label."""
    properties = SimpleNamespace(name=name, uuid=uuid)
    faked = SimpleNamespace(
        cuda=SimpleNamespace(get_device_properties=lambda device: properties),
        version=SimpleNamespace(hip=hip),
    )

    assert labels_of(faked, 3) == (("cuda.device.index", "3"),)


@pytest.mark.parametrize("settings", [{"readings": "none"}, {"disabled_readings": "allocator"}])
def test_switched_off(tmp_path, settings):
    """It can be switched off."""
    found = []
    for more in ({}, settings):
        with om.start("x", dir=tmp_path, agent="none", console=False, **more) as run:
            calls = run._recorder.stepping.now_and_then
            found.append(any("Allocator" in getattr(c, "__qualname__", "") for c in calls))

    assert found == [True, False]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_real_device(recorder):
    """What is published is what torch.cuda.memory_stats says; nothing waits for the GPU."""
    kept = torch.ones(3 << 20, device="cuda")
    del kept
    kept = torch.ones(1 << 20, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        Allocator(recorder).look(0)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    stats = torch.cuda.memory_stats()
    found = {
        (name, dict(labels).get("pytorch.cuda.memory.state")): value
        for (name, labels), value in published(recorder).items()
    }
    assert found == {
        (names.CUDA_MEMORY.name, "allocated"): stats["allocated_bytes.all.current"],
        (names.CUDA_MEMORY.name, "reserved"): stats["reserved_bytes.all.current"],
        (names.CUDA_MEMORY_PEAK_USAGE.name, "allocated"): stats["allocated_bytes.all.peak"],
        (names.CUDA_MEMORY_PEAK_USAGE.name, "reserved"): stats["reserved_bytes.all.peak"],
        (names.CUDA_MEMORY_SPLIT.name, None): stats["inactive_split_bytes.all.current"],
        (names.CUDA_RETRIES.name, None): 0,
        (names.CUDA_OOMS.name, None): 0,
        (names.CUDA_DEVICE_ALLOCATIONS.name, None): 0,
    }
    assert kept.is_cuda
