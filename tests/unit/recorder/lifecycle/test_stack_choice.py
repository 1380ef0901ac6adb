"""The main thread's stack is sampled if sections explain little of the steps, and only then."""

from __future__ import annotations

import pytest

from otel_mlperf import names
from otel_mlperf.journal.layout import START
from otel_mlperf.journal.section_sums import MarkSums, RunningSums, Sums, write_sums
from otel_mlperf.recorder.lifecycle.stack_choice import StackChoice

MS, S = 1_000_000, 1_000_000_000


@pytest.fixture
def told(recording):
    """Tells, as the agent does, what steps and what is in them took."""
    registry, path = recording.recorder.registry, recording.recorder.journal.path

    def tell(count, total_ns, own_ns, validated_ns=0):
        step = registry.register("train.step", names.STEP, names.TRAIN)
        forward = registry.register("forward", names.FORWARD, names.TRAIN)
        sections = {
            step: Sums(count, total_ns, own_ns),
            forward: Sums(count, total_ns - own_ns, total_ns - own_ns),
            registry.register("validate", names.PHASE, names.TRAIN): Sums(
                1, validated_ns, validated_ns
            ),
        }
        write_sums(path, 9, [], RunningSums(marks={START: MarkSums(0, sections)}))

    return tell


@pytest.fixture
def looking(recording):
    """Looks at given times, and says how often the stack was chosen by then."""
    chosen = []
    choice = StackChoice(recording.recorder, lambda: chosen.append(True))

    def look(*times_s):
        for at_s in times_s:
            choice.look(int(100 * S + at_s * S))
        return len(chosen)

    return look


def test_steps_that_are_in_no_section_are_looked_at_once(told, looking):
    """From the first second of steps on, and one thread does it."""
    told(100, S, 300 * MS)

    assert looking(0.0, 0.9) == 0
    assert looking(1.1) == 1
    assert looking(2.5, 5.0, 9.0) == 1


def test_steps_that_sections_explain_are_not(told, looking):
    """A tenth of a step is in no section in any program."""
    told(700, 7 * S, 700 * MS)

    assert looking(0.0, 1.1, 3.0, 7.0) == 0


def test_steps_that_become_so_are_found(told, looking):
    """It is asked again, at twice the age each time."""
    told(100, S, 100 * MS)
    looking(0.0, 1.1)
    told(200, 2 * S, 600 * MS)

    assert looking(2.0) == 0
    assert looking(2.3) == 1


def test_time_between_steps_is_looked_at(told, looking):
    """When it is more than the agent may be behind: two of four seconds are in no step."""
    told(100, S, 50 * MS)

    assert looking(0.0, 1.1, 2.3) == 0
    assert looking(4.7) == 1


def test_time_between_steps_that_a_validation_has_is_not(told, looking):
    """It says itself what it is."""
    told(100, S, 50 * MS, validated_ns=2 * S)

    assert looking(0.0, 1.1, 2.3, 4.7) == 0


def test_too_few_steps_decide_nothing(told, looking):
    """The first one is what the program sets up in it."""
    told(4, S, 900 * MS)

    assert looking(0.0, 1.1) == 0


def test_what_no_agent_tells_is_not_known(looking):
    """Nothing is chosen, and nothing raised."""
    assert looking(0.0, 1.1, 3.0) == 0
