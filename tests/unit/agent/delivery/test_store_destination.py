"""The run folder is kept small, and its spans are accounted for."""

from __future__ import annotations

from by_hand import accounts, adds_up, table

from otel_mlperf.agent.model.sampling import Policy


def test_account_of_spans_adds_up(program, agent_of, run_folder) -> None:
    """Every section that the program counted is delivered or unselected, none is lost."""
    for i in range(250):
        program.step(i * 10)
    program.stop(2600)
    agent_of(program).run()

    account = accounts(run_folder)["spans"]["store"]
    assert account["created"] == program.sections == 751
    assert account["delivered"] == 22
    assert adds_up(account)
    assert account["pending"] == 0


def test_full_store_gives_up_the_oldest_spans_and_counts_them(
    program, agent_of, run_folder
) -> None:
    """Over the limit the oldest span parts go, as lost; every step stays measured."""
    agent = agent_of(program, policy=Policy(trace_every=1), max_store_bytes=300_000)
    for i in range(3000):
        program.step(i * 10)
        if i % 100 == 99:
            agent.tick()
            agent.mark()
            agent.flush(i)
    program.stop(40_000)
    agent.run()

    account = accounts(run_folder)["spans"]["store"]
    stored = [s for s in table(run_folder, "spans") if s["kind"] == "section"]
    # Where this takes long enough it is found that spans are lost: a span that nobody recorded.
    found = {(row["id"], row["start_ns"]) for row in table(run_folder, "warnings")}
    assert account["created"] == program.sections + len(found)
    assert len(stored) == account["delivered"] < program.sections
    assert account["lost"] == {"store_full": account["created"] - len(stored)}
    assert adds_up(account)
    assert len(table(run_folder, "steps")) == 3000
