"""Tests import the package as programs do, without rewriting by pytest."""

from __future__ import annotations

import sys


def test_pytest_rewrites_nothing_of_the_package():
    """Else a module that two threads import at once may raise what it never does."""
    import otel_mlperf.agent.lifecycle.agent_loop  # noqa: F401 - with all that it loads

    rewritten = {
        name
        for name, module in sys.modules.items()
        if name.startswith("otel_mlperf.agent")
        and type(module.__loader__).__name__ == "AssertionRewritingHook"
    }
    assert rewritten == set()
