"""Only one agent serves a folder, from its first moment."""

from __future__ import annotations

from otel_mlperf.journal.folder_lock import OnlyOne, is_served


def test_a_lock_that_is_held_is_not_let_go_in_between(tmp_path):
    """Who holds it and asks for it again has the very same one; nobody gets in between."""
    lock = OnlyOne(tmp_path)
    with lock as at_first:
        held = lock._fd
        with lock as again:
            assert (at_first, again, lock._fd) == (True, True, held)
            assert is_served(tmp_path)
    assert not is_served(tmp_path)
