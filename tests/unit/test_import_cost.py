"""``import otel_mlperf`` loads little, and stays out of the program's way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run(code, *arguments):
    """What the code prints in a fresh interpreter, from JSON."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        cwd=ROOT,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return json.loads(done.stdout.splitlines()[-1])


def test_nothing_is_imported_before_it_is_needed():
    """Neither the recorder nor OpenTelemetry, by the package or by a part of it."""
    code = (
        "import sys, json, otel_mlperf, otel_mlperf.errors; print(json.dumps(sorted(sys.modules)))"
    )
    loaded = run(code)

    assert [
        name for name in loaded if name.startswith(("otel_mlperf.recorder", "opentelemetry"))
    ] == []


HEAVY = {"torch", "numpy", "opentelemetry.sdk", "psutil", "pynvml", "pyarrow", "duckdb", "rich",
         "typer", "yaml", "msgspec", "asyncio", "subprocess", "urllib3", "grpc"}  # fmt: skip


def test_import_loads_nothing_heavy():
    """Importing loads none of the heavy packages, nor what only a run needs."""
    loaded = run("import sys, json, otel_mlperf.public; print(json.dumps(sorted(sys.modules)))")

    assert (HEAVY | {"hashlib"}) & set(loaded) == set()


@pytest.mark.parametrize("exporters", ["", "console,otlp_proto_grpc"])
def test_recording_loads_no_heavy_package(tmp_path, exporters):
    """A whole run without an agent in the process loads neither numpy nor torch nor the SDK.

    Exporters of the SDK that the environment names are loaded by the agent.
    """
    loaded = run(
        """
import json, os, sys
import otel_mlperf as om
os.environ |= {"OTEL_TRACES_EXPORTER": sys.argv[2], "OTEL_METRICS_EXPORTER": sys.argv[2]}
with om.start("x", dir=sys.argv[1], agent="none", console=False) as run:
    for _ in om.steps([[1]]):
        with om.span("forward", rows=1): pass
        om.log(loss=1)
    om.counter("c").add(1)
    om.memory(), om.readings()
os.unlink(run._recorder.journal.path); os.rmdir(os.path.dirname(run._recorder.journal.path))
print(json.dumps(sorted(sys.modules)))
""",
        str(tmp_path),
        exporters,
    )

    assert (HEAVY - {"msgspec", "subprocess"}) & set(loaded) == set()


@pytest.mark.fault("F20")
def test_import_starts_nothing():
    """Importing starts no thread, opens no file, hooks no signal, exception or exit."""
    before, after = run(
        """
import json, os, signal, sys, threading
import opentelemetry.trace
def look():
    return [threading.active_count(), sorted(os.listdir("/proc/self/fd")),
            [str(signal.getsignal(s)) for s in (2, 15)], str(sys.excepthook)]
before = look()
import otel_mlperf.public
print(json.dumps([before, look()]))
"""
    )

    assert before == after


def test_agent_loads_no_exporter_that_nobody_named():
    """Neither the SDK nor what its exporters need."""
    code = "import sys, json, otel_mlperf.agent.lifecycle.agent_loop"
    loaded = run(f"{code}\nprint(json.dumps(sorted(sys.modules)))")

    assert {"opentelemetry.sdk", "google.protobuf", "grpc", "requests"} & set(loaded) == set()


@pytest.mark.fault("F59")
@pytest.mark.parametrize("flag", ["-O", "-OO", "-I"])
def test_interpreter_flags(flag, tmp_path):
    """Works with assertions and docstrings removed, and isolated."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport otel_mlperf as om\n"
        f"with om.start('x', dir={str(tmp_path)!r}, agent='none', console=False) as run:\n"
        "    with om.span('a'): pass\n"
        "import os; os.unlink(run._recorder.journal.path)\n"
        "os.rmdir(os.path.dirname(run._recorder.journal.path))\n"
    )
    done = subprocess.run([sys.executable, flag, "-c", code], capture_output=True, check=False)

    assert done.returncode == 0, done.stderr


FULL_COLLECTION = 700 * 11 * 11
"""Objects that live on, after which Python looks at all of them, by its own thresholds."""


def test_start_brings_no_full_collection_nearer(tmp_path):
    """What it leaves behind is less than a thirteenth of what one takes, imports included."""
    code = """
import gc, json, os, sys
import otel_mlperf as om
om.start
gc.collect()
gc.disable()
before = gc.get_count()[0]
run = om.start("x", dir=sys.argv[1], agent="none", console=False)
after = gc.get_count()[0]
run.stop()
os.unlink(run._recorder.journal.path); os.rmdir(os.path.dirname(run._recorder.journal.path))
print(after - before)
"""
    # The first one may have to compile what was never imported, which leaves more behind.
    _, left = (run(code, str(tmp_path)) for _ in range(2))

    assert left < FULL_COLLECTION / 13


@pytest.mark.parametrize("size", [1000, 20_000, 100_000])
def test_the_same_program_has_no_more_full_collections(tmp_path, size):
    """Recorded or not: 200 steps whose objects live on, in small programs and large ones."""
    code = """
import contextlib, gc, json, os, sys
import otel_mlperf as om
keep = [{"i": [i]} for i in range(int(sys.argv[2]))]
run = om.start("x", dir=sys.argv[1], agent="none", console=False, disabled=sys.argv[3] == "off")
for _ in range(200):
    with om.step():
        for _ in range(4):
            with om.span("forward"):
                keep.append([[j] for j in range(200)])
full = gc.get_stats()[2]["collections"]
run.stop()
if run.id:
    journal = run._recorder.journal.path
    os.unlink(journal); os.rmdir(os.path.dirname(journal))
print(full)
"""
    recorded, plain = (run(code, str(tmp_path), str(size), how) for how in ("on", "off"))

    assert recorded == plain
