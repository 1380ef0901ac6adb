"""The journals of running ranks are found, and other files are reported."""

from __future__ import annotations

import pytest
from run_folders import digits

from otel_mlperf.errors import JournalError, NotRunning
from otel_mlperf.live_profiling import find_ranks
from otel_mlperf.store.run_folders import read_run


@pytest.fixture
def journals(tmp_path):
    """The folder for journals of a stored run."""
    folder = digits(tmp_path).write() / "journals"
    folder.mkdir()
    return folder


def test_journal_that_goes_meanwhile_is_not_missed(journals):
    """A process may end between the list of journals and the look at it."""
    (journals / "0-1-1.journal").symlink_to("gone")

    with pytest.raises(NotRunning, match="no process of the run is active on this node"):
        find_ranks(read_run(journals.parent), [])


def test_file_that_is_no_journal_is_told(journals):
    """What is there and cannot be asked is named."""
    (journals / "0-1-1.journal").write_bytes(bytes(9000))

    with pytest.raises(JournalError, match=r"0-1-1\.journal: the file is not a journal"):
        find_ranks(read_run(journals.parent), [])
