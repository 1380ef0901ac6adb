"""Puts destinations of other packages in an agent's way."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a distribution with entry points on the path, as installing a package does."""

    def put(module, source, group="otel_mlperf.destinations", **entries):
        site = tmp_path / "site"
        about = site / f"{module}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"{name} = {module}:{attribute}\n" for name, attribute in entries.items()]
        (about / "entry_points.txt").write_text(f"[{group}]\n" + "".join(lines))
        (site / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(site)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return put
