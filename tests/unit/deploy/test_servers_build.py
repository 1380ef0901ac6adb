"""Servers are built once per version, and a failed build reports what is missing."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest
from servers import build


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "otel_mlperf" / "servers"


@pytest.fixture
def recipe(tmp_path):
    """A recipe in the shell that is quick, and notes each time that it is followed."""
    script = f"echo built >> {tmp_path}/notes; mkdir build; echo > build/server"
    return build.Recipe("collector", ("server",), ("sh", "-c", script), 0)


def test_a_version_is_built_once(cache, recipe, tmp_path):
    """Test runs that start together wait for one build and share it."""
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: build.program(recipe, "server"), range(4)))

    assert found == {cache / build.built_folder(recipe).name / "server"}
    assert found.pop().is_file()
    assert (tmp_path / "notes").read_text() == "built\n"


def test_another_recipe_is_another_version(cache, recipe):
    """A changed command leads to a folder of its own, so nothing stale is used."""
    changed = recipe._replace(command=(*recipe.command, "-v"))

    assert build.built_folder(changed) != build.built_folder(recipe)
    assert build.built_folder(changed).parent == cache


@pytest.mark.usefixtures("cache")
def test_a_failed_build_says_why_and_leaves_nothing(recipe):
    """The error ends with what the tool said, and the next run tries again."""
    broken = recipe._replace(command=("sh", "-c", "echo no such module >&2; exit 1"))

    with pytest.raises(RuntimeError, match="no such module"):
        build.program(broken, "server")

    assert not build.built_folder(broken).exists()


def test_without_go_it_says_what_to_install(cache, monkeypatch):
    """Neither a build nor a toolchain: the reason names both, the folder and the remedy."""
    monkeypatch.setenv("PATH", "")

    with pytest.raises(build.ServersMissingError) as missing:
        build.program(build.COLLECTOR, "otelcol")

    assert str(cache) in str(missing.value)
    assert "install Go" in str(missing.value)


@pytest.mark.usefixtures("cache")
def test_a_build_in_the_cache_needs_no_go(recipe, monkeypatch):
    """What is built is used without asking for the toolchain."""
    built = build.program(recipe, "server")
    monkeypatch.setenv("PATH", "")

    assert build.program(recipe, "server") == built
    assert stat.S_ISREG(built.stat().st_mode)
