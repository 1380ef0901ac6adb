"""What stands in for ``torch`` where there is no GPU? Its allocator does what it is told."""

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

        return {
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
    OutOfMemoryError = OutOfMemoryError

    def __post_init__(self):
        self.memory = SimpleNamespace(_snapshot=lambda: self.snapshot)

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
    return SimpleNamespace(cuda=cuda, version=SimpleNamespace(hip=None))
