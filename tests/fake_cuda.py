"""Stand-in for ``torch`` where there is no GPU, with a scripted allocator."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace


class OutOfMemoryError(RuntimeError):
    """As torch.cuda.OutOfMemoryError."""


@dataclass
class Account:
    """The allocator's account of one device."""

    allocated: int = 0
    reserved: int = 0
    split: int = 0
    retries: int = 0
    ooms: int = 0
    device_allocations: int | None = None
    """None: as a torch that does not count them."""
    peak: int = 0
    reserved_peak: int = 0

    def allocate(self, size: int) -> None:
        """Allocates ``size`` bytes more, or frees them."""
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self.reserved = max(self.reserved, self.allocated)
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def nested(self) -> dict:
        """As torch gives it."""

        def stat(current, peak):
            both = {"current": current, "peak": peak, "allocated": peak, "freed": peak - current}
            return {"all": both, "small_pool": both, "large_pool": both}

        of_driver = {"num_device_alloc": self.device_allocations}
        return {
            **(of_driver if self.device_allocations is not None else {}),
            "allocated_bytes": stat(self.allocated, self.peak),
            "reserved_bytes": stat(self.reserved, self.reserved_peak),
            "inactive_split_bytes": stat(self.split, self.split),
            "num_alloc_retries": self.retries,
            "num_ooms": self.ooms,
        }


@dataclass
class Cuda:
    """As torch.cuda, with as many devices as it has accounts."""

    accounts: list[Account] = field(default_factory=lambda: [Account()])
    initialized: bool = True
    snapshot: dict = field(default_factory=lambda: {"segments": [], "device_traces": [[]]})
    read: int = 0
    """How often an account was read."""
    resets: int = 0
    awaited: int = 0
    emptied: int = 0
    OutOfMemoryError = OutOfMemoryError

    history: dict | None = None
    """How the history of allocations is kept; None: it is not."""

    def __post_init__(self):
        self.memory = SimpleNamespace(
            _snapshot=lambda: self.snapshot, _record_memory_history=self._keep_history
        )

    def _keep_history(self, enabled="all", **how):
        self.history = how if enabled else None

    def is_initialized(self):
        return self.initialized

    def device_count(self):
        return len(self.accounts)

    def current_device(self):
        return 0

    def memory_stats_as_nested_dict(self, device):
        self.read += 1
        return self.accounts[device].nested()

    def memory_summary(self, device):
        return f"summary of {device}"

    def synchronize(self):
        self.awaited += 1

    def empty_cache(self):
        self.emptied += 1

    def reset_peak_memory_stats(self, device):
        self.resets += 1
        self.accounts[device].peak = self.accounts[device].allocated

    def get_device_properties(self, device):
        return SimpleNamespace(
            name="NVIDIA H100", uuid=f"00000000-0000-0000-0000-00000000000{device}"
        )


def fake_torch(*accounts: Account, **settings) -> SimpleNamespace:
    """A module as torch, with a device for each account."""
    cuda = Cuda(list(accounts) or [Account()], **settings)
    inner = SimpleNamespace(_cuda_isHistoryEnabled=lambda: cuda.history is not None)
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None), _C=inner)


LAUNCH_NS = 5_000
"""From a launch to its begin on a device that has nothing else to do."""


@dataclass(eq=False)
class FakeStream:
    """As torch.cuda.Stream: work begins when it was launched and what came before is done."""

    gpu: FakeGpu
    index: int
    cuda_stream: int
    free_ns: int = 0
    """Host time at which all of it is done."""

    @property
    def device(self):
        return SimpleNamespace(type="cuda", index=self.index)

    def launch(self, ns: int) -> None:
        """Gives it so much work."""
        self.free_ns = self.reached() + ns

    def reached(self) -> int:
        """When what is given to it now begins."""
        return max(self.free_ns, self.gpu.now_ns + LAUNCH_NS)

    def synchronize(self):
        raise AssertionError("synchronized")


class FakeEvent:
    """As torch.cuda.Event; its time is that of the device's own clock."""

    def __init__(self, gpu: FakeGpu, *, enable_timing: bool = False):
        assert enable_timing
        self.gpu, self.stream, self.at_ns = gpu, None, None
        gpu.made += 1

    def record(self, stream=None):
        stream = stream or self.gpu.current_stream()
        assert not self.gpu.capturing, "recorded into a graph"
        assert self.stream is None or self.stream.index == stream.index, "of another device"
        assert self.at_ns is None or self.query(), "recorded again before it was passed"
        self.stream, self.at_ns = stream, stream.reached()
        stream.free_ns = self.at_ns

    def query(self):
        assert not self.gpu.capturing, "asked while a graph is captured"
        assert not self.gpu.capturing_elsewhere, "asked while another thread captures a graph"
        self.gpu.queries += 1
        return self.gpu.now_ns >= self.at_ns

    def elapsed_time(self, other):
        assert self.at_ns is not None
        assert self.gpu.now_ns >= max(self.at_ns, other.at_ns), "not passed yet"
        assert self.stream.index == other.stream.index, "of different devices"
        return self.gpu.device_ms(other.at_ns - self.at_ns)

    def synchronize(self):
        raise AssertionError("synchronized")

    wait = synchronize


class FakeGpu(Cuda):
    """torch.cuda on simulated devices: time passes where the test says so, and nobody may wait.

    ``drift`` is by how much their clocks are faster than the host's.
    """

    def __init__(self, drift: float = 0.0, now_ns: int = 1_000_000_000_000):
        super().__init__()
        self.drift, self.now_ns = drift, now_ns
        self.made = self.queries = 0
        self.capturing = self.capturing_elsewhere = False
        self.streams = [FakeStream(self, 0, 0)]
        """The current one last."""

    def clock(self):
        """The host's."""
        return self.now_ns

    def device_ms(self, ns):
        return ns * (1 + self.drift) / 1e6

    def Event(self, **settings):  # noqa: N802 - torch's name
        return FakeEvent(self, **settings)

    def current_stream(self):
        return self.streams[-1]

    def current_device(self):
        return self.streams[-1].index

    def is_current_stream_capturing(self):
        return self.capturing

    def stream(self, index: int, handle: int) -> FakeStream:
        """Another stream."""
        return FakeStream(self, index, handle, self.now_ns)

    def host(self, ns: int) -> None:
        """The host does something else for so long."""
        self.now_ns += ns

    def launch(self, ns: int) -> None:
        """The current stream gets so much work."""
        self.streams[-1].launch(ns)

    def wait(self) -> None:
        """The program itself waits for the device, as ``loss.item()`` does."""
        self.now_ns = max(self.now_ns, self.streams[-1].free_ns)

    def synchronize(self, device=None):
        raise AssertionError("synchronized")
