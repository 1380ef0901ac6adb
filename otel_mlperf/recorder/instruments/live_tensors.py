"""Memory of PyTorch's live tensors, by device and shape.

Each storage counts once, even if several tensors share it. Overridden methods of tensor subclasses
are not called, and no call waits for a device.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from otel_mlperf.foreign_errors import raise_foreign

if TYPE_CHECKING:
    from collections.abc import Iterable

HANDLE: Final = "torch.storage.UntypedStorage"
"""Type of Python's handle of a tensor's memory, which PyTorch creates on demand and keeps."""


def count_tensors(tensors: Iterable[Any]) -> dict[str, list[int]]:
    """Return number and bytes of the tensors' storages, by description of the largest tensor."""
    torch = sys.modules["torch"]
    plain = (torch.Tensor, torch.nn.Parameter)
    storages: dict[int, tuple[int, str, int]] = {}
    with torch._C.DisableTorchFunctionSubclass():
        for tensor in tensors:
            try:
                storage = torch.Tensor.__base__.untyped_storage(tensor)
                place, size = storage._cdata, storage.nbytes()
                about = _about(tensor, storage, is_plain=type(tensor) in plain)
            except Exception as error:  # noqa: BLE001 - a sparse tensor, or an unknown device
                raise_foreign(error)
                continue
            storages[place] = max(storages.get(place, (-1, "", 0)), (*about, size))
    found: dict[str, list[int]] = {}
    for _, name, size in storages.values():
        total = found.setdefault(name, [0, 0])
        total[0] += 1
        total[1] += size
    return found


def _about(tensor: Any, storage: Any, *, is_plain: bool) -> tuple[int, str]:
    """Return a tensor's number of elements (0 for a subclass) and its description."""
    if not is_plain:
        return 0, f"{type.__dict__['__qualname__'].__get__(type(tensor))} on {storage.device}"
    numbers = str(tensor.dtype).removeprefix("torch.")
    graph = ", with its graph" if tensor.requires_grad and not tensor.is_leaf else ""
    return tensor.numel(), f"{numbers} {[*tensor.shape]} on {storage.device}{graph}"
