"""The command that requests a profiler window reports what it cannot do."""

from __future__ import annotations

import pytest
from run_folders import digits

from otel_mlperf.cli.profile import profile
from otel_mlperf.errors import JournalError, NotRunning


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
        profile(str(journals.parent))


def test_file_that_is_no_journal_is_told(journals):
    """What is there and cannot be asked is named."""
    (journals / "0-1-1.journal").write_bytes(bytes(9000))

    with pytest.raises(JournalError, match=r"0-1-1\.journal: the file is not a journal"):
        profile(str(journals.parent))
