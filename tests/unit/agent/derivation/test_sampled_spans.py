"""A request is sampled as a trace of its own, completely or not at all."""

from __future__ import annotations

import json

from by_hand import accounts, adds_up, table

from otel_mlperf import names


def request(program, start, length=4, **more):
    """One request with a section inside, on a track of its own."""
    own = program.section("forward", start, start + length - 1, parent=999_000 + start,
                          root=999_000 + start, track=50 + start)  # fmt: skip
    program.section(
        "predict", start, start + length, category=names.REQUEST, span=999_000 + start,
        root=999_000 + start, track=50 + start, **more,
    )  # fmt: skip
    return own


def test_the_first_every_hundredth_and_the_slow_are_kept_whole(
    program, agent_of, run_folder
) -> None:
    """Each is a trace of its own, linked to what is around it, with all that is inside."""
    for i in range(210):
        request(program, i, length=40 if i == 150 else 4)
    program.stop(900)
    agent_of(program).run()

    spans = [row for row in table(run_folder, "spans") if row["name"] != "run"]
    by_trace: dict[str, list[dict]] = {}
    for row in spans:
        by_trace.setdefault(row["trace_id"], []).append(row)
    kept = [rows[-1]["kept"] for rows in by_trace.values()]
    assert kept == ["first"] * 5 + ["every", "slow", "every"]
    for rows in by_trace.values():
        forward, own = rows
        assert (forward["name"], own["name"]) == ("forward", "predict")
        assert (forward["parent_id"], own["parent_id"]) == (own["span_id"], "")
        ((_, around),) = json.loads(own["links"])
        assert int(around, 16) == program.run
    assert adds_up(accounts(run_folder)["spans"]["store"])


def test_what_is_inside_an_open_request_waits_for_it(program, agent_of, run_folder) -> None:
    """However many marks that takes: it is kept with its request, not by a name of its own."""
    program.name("predict", names.REQUEST)
    for i in range(6):  # so that the first ones are kept already
        request(program, i)
    program.open("predict", 20, span=800, root=800)
    program.section("forward", 21, 22, parent=800, root=800)
    agent = agent_of(program)
    for _ in range(30):
        agent.tick()
        agent.mark()
    program.section("predict", 20, 300, category=names.REQUEST, span=800, root=800, error=True)
    program.stop(900)
    agent.run()

    inside = [row for row in table(run_folder, "spans") if row["root_id"] == f"{800:016x}"]
    assert [(row["name"], row["kept"]) for row in inside if row["kind"] == "section"] == [
        ("forward", "error"),
        ("predict", "error"),
    ]
    assert "forward" not in {row["path"] for row in table(run_folder, "sections")}
