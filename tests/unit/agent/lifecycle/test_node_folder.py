"""Each agent works in a folder of its own, even if host names are equal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from otel_mlperf.agent.lifecycle.node_folder import claim_ended_folder, claim_folder, node_folder

ELSEWHERE = Path("/proc")
"""On another file system, as another container's shared memory is."""


@pytest.fixture
def journals(tmp_path):
    """A folder of journals on this machine."""
    (tmp_path / "journals").mkdir()
    return tmp_path / "journals"


def test_an_agent_goes_on_in_the_folder_that_another_one_has_left(tmp_path, journals):
    """State and log that are there are its own from then on."""
    with claim_folder(tmp_path, "node", journals) as first:
        pass
    with claim_folder(tmp_path, "node", journals) as second:
        assert first == second == node_folder(tmp_path, "node")


def test_agents_of_two_machines_with_one_host_name_have_two_folders(tmp_path, journals):
    """Two containers, say, that share a run folder and nothing else."""
    with claim_folder(tmp_path, "node", journals) as one:
        with claim_folder(tmp_path, "node", ELSEWHERE) as other:
            assert (one.name, other.name) == ("node", "node-2")
        with claim_folder(tmp_path, "node", ELSEWHERE) as again:
            assert again == other


def test_agents_of_two_journal_folders_have_two_folders(tmp_path, journals):
    """One run folder has two where the disk refused it when its first journal was made."""
    (tmp_path / "others").mkdir()
    with (
        claim_folder(tmp_path, "node", journals) as one,
        claim_folder(tmp_path, "node", tmp_path / "others") as other,
    ):
        assert one != other


def test_a_successor_on_the_same_machine_needs_no_lock(tmp_path, journals):
    """The agent before it is stopped, holds the lock, and no longer serves the journals."""
    with (
        claim_folder(tmp_path, "node", journals) as before,
        claim_folder(tmp_path, "node", journals) as after,
    ):
        assert before == after


def test_a_folder_is_left_once_its_agent_has_ended(tmp_path, journals):
    """Then what is in it may be delivered by hand."""
    with claim_folder(tmp_path, "node", journals) as folder, claim_ended_folder(folder) as is_left:
        assert not is_left
    with claim_ended_folder(folder) as is_left:
        assert is_left


@pytest.mark.fault("S20")
def test_a_link_in_the_place_of_the_lock_is_refused(tmp_path, journals):
    """The identity of the agent would be written over the file that it leads to."""
    node_folder(tmp_path, "node").mkdir(parents=True)
    (tmp_path / "precious").write_text("precious")
    os.symlink(tmp_path / "precious", node_folder(tmp_path, "node") / "owner.lock")

    with pytest.raises(OSError, match="symbolic links"), claim_folder(tmp_path, "node", journals):
        pass
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_lock_that_is_in_a_backup_too_is_left_as_it_is(tmp_path, journals):
    """A backup by hard links (cp -al) of the folder, in which no agent works."""
    with claim_folder(tmp_path, "node", journals) as folder:
        pass
    backup = tmp_path / "backup"
    backup.hardlink_to(folder / "owner.lock")
    before = backup.read_bytes()

    with claim_folder(tmp_path, "node", ELSEWHERE) as again, claim_ended_folder(again) as is_left:
        assert (again, is_left) == (folder, False)
    assert backup.read_bytes() == before != (folder / "owner.lock").read_bytes()


def test_a_lock_that_is_in_a_backup_too_still_locks(tmp_path, journals):
    """A backup of a folder in which an agent works: its lock is the file that is linked."""
    with claim_folder(tmp_path, "node", journals) as folder:
        (tmp_path / "backup").hardlink_to(folder / "owner.lock")

        with claim_ended_folder(folder) as is_left:
            assert not is_left
        with claim_folder(tmp_path, "node", ELSEWHERE) as other:
            assert other != folder
