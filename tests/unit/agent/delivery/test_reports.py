"""The page of an ended run is made and delivered once, or manually if no agent did."""

from __future__ import annotations

import pytest
from by_hand import Program, accounts, adds_up

from otel_mlperf.agent.lifecycle.run_recovery import deliver_rest
from otel_mlperf.run_files.run_file import write_run_file
from otel_mlperf.store.run_folders import read_run

SHELF = """
from otel_mlperf.agent.delivery.destination import Delivered, Destination

class Shelf(Destination):
    name = "shelf"
    signals = ("reports",)

    def __init__(self, folder):
        self._folder = folder

    def accept(self, batch):
        (self._folder / f"page-{batch.number}.html").write_bytes(batch.report)
        return Delivered()

def make(site):
    return Shelf(site.run_folder)
"""
"""A destination of another package that keeps pages."""
pytestmark = pytest.mark.usefixtures("warm_children")
THREE_STEPS = '<span class="label">steps</span><span class="value">3</span>'


@pytest.fixture(autouse=True)
def _shelf(install, run_folder):
    install("shelf", SHELF, shelf="make")
    facts = {"id": "0123abcd", "name": "digits", "started_ns": 1_700_000_000_000_000_000}
    write_run_file(str(run_folder), facts)


def pages(run_folder):
    """Those that were delivered, in their order."""
    numbered = {int(path.stem[5:]): path.read_text() for path in run_folder.glob("page-*.html")}
    return [numbered[number] for number in sorted(numbered)]


def train(program):
    for i in range(3):
        program.step(i * 10)
    program.stop(40)


def test_run_that_ends_has_one_page(program, agent_of, run_folder) -> None:
    """With all that is in its tables by then; it is an item of the accounts."""
    train(program)
    agent_of(program).run()

    (page,) = pages(run_folder)
    assert page.startswith("<!doctype html>")
    assert "digits" in page
    assert THREE_STEPS in page
    account = accounts(run_folder)["reports"]["shelf"]
    assert account["created"] == account["delivered"] == 1
    assert adds_up(account)


def test_page_that_no_agent_made_is_made_by_hand(program, agent_of, run_folder) -> None:
    """The agent was ended before it could; once, however often it is asked for."""
    train(program)
    agent = agent_of(program)
    agent.tick()
    agent.mark()
    agent.finish()
    before = pages(run_folder)
    delivered = [deliver_rest(read_run(run_folder), {}).delivered for _ in range(2)]

    assert before == []
    assert delivered == [1, 0]
    assert THREE_STEPS in pages(run_folder)[0]
    assert accounts(run_folder)["reports"]["shelf"]["delivered"] == 1


def test_run_that_goes_on_later_has_a_page_of_all_of_it(
    program, journals, agent_of, run_folder
) -> None:
    """Made anew when it ends again."""
    train(program)
    agent_of(program).run()
    again = Program(journals, run_folder, name="0-2-2")
    train(again)
    agent_of(again).run()
    again.journal.release()

    first, second = pages(run_folder)
    assert THREE_STEPS in first
    assert first != second


def test_only_the_agent_of_rank_0_makes_a_page(journals, agent_of, run_folder) -> None:
    """A run on several hosts has one."""
    program = Program(journals, run_folder, rank=1, world=2)
    train(program)
    agent_of(program).run()
    program.journal.release()

    assert pages(run_folder) == []
    assert deliver_rest(read_run(run_folder), {}).delivered == 0
    assert accounts(run_folder)["reports"]["shelf"]["created"] == 0
