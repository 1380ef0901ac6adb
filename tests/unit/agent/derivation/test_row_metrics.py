"""Metric series and tables are projections of the same rows, so they agree."""

from __future__ import annotations

import pytest
from by_hand import table

from otel_mlperf import names


def series(agent, metric):
    """The series of a metric of the only rank, by its labels."""
    (rank,) = agent._state.ranks.values()
    return {
        tuple(one.labels.values()): one for one in rank.series.values() if one.metric == metric.name
    }


def test_series_agree_with_the_tables(program, agent_of, run_folder) -> None:
    """Steps, durations and self times, of steps and outside, sampled or not."""
    for i in range(30):
        phase = "train" if i % 3 else "validate"
        program.step(i * 20, 10 + i % 7, phase=phase, payload={"n": 32})
    program.section("checkpoint", 700, 750, category=names.CHECKPOINT)
    agent = agent_of(program)
    agent.tick()
    agent.mark()
    steps, durations = series(agent, names.STEPS), series(agent, names.STEP_DURATION)
    self_times, samples = series(agent, names.SECTION_SELF_TIME), series(agent, names.SAMPLES)
    program.stop(800)
    agent.run()

    rows, sections = table(run_folder, "steps"), table(run_folder, "sections")
    for phase in ("train", "validate"):
        mine = [row for row in rows if row["phase"] == phase]
        assert steps[phase,].value == len(mine) == durations[phase,].buckets.count
        assert samples[phase,].value == sum(row["samples"] for row in mine)
        duration_ns = sum(row["duration_ns"] for row in mine)
        assert durations[phase,].buckets.sum == pytest.approx(duration_ns / 1e9)
        for name in ("data.load", "forward"):
            (of_name,) = (one for key, one in self_times.items() if {name, phase} <= {*key})
            own_ns = sum(
                row["self_ns"] for row in sections if (row["name"], row["phase"]) == (name, phase)
            )
            assert of_name.value == pytest.approx(own_ns / 1e9)
    (saved,) = (one for key, one in self_times.items() if "checkpoint" in key)
    assert saved.value == pytest.approx(0.05)
