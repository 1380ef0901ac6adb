"""Is a section visible that is open for hours?"""

from __future__ import annotations

import time

from by_hand import MS

from otel_mlperf import ids
from otel_mlperf.agent.derivation.segments import segments

S = 10**9


def test_section_open_for_hours_leaves_segments_once(program, agent_of, run_folder) -> None:
    """Every ten minutes a finished child with an id that follows from the section's."""
    now = time.monotonic_ns()
    span = program.open("train.epoch", now / MS)
    agent = agent_of(program)
    agent.tick()
    agent.mark()
    (journal,) = agent._state.journals.values()

    first = segments(journal, now + 1_250 * S)
    again = segments(journal, now + 1_300 * S)
    third = segments(journal, now + 1_800 * S)

    assert [(round((s.start - now) / S), (s.end - s.start) / S, s.parent) for s in first] == [
        (0, 600, span),
        (600, 600, span),
    ]
    assert again == []
    assert len({s.span for s in first + third}) == 3


def test_segment_is_in_the_trace_of_its_section(program, agent_of) -> None:
    """Also where that is a trace of the section's own."""
    now = time.monotonic_ns()
    alone = program.open("serve", now / MS, root=77, span=77)
    agent = agent_of(program)
    agent.tick()
    agent.mark()
    (journal,) = agent._state.journals.values()

    (segment,) = segments(journal, now + 700 * S)
    assert segment.parent == alone
    assert segment.trace == ids.lone_trace_id("0123abcd", alone).to_bytes(16, "big")
