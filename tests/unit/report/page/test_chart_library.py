"""The library in a page is the published one, and can be renewed."""

from __future__ import annotations

import subprocess
import sys

from otel_mlperf.report.page.chart_library import CHECKSUMS, FOLDER, LICENCE, VERSION, checksums


def test_the_copy_is_what_was_published():
    """To the byte, with its version and its licence."""
    assert checksums() == CHECKSUMS
    assert (FOLDER / VERSION).read_text() == "1.6.32\n"
    assert (
        (FOLDER / "uPlot.iife.min.js")
        .read_text()
        .startswith("/*! https://github.com/leeoniya/uPlot (v1.6.32)")
    )
    assert "MIT" in (FOLDER / LICENCE).read_text()


def test_the_command_that_renews_it_is_there():
    """It says which folder it lacks, rather than writing half of a copy."""
    command = [sys.executable, "-m", "otel_mlperf.report.page.chart_library", "nowhere"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert "nowhere/dist/uPlot.iife.min.js" in done.stderr
    assert checksums() == CHECKSUMS
