"""Is something done after an import without the import changing?"""

from __future__ import annotations

import sys
import traceback

import pytest

from otel_mlperf.pytorch.after_import import after_import


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to import from; what was imported is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("awaited", "awaited_other"):
        sys.modules.pop(name, None)


def import_error_text():
    try:
        import awaited  # noqa: F401
    except Exception:  # noqa: BLE001 - any error's text is what is asked for
        return traceback.format_exc()
    return "no error"


def test_called_once_the_module_is_complete(folder):
    """The call comes after the module's own code, once, and not for other modules."""
    (folder / "awaited.py").write_text("ready = True")
    (folder / "awaited_other.py").write_text("")
    seen = []
    after_import("awaited", lambda: seen.append(sys.modules["awaited"].ready))

    import awaited_other  # noqa: F401

    assert seen == []
    import awaited

    assert seen == [True]
    assert vars(awaited.__loader__).keys() == {"name", "path"}


def test_called_at_once_for_a_module_that_is_there():
    """A module that was imported before is not waited for."""
    seen = []

    after_import("sys", lambda: seen.append("now"))

    assert seen == ["now"]


@pytest.mark.parametrize("text", ["1 / 0", "import nothing_of_this_name"])
def test_failing_import_fails_as_before(folder, text):
    """An exception of the module's code has the traceback that it has without us."""
    (folder / "awaited.py").write_text(text)
    before = import_error_text()
    after_import("awaited", lambda: pytest.fail("called after a failed import"))

    assert import_error_text() == before
    assert "Error" in before


def test_missing_module_stays_missing(folder):
    """A module that does not exist raises what it always does."""
    after_import("awaited", lambda: pytest.fail("called"))

    with pytest.raises(ModuleNotFoundError, match="No module named 'awaited'"):
        import awaited  # noqa: F401
