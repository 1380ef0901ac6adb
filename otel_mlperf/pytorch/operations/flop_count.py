"""Floating point operations of a call of a model and of its backward pass.

``torch.utils.flop_counter`` counts the operations on the model's twin, whose tensors have no
content, so the program's own call is not affected. Counting in that call would require a dispatch
mode. Each operator would then go through Python, and code compiled by ``torch.compile`` would run
uncompiled, with other results.

A multiplication and an addition are two operations. Matrix products, convolutions and attention are
counted; element-wise operations are not. The backward pass starts at the output called ``loss`` or,
if there is none, at all outputs.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Final, NamedTuple

from otel_mlperf.pytorch.operations.module_twin import (
    TensorShape,
    UncountableError,
    made_again,
    shape_of,
    twin_of,
    unnoticed,
)

_AUTOCAST: Final = ("cuda", "cpu", "xpu")


class Flops(NamedTuple):
    """Floating point operations of one call."""

    forward: int
    backward: int
    """0 if gradients are switched off, or no output requires gradients."""

    @property
    def total(self) -> int:
        """Sum of forward and backward."""
        return self.forward + self.backward


class ModelCall(NamedTuple):
    """All facts that determine a call's number of operations; equal for equivalent calls."""

    args: Any
    kwargs: Any
    is_training: bool
    has_grad: bool
    autocast: tuple[str, Any] | None
    """Device and data type; None if autocast is off."""


def describe_call(module: Any, args: Any, kwargs: Any, torch: Any) -> ModelCall:
    """Describe a call of ``module`` that is about to happen.

    Raises:
        UncountableError: an argument is of a kind that cannot be recreated.
    """
    return ModelCall(
        shape_of(args, torch),
        shape_of(kwargs, torch),
        module.training,
        torch.is_grad_enabled(),
        _autocast(torch),
    )


def _autocast(torch: Any) -> tuple[str, Any] | None:
    try:
        for device in _AUTOCAST:  # reading the parameters' device would cost as much
            if torch.is_autocast_enabled(device):
                return device, torch.get_autocast_dtype(device)
        return None
    except (TypeError, RuntimeError, AttributeError):  # before torch 2.4; a device without it
        return None


def count_flops(module: Any, call: ModelCall, torch: Any) -> Flops:
    """Return the floating point operations of a call; raises the errors of ``count_operators``."""
    return sum_flops(count_operators(module, call, torch))


def sum_flops(by_operator: Mapping[str, Flops]) -> Flops:
    """Return the sum of the floating point operations of all operators."""
    counted = by_operator.values()
    return Flops(sum(of.forward for of in counted), sum(of.backward for of in counted))


def count_operators(module: Any, call: ModelCall, torch: Any) -> dict[str, Flops]:
    """Return the floating point operations of a call by ATen operator, in descending order.

    This costs about as much as a few calls without content.

    Raises:
        UncountableError: the model's code needs the content of tensors, or the model contains a
            module whose operations cannot be counted.
    """
    fakes = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode
    try:
        with unnoticed(torch), fakes(allow_non_fake_inputs=True) as mode:
            twin = twin_of(module, torch, mode.from_tensor)
            return _counted(twin, call, torch)
    except UncountableError:
        raise
    except Exception as error:
        message = str(error).strip().partition("\n")[0]
        raise UncountableError(f"{type(error).__name__}: {message:.200}") from error


def _counted(twin: Any, call: ModelCall, torch: Any) -> dict[str, Flops]:
    counting = importlib.import_module("torch.utils.flop_counter").FlopCounterMode

    def make(of: TensorShape) -> Any:
        tensor = torch.empty(of.shape, dtype=of.type, device=of.device)
        return tensor.requires_grad_(of.requires_grad) if of.requires_grad else tensor

    args, kwargs = made_again(call.args, make), made_again(call.kwargs, make)
    cast = torch.autocast(*call.autocast, cache_enabled=False) if call.autocast else nullcontext()
    with torch.set_grad_enabled(call.has_grad):
        with counting(display=False) as counter, cast:
            out = twin(*args, **kwargs)
        forward, backward = _by_operator(counter), {}
        ends = _ends(out, torch) if call.has_grad else []
        if ends:
            with counting(display=False) as counter:
                torch.autograd.backward(ends, [torch.ones_like(end) for end in ends])
            backward = _by_operator(counter)
    found = {
        name: Flops(forward.get(name, 0), backward.get(name, 0)) for name in {**forward, **backward}
    }
    return dict(sorted(found.items(), key=lambda item: -item[1].total))


def _by_operator(counter: Any) -> dict[str, int]:
    """Return the FLOPs by operator; overloads of an operator are counted together."""
    return {str(name): int(flops) for name, flops in counter.get_flop_counts()["Global"].items()}


def _ends(out: Any, torch: Any) -> list[Any]:
    """Return the tensors where the backward pass starts."""
    loss = out.get("loss") if isinstance(out, Mapping) else getattr(out, "loss", None)
    if isinstance(loss, torch.Tensor) and loss.requires_grad:
        return [loss]
    found: list[Any] = []
    _gather(out, torch, found)
    return found


def _gather(out: Any, torch: Any, found: list[Any]) -> None:
    if isinstance(out, torch.Tensor):
        if out.requires_grad and all(out is not one for one in found):
            found.append(out)
    elif isinstance(out, Mapping):
        for one in out.values():
            _gather(one, torch, found)
    elif isinstance(out, list | tuple):
        for one in out:
            _gather(one, torch, found)
