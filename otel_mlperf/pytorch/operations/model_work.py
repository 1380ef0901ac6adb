"""Work of a model in each step: its operations, parameters and peak FLOP/s.

``model_work(model)`` registers the model. The input shapes of its calls are noted as they happen. A
new shape is counted once, between two steps, so that no step becomes longer. A step has figures
only if the shapes of all its calls were counted before: the first step of each shape has none.

Once the first model is registered, ``torch.nn.Module._call_impl`` is modified. A hook of the module
is not used, because hooks are pickled and copied with the module. If a registered module is called
inside another one, only the outermost call counts. Code compiled by ``torch.compile`` does not run
the modified function, so only the outermost call of a compiled model counts.
"""

from __future__ import annotations

import sys
import time
import weakref
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

from otel_mlperf import names
from otel_mlperf.device_peaks import Peak, find_peak
from otel_mlperf.errors import ConfigError
from otel_mlperf.pytorch.loop_thread import LoopThread
from otel_mlperf.pytorch.operations.flop_count import (
    count_flops,
    count_operators,
    describe_call,
    sum_flops,
)
from otel_mlperf.pytorch.operations.module_twin import UncountableError, unwrapped
from otel_mlperf.recorder.api import start
from otel_mlperf.recorder.api.span import active
from otel_mlperf.recorder.core.faults import internal_error, warn_once
from otel_mlperf.recorder.core.thread_ident import get_ident

if TYPE_CHECKING:
    from collections.abc import Callable

    from otel_mlperf.pytorch.operations.flop_count import Flops, ModelCall
    from otel_mlperf.recorder.lifecycle.recorder import Recorder
    from otel_mlperf.recorder.lifecycle.run import Run
    from otel_mlperf.recorder.sections.parents import OpenStep

_get_ident = get_ident
_UNSEEN: Final = nullcontext()
_NAME: Final = "_otel_mlperf_work"
_MAX_FOUND: Final = 16
"""Maximum number of models that are detected in a program that registers none."""


class Watcher(Protocol):
    """Protocol of a receiver of the calls of one module."""

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Note a call of ``module`` that is about to happen."""


class CallWatch:
    """Observer of all calls of torch modules, which reports those of watched modules."""

    def __init__(self) -> None:
        self.busy = True
        """Whether calls are not observed: there is no watcher, or a watched call is open."""
        self.find: Callable[[Any], Watcher | None] | None = None
        """Returns a watcher for an unregistered module; None: only registered modules are
        watched."""
        self._of: dict[int, tuple[weakref.ref[Any], Watcher]] = {}
        self._is_woven = False
        self._found = 0

    def add(self, module: Any, watcher: Watcher, torch: Any) -> None:
        """Report the calls of ``module`` to ``watcher`` from now on.

        Raises:
            OSError: the code of this version of torch cannot be modified.
            TypeError: the code of this version of torch cannot be modified.
        """
        self._register(module, watcher)
        self.begin(torch)

    def begin(self, torch: Any) -> None:
        """Start observing calls.

        Raises:
            OSError: the code of this version of torch cannot be modified.
            TypeError: the code of this version of torch cannot be modified.
        """
        if not self._is_woven:
            # Imported lazily: ``weave`` loads ``ast`` and ``inspect``, which the package's import
            # must not wait for.
            from otel_mlperf.pytorch.loop.weave import weave

            weave(torch.nn.Module._call_impl, self, _NAME, subject="(self, args, kwargs)")
            self._is_woven = True
        self.busy = False

    def of(self, subject: Any) -> Any:
        """Report a call to the module's watcher, if any; return a context manager for the call.

        Calls in other threads than the loop's are not reported.
        """
        if _get_ident() != LoopThread.ident:
            return _UNSEEN
        try:
            module, args, kwargs = subject
            watcher = self._watcher_of(module)
            if watcher is None:
                return _UNSEEN
            watcher.called(module, args, kwargs)
        except Exception as error:  # noqa: BLE001 - recording never raises
            internal_error(error)
            return _UNSEEN
        return self

    def _watcher_of(self, module: Any) -> Watcher | None:
        known = self._of.get(id(module))
        if known is None and type(module).__name__ == "OptimizedModule":
            known = self._of.get(id(module._orig_mod))  # registered before it was compiled
        if known is not None:
            return known[1]
        if self.find is None or self._found >= _MAX_FOUND:
            return None
        watcher = self.find(module)
        if watcher is not None:
            self._found += 1
            self._register(module, watcher)
        return watcher

    def _register(self, module: Any, watcher: Watcher) -> None:
        number = id(module)
        # Removed by a C function: the interpreter would drop an exception raised in a Python
        # callback.
        self._of[number] = weakref.ref(module, partial(self._of.pop, number)), watcher

    def __enter__(self) -> None:
        self.busy = True

    def __exit__(self, *_: object) -> None:
        self.busy = False


_MAX_SHAPES: Final = 64
"""Maximum number of shapes per model: texts of every length would be counted without end."""
_UNKNOWN: Final = -1
"""Marker of a step that contains an uncounted call."""
_watch = CallWatch()


class ModelWork:
    """Model whose work is counted; the result of ``model_work()``."""

    def __init__(self, model: Any, peak_flops: float | None = None) -> None:
        self._model, self._given = weakref.ref(model), peak_flops
        self._known: dict[ModelCall, Flops | None] = {}
        self._new: dict[ModelCall, None] = {}
        self._reported_to: weakref.ref[Recorder] | None = None
        own = list({id(one): one for one in model.parameters()}.values())
        self.name: str = type(unwrapped(model)).__name__
        """Name of the model's class."""
        self.parameters: int = sum(one.numel() for one in own)
        """Number of parameters; a parameter that two modules share counts once."""
        self.trainable: int = sum(one.numel() for one in own if one.requires_grad)
        """Number of parameters with gradients."""
        self.embedding: int = _embedding(model)
        """Number of parameters of lookup tables (``torch.nn.Embedding``)."""

    def count(self, *args: Any, **kwargs: Any) -> Flops | None:
        """Count the operations of a call with these arguments; None if they cannot be counted.

        The result has ``.forward``, ``.backward`` and ``.total``, for one backward pass from all
        outputs. The model is not called: its code runs on tensors without content.
        """
        by_operator = self.by_operator(*args, **kwargs)
        if by_operator is None:
            return None
        return sum_flops(by_operator)

    def by_operator(self, *args: Any, **kwargs: Any) -> dict[str, Flops] | None:
        """Count a call's operations by operator, most first; None if they cannot be counted.

        The result, ``{"aten.addmm": Flops(forward=…, backward=…)}``, contains only matrix products,
        convolutions and attention.
        """
        model, torch = self._model(), sys.modules["torch"]
        try:
            if model is None:
                return None
            return count_operators(model, describe_call(model, args, kwargs, torch), torch)
        except UncountableError as error:
            self._warn(error)
            return None

    def called(self, module: Any, args: Any, kwargs: Any) -> None:
        """Add a call's operations to the step; note the call's shape if that is not counted yet."""
        recorder = active()
        if recorder is None:
            return
        if self._reported_to is None or self._reported_to() is not recorder:
            self._report(recorder)
        step = recorder.parents.step_around(recorder.parents.surrounding()[0])
        if step is None:
            return
        try:
            call = describe_call(module, args, kwargs, sys.modules["torch"])
        except UncountableError as error:
            self._warn(error)
            step.flops = _UNKNOWN
            return
        flops = self._known.get(call)
        if flops is None or step.flops == _UNKNOWN:
            step.flops = _UNKNOWN
            if call not in self._known and len(self._known) + len(self._new) < _MAX_SHAPES:
                self._new[call] = None
        else:
            step.flops = (step.flops or 0) + flops.total

    def _report(self, recorder: Recorder) -> None:
        """Publish the number of parameters and the peak FLOP/s, once in each run."""
        self._reported_to = weakref.ref(recorder)
        stepping, cells = recorder.stepping, recorder.cells
        stepping.after_step = [*stepping.after_step, self._after_step]
        metric = names.MODEL_PARAMETERS
        for kind, count in (
            (names.PARAMETERS_TOTAL, self.parameters),
            (names.PARAMETERS_TRAINABLE, self.trainable),
            (names.PARAMETERS_EMBEDDING, self.embedding),
        ):
            labels = ((names.MODEL_NAME, self.name), (names.PARAMETERS_KIND, kind))
            cells.set(metric.name, metric.unit, count, labels)
        peak = self._peak(recorder)
        if peak is not None:
            about = (
                (names.FLOPS_TYPE, peak.type),
                (names.PEAK_SOURCE, peak.source),
                (names.HW_MODEL, peak.device),
            )
            metric = names.FLOPS_PEAK
            cells.set(metric.name, metric.unit, peak.flops_per_s, about)

    def _peak(self, recorder: Recorder) -> Peak | None:
        torch, model = sys.modules["torch"], self._model()
        parameter = next(iter(model.parameters()), None) if model is not None else None
        if parameter is None:
            return None
        kind, device = _type_of_products(parameter, torch), str(parameter.device.type)
        if device == "cuda":
            device = str(torch.cuda.get_device_name(parameter.device))
        given = self._given or recorder.config.peak_flops
        return Peak(given, kind, device, "given") if given else find_peak(device, kind)

    def _after_step(self, step: OpenStep) -> None:
        recorder = active()
        if not self._new or recorder is None or recorder.stepping.open:
            return  # inside another step, counting would add to its time
        model, torch = self._model(), sys.modules["torch"]
        for call in list(self._new):
            del self._new[call]
            self._known[call] = None
            try:
                self._known[call] = count_flops(model, call, torch) if model is not None else None
            except UncountableError as error:
                self._warn(error)
            except Exception as error:  # noqa: BLE001 - recording never raises
                internal_error(error)
        recorder.stepping.busy_ns = time.monotonic_ns()

    def _warn(self, error: UncountableError) -> None:
        warn_once("the operations of %s cannot be counted: %s", self.name, error)

    def __repr__(self) -> str:
        return f"<ModelWork {self.name} {self.parameters:,} parameters>"


def model_work(model: Any, *, peak_flops: float | None = None) -> ModelWork:
    """Record the work of ``model`` in each step from now on: FLOPs, FLOP/s, and MFU.

    ::

        work = om.model_work(model)
        print(work.parameters, work.trainable, work.count(images).forward)

    The model is not changed. After the first step with a new input shape, the model's code runs
    once more, on tensors without content, and its operations are counted. Later steps with this
    shape have figures: in ``summary``, ``top`` and as metrics (``docs/work-and-efficiency.md``).
    May be called before a run is started, and for several models.

    Args:
        model: the ``torch.nn.Module`` that the loop calls.
        peak_flops: peak FLOP/s of the device of one rank, without sparsity (default: from a table
            of devices; unknown for other devices).

    Raises:
        ConfigError: ``model`` is not a module, or ``peak_flops`` is not a number above 0.
    """
    torch: Any = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        raise ConfigError(
            f"model_work(): found a {type(model).__name__}, expected a torch.nn.Module"
        )
    if peak_flops is not None and (not isinstance(peak_flops, int | float) or peak_flops <= 0):
        raise ConfigError(f"model_work(): peak_flops is {peak_flops!r}, expected FLOP/s above 0")
    work = ModelWork(model, peak_flops)
    try:
        _watch.add(model, work, torch)
    except Exception as error:  # noqa: BLE001 - a torch that is built otherwise trains all the same
        internal_error(error)
    return work


def _embedding(model: Any) -> int:
    kinds = ("Embedding", "EmbeddingBag")
    tables = (one.weight for one in model.modules() if type(one).__name__ in kinds)
    return sum(one.numel() for one in {id(one): one for one in tables}.values())


def _type_of_products(parameter: Any, torch: Any) -> str:
    """Return the data type of matrix products, according to the parameter and torch's settings."""
    kind = parameter.dtype
    device = parameter.device.type
    try:
        if torch.is_autocast_enabled(device):
            kind = torch.get_autocast_dtype(device)
        if kind is torch.float32 and torch.get_float32_matmul_precision() != "highest":
            return "tf32"
    except (TypeError, RuntimeError, AttributeError):
        pass  # before torch 2.4; or precision set through two interfaces
    return str(kind).removeprefix("torch.")


def _find(module: Any) -> ModelWork | None:
    """Return the work of a module that was not registered; None if it has no parameters."""
    return ModelWork(module) if next(module.parameters(), None) is not None else None


def _begin(run: Run) -> None:
    recorder = run._recorder
    if recorder is None or not recorder.config.model_work:
        return

    def look(_: int) -> None:
        torch = sys.modules.get("torch")
        if torch is not None and _watch.find is None and hasattr(torch, "nn"):
            _watch.find = _find
            _watch.begin(torch)

    def end() -> None:
        _watch.find = None

    recorder.stepping.now_and_then.append(look)
    run.before_end.append(end)


start.at_begin.append(_begin)
