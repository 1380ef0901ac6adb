"""Every call of a measured section counts, whatever is sampled of it."""

from __future__ import annotations

import json
import statistics

from by_hand import table

from otel_mlperf import names

KEYS = [measure.key for measure in names.MEASURES]


def use(**figures):
    """A payload of these figures; the others are not known."""
    return {"u": [figures.get(key) for key in KEYS]}


def uses(run_folder, **place):
    """Count, total, least, most and spread by measure, of one place."""
    rows = table(run_folder, "resources")
    mine = [row for row in rows if place.items() <= row.items()]
    return {
        row["measure"]: (row["count"], row["total"], row["least"], row["most"], row["spread"])
        for row in mine
    }


def test_all_calls_of_all_steps_add_up(program, agent_of, run_folder):
    """Of 250 steps, seven of which are kept, each call is in count, sum, extremes and spread."""
    cpu = [1_000 * (i % 7) for i in range(250)]
    for i in range(250):
        step = program.begin_step(i * 10)
        payload = use(cpu_ns=cpu[i], memory_growth_bytes=-i)
        program.section("forward", i * 10, i * 10 + 9, parent=step, root=step, payload=payload)
        program.end_step(step, i * 10, i * 10 + 10)
    program.stop(2600)
    agent_of(program).run()

    found = uses(run_folder, name="forward", phase="train", in_step=True)
    count, total, least, most, spread = found["cpu_ns"]
    assert (count, total, least, most) == (250, sum(cpu), 0, 6_000)
    assert spread == statistics.pvariance(cpu) * 250
    assert found["memory_growth_bytes"][:4] == (250, -sum(range(250)), -249, 0)
    assert found.keys() == {"cpu_ns", "memory_growth_bytes"}


def test_outside_steps_by_place(program, agent_of, run_folder):
    """Outside steps each path has its own row, as the tree has it."""
    outer = 900
    program.section("load", 1, 2, parent=outer, payload=use(read_bytes=10))
    program.section("outer", 0, 5, span=outer, payload=use(read_bytes=30))
    program.section("load", 6, 7, payload=use(read_bytes=20))
    program.stop(20)
    agent_of(program).run()

    totals = {row["path"]: (row["count"], row["total"]) for row in table(run_folder, "resources")}
    assert totals == {"outer/load": (1, 10), "outer": (1, 30), "load": (1, 20)}


def test_kept_spans_say_what_they_used(program, agent_of, run_folder):
    """Figures are attributes by their names; what is not known is absent."""
    step = program.begin_step(0)
    payload = use(cpu_ns=5, memory_before_bytes=7, cuda_growth_bytes=-3)
    program.section("forward", 0, 9, parent=step, root=step, payload=payload)
    program.end_step(step, 0, 10)
    program.stop(20)
    agent_of(program).run()

    (span,) = (row for row in table(run_folder, "spans") if row["name"] == "forward")
    assert json.loads(span["attributes"]) == {
        "ml.section.thread.cpu_time": 5,
        "ml.section.process.memory.before": 7,
        names.CUDA_MEMORY_DELTA: -3,
    }


def test_series(program, agent_of):
    """Totals grow with each call, a peak is the highest of all."""
    for i, peak in enumerate((100, 300, 200)):
        figures = use(
            cpu_ns=500_000_000, written_bytes=4, voluntary_switches=2, memory_peak_bytes=peak
        )
        program.section("load", i, i + 1, payload=figures)
    program.stop(20)
    agent = agent_of(program)
    agent.run()

    (rank,) = agent._state.ranks.values()
    found = {
        (series.metric, *sorted(series.labels.items())[:1]): series.value
        for series in rank.series.values()
        if series.labels.get(names.SECTION_NAME) == "load"
    }
    values = {metric: value for (metric, *_), value in found.items()}
    assert values[names.SECTION_CPU.name] == 1.5
    assert values[names.SECTION_IO.name] == 12
    assert values[names.SECTION_SWITCHES.name] == 6
    assert values[names.SECTION_MEMORY_PEAK.name] == 300


def test_figures_of_another_make(program, agent_of, run_folder):
    """What has more or fewer figures than there are measures is left out, its section is not."""
    program.section("load", 1, 2, payload={"u": [1, 2]})
    program.stop(20)
    agent_of(program).run()

    assert not (run_folder / "tables" / "resources").exists() or not table(run_folder, "resources")
    assert [row["name"] for row in table(run_folder, "sections") if row["name"] == "load"]
