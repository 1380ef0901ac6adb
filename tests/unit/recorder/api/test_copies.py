"""Decorated functions, instruments and runs may be copied or sent to a worker."""

from __future__ import annotations

import copy
import dis
import pickle
import types

import pytest

import otel_mlperf as om


@om.span
def plain(x):
    """A function as any other."""
    return x


@om.span
def numbers():
    """A generator."""
    yield 1


@om.span
async def awaited():
    """A coroutine."""


class Trained:
    """Has a method that is recorded."""

    @om.span("fit", rows=3)
    def fit(self):
        """A method."""


def taken_along(function):
    """What somebody who pickles a function by its code takes with it, through other functions."""
    seen, left = {}, [function]
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        if isinstance(value, types.FunctionType):
            known, code = value.__globals__, dis.get_instructions(value.__code__)
            named = {step.argval for step in code if step.opname == "LOAD_GLOBAL"}
            left += [known[name] for name in named if name in known]
            left += [cell.cell_contents for cell in value.__closure__ or ()]
    return [value for value in seen.values() if not isinstance(value, types.FunctionType)]


@pytest.mark.parametrize("function", [plain, numbers, awaited, Trained.fit])
def test_function_takes_nothing_of_a_run_along(recording, function):
    """Functions of a script go to workers by their code (cloudpickle): a journal cannot."""
    plain(1)
    for value in taken_along(function):
        if not isinstance(value, types.ModuleType):  # by name
            pickle.dumps(value)


@pytest.mark.parametrize("make", [om.counter, om.gauge, om.histogram])
@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]
)
def test_copy_of_an_instrument_is_that_instrument(recording, make, copied):
    """It records into the same series; in another process into that one's."""
    instrument = make(f"copied_{make.__name__}", "By")
    record = {"counter": "add", "gauge": "set", "histogram": "record"}[make.__name__]
    getattr(instrument, record)(3)

    assert copied(instrument) is instrument


def test_copy_of_a_run_is_the_run(recording):
    """Of an object that holds one too; pickled it is one that records nothing."""
    run = recording.run
    elsewhere = pickle.loads(pickle.dumps(run))

    assert copy.copy(run) is run
    assert copy.deepcopy({"run": run})["run"] is run
    assert (elsewhere.name, elsewhere.is_active, elsewhere.id) == (run.name, False, "")
