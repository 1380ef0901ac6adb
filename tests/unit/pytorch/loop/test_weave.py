"""A woven function is timed without any other noticeable change."""

from __future__ import annotations

import importlib.util
import inspect
import traceback

import pytest

from otel_mlperf.pytorch.loop.weave import weave

SOURCE = '''
from __future__ import annotations

import functools

class compiler:
    on = False

    @staticmethod
    def is_compiling():
        return compiler.on

class torch:
    compiler = compiler

def double(number: int, *, times=2):
    """Doubles."""
    if number < 0:
        raise ValueError(
            f"{number} is negative"
        )
    return number * times

class Thing:
    @property
    def plain(self):
        return 1

    def method(self, number):
        return [double(n)
                for n in range(number)] + [1 // (number - 3)]

class Special(Thing):
    def method(self, number):
        if number < 0:
            return super().missing
        return [0] + super().method(number)

def make(times):
    @functools.wraps(double)
    def wrapper(number):
        return double(number, times=times)
    return wrapper

def counting(number):
    if number:
        global counted
        counted = number
    return counted

def closing():
    seen = 1
    def inner():
        return seen
    return inner
'''


class Gate:
    """Writes down how it is passed."""

    def __init__(self):
        self.busy = False
        self.passed, self.subjects = [], []

    def of(self, subject):
        self.subjects.append(subject)
        return self

    def __enter__(self):
        self.passed.append("in")

    def __exit__(self, kind, error, trace):
        self.passed.append(kind and kind.__name__)


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "woven_module.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("woven_module", path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def text_of_error(function, *arguments):
    try:
        function(*arguments)
    except Exception:  # noqa: BLE001 - any error's text is what is asked for
        return traceback.format_exc()
    return "no error"


def test_body_runs_in_the_gate(module):
    """The gate is entered before the body and left after it; results stay."""
    gate = Gate()
    weave(module.double, gate, "_gate")

    assert module.double(3) == 6
    assert gate.passed == ["in", None]
    assert gate.subjects == [None]


def test_gate_is_told_what_the_call_is_about(module):
    """An expression of the parameters says which object a method was called of."""
    gate = Gate()
    weave(module.Thing.method, gate, "_gate", subject="self")
    thing = module.Thing()
    thing.method(1)

    assert gate.subjects == [thing]


def test_a_method_that_calls_the_one_above_is_woven(module):
    """It closes over its class; tracebacks stay, too."""
    before = text_of_error(module.Special().method, -1)
    gate = Gate()
    weave(module.Special.method, gate, "_gate")

    assert module.Special().method(2) == [0, 0, 2, -1]
    assert gate.passed == ["in", None]
    assert text_of_error(module.Special().method, -1) == before


def test_busy_gate_is_left_out(module):
    """A gate that is busy is not entered: the outermost call counts."""
    gate = Gate()
    weave(module.double, gate, "_gate")
    gate.busy = True

    assert module.double(3) == 6
    assert gate.passed == []


def test_compiled_code_never_sees_the_gate(module):
    """While torch compiles, the body runs as it was written."""
    gate = Gate()
    weave(module.double, gate, "_gate")
    module.compiler.on = True

    assert module.double(3) == 6
    assert gate.passed == []


def test_older_torch_says_elsewhere_that_it_compiles(module):
    """Before 2.3 torch.compiler does not say it: what a woven function asks for is there."""
    module.torch._utils, module.torch.compiler = module.compiler, object()
    gate = Gate()
    weave(module.double, gate, "_gate")

    assert module.double(3) == 6
    assert gate.passed == ["in", None]
    module.compiler.on = True
    assert module.double(3) == 6
    assert gate.passed == ["in", None]


def test_torch_that_never_says_that_it_compiles_is_left_alone(module):
    """A function stays as it is where nobody could keep torch.compile out of the gate."""
    module.torch.compiler = object()

    with pytest.raises(TypeError, match="does not report whether it is compiling"):
        weave(module.double, Gate(), "_gate")
    assert module.double(3) == 6


@pytest.mark.parametrize("number", [-1, 3])
def test_tracebacks_stay_the_same(module, number):
    """Files, lines, columns and names of an exception's frames are those of the source."""
    function = module.double if number < 0 else module.Thing().method
    before = text_of_error(function, number)
    gate = Gate()
    weave(module.double, gate, "_gate")
    weave(module.Thing.method, gate, "_gate")

    assert text_of_error(function, number) == before
    assert "Error" in before
    assert gate.passed[-1] in {"ValueError", "ZeroDivisionError"}


def test_function_looks_as_before(module):
    """Name, signature, documentation and source of the function stay."""

    def looks():
        return [
            (f.__qualname__, f.__code__.co_qualname, inspect.signature(f), inspect.getsource(f))
            for f in (module.double, module.Thing.method)
        ]

    before = looks()
    weave(module.double, Gate(), "_gate")
    weave(module.Thing.method, Gate(), "_gate")

    assert looks() == before


def test_made_functions_are_woven(module):
    """A function that another makes is timed, whatever it closes over; its maker is not."""
    gate = Gate()
    weave(module.make, gate, "_gate", inner="wrapper", subject="number")

    assert (module.make(3)(2), module.make(4)(2)) == (6, 8)
    assert gate.passed == ["in", None] * 2
    assert gate.subjects == [2, 2]
    assert module.make(3).__name__ == "double"


def test_functions_that_were_made_before_are_woven(module):
    """What was made before its maker was woven is timed like the rest; others stay."""
    before, gate = module.make(3), Gate()
    weave(module.make, gate, "_gate", inner="wrapper", made=[before, module.double])

    assert (before(2), gate.passed) == (6, ["in", None])
    assert module.double(2) == 4
    assert gate.passed == ["in", None]


def test_function_with_globals_is_woven(module):
    """What it declares as global, in the middle of it, stays so."""
    gate = Gate()
    weave(module.counting, gate, "_gate")

    assert (module.counting(3), module.counting(0), module.counted) == (3, 3, 3)
    assert gate.passed == ["in", None] * 2


def test_function_that_cannot_be_woven_stays(module):
    """A closure is refused, and works on."""
    closure = module.closing()

    with pytest.raises(TypeError, match="closes over"):
        weave(closure, Gate(), "_gate")
    with pytest.raises(TypeError, match="defines no function other"):
        weave(module.make, Gate(), "_gate", inner="other")
    assert closure() == 1
