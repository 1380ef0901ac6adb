"""A callback runs after an import without changing the import."""

from __future__ import annotations

import importlib.util
import sys
import traceback

import pytest

from otel_mlperf.integrations.after_import import _finder, _waiting, after_import, notice_package


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to import from; nobody else waits, and what was imported is forgotten afterwards."""
    others = _waiting.copy()
    _waiting.clear()
    monkeypatch.setattr(sys, "meta_path", [one for one in sys.meta_path if one is not _finder])
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    _waiting.clear()
    _waiting.update(others)
    for name in [name for name in sys.modules if name.startswith("awaited")]:
        del sys.modules[name]


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


def test_look_whether_it_is_there_wakes_nobody(folder):
    """Who asks for the spec, as frameworks do before they import, leaves the wait as it is."""
    (folder / "awaited.py").write_text("")
    seen = []
    after_import("awaited", lambda: seen.append("now"))

    assert importlib.util.find_spec("awaited") is not None
    assert seen == []
    import awaited  # noqa: F401

    assert seen == ["now"]


def test_import_that_works_the_second_time_is_seen(folder):
    """A first import that fails leaves the wait as it is."""
    (folder / "awaited.py").write_text("import awaited_other")
    seen = []
    after_import("awaited", lambda: seen.append("now"))
    assert "No module named 'awaited_other'" in import_error_text()
    (folder / "awaited_other.py").write_text("")
    importlib.invalidate_caches()

    import awaited  # noqa: F401

    assert seen == ["now"]


def test_module_of_a_package_is_waited_for_by_many(folder):
    """Two that wait for a module inside a package are both called, in their order."""
    (folder / "awaited").mkdir()
    (folder / "awaited/__init__.py").write_text("from awaited import inner")
    (folder / "awaited/inner.py").write_text("")
    seen = []
    after_import("awaited.inner", lambda: seen.append("first"))
    after_import("awaited.inner", lambda: seen.append("second"))

    import awaited  # noqa: F401

    assert seen == ["first", "second"]


def test_nothing_stays_on_the_path_of_imports(folder):
    """When nobody waits any more the finder is gone."""
    (folder / "awaited.py").write_text("")
    after_import("awaited", lambda: None)
    assert sys.meta_path[0] is _finder

    import awaited  # noqa: F401

    assert _finder not in sys.meta_path


def test_modules_that_came_in_by_no_import_are_noticed_with_their_package(folder, monkeypatch):
    """A program puts a package into ``sys.modules`` as a whole; each call is made once."""
    seen = []
    after_import("awaited.part", lambda: seen.append("part"))
    after_import("awaited_other", lambda: seen.append("other"))
    for name in ("awaited", "awaited.part", "awaited_other"):
        monkeypatch.setitem(sys.modules, name, sys)

    notice_package("awaited")
    notice_package("awaited")

    assert seen == ["part"]
