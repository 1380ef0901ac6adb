"""The public interface is as promised, and can be used as documented."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import otel_mlperf as om

ROOT = Path(__file__).parents[2]
NAMES = ["Config", "ConfigError", "GrowthRow", "JournalError", "Memory", "MemoryGrowth",
         "MemoryPoint", "OtelMlperfError", "Readings", "Run", "RunActive", "RunTable",
         "RunWarning", "SectionStats", "Span", "Stats", "StoredRun",
         "counter", "cuda_memory", "epoch", "epochs",
         "find_batch_size", "gauge", "histogram", "integrate", "log", "log_ids", "mark_step",
         "memory", "memory_growth", "memory_point", "memory_snapshot",
         "model_work",
         "on_phase", "on_step_begin", "on_step_end", "on_warning", "phase", "read_run",
         "readings",
         "remove_callback", "request", "span", "start", "step", "steps", "stop", "timed",
         "torch_profile", "trace_handler", "watch_files"]  # fmt: skip


def test_names():
    """Exactly the documented names are public, and each can be had."""
    assert sorted(om.__all__) == NAMES
    assert dir(om) == NAMES
    assert all(hasattr(om, name) for name in NAMES)
    assert not hasattr(om, "nothing_of_that_name")


@pytest.mark.parametrize("name", NAMES)
def test_documented(name):
    """Every public name says what it does."""
    assert len(inspect.getdoc(getattr(om, name)) or "") > 20


@pytest.mark.parametrize(
    ("name", "signature"),
    [
        ("start", "(name, *, params, tags, step, config, **overrides)"),
        ("stop", "()"),
        ("span", "(name, /, *, category, aggregate, resources, **attributes)"),
        ("steps", "(iterable, *, accumulate, samples, tokens, total)"),
        ("step", "(number, /, *, samples, tokens)"),
        ("mark_step", "(number)"),
        ("epochs", "(of, *, start)"),
        ("epoch", "(number)"),
        ("phase", "(name)"),
        ("integrate", "(name)"),
        ("log", "(*more, **values)"),
        ("log_ids", "()"),
        ("counter", "(name, unit)"),
        ("cuda_memory", "(*, reset_peak)"),
        ("find_batch_size", "(step, sizes, *, repeats)"),
        ("gauge", "(name, unit)"),
        ("model_work", "(model, *, peak_flops)"),
        ("histogram", "(name, unit)"),
        ("on_phase", "(callback)"),
        ("on_step_begin", "(callback)"),
        ("on_step_end", "(callback)"),
        ("on_warning", "(callback)"),
        ("remove_callback", "(callback)"),
        ("request", "(name, /, *, id, within_s, kind, **attributes)"),
        ("memory", "()"),
        ("readings", "()"),
        ("trace_handler", "(also)"),
        (
            "torch_profile",
            "(*, wait, warmup, active, repeat, skip_first, every, unit, phase, record_shapes, "
            "profile_memory, with_stack, with_flops, activities, events, folder)",
        ),
    ],
)
def test_signatures(name, signature):
    """The parameters, by which programs call, are those that were promised."""
    found = inspect.signature(getattr(om, name))
    bare = [p.replace(annotation=p.empty, default=p.empty) for p in found.parameters.values()]

    assert str(inspect.Signature(bare)) == signature


def test_run_members():
    """A run has the documented members."""
    members = {"id", "name", "path", "step", "stop", "result", "summary", "_repr_html_"}

    assert members <= set(dir(om.Run("x")))


@pytest.mark.slow
def test_typed(tmp_path):
    """Documented usage passes mypy's strict checks, from outside the package."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import otel_mlperf as om


@om.span
def double(x: int) -> int:
    return 2 * x


@om.span("named", category="io", layer=3)
def named(x: int) -> str:
    return str(x)


@om.step
def train(x: int) -> float:
    return x / 2


with om.start("digits", params={"lr": 0.1}, tags=["a"], step=3, console=False) as run:
    for epoch in om.epochs(3):
        for batch in om.steps([[1, 2], [3]], accumulate=2, tokens=len):
            with om.span("forward", rows=len(batch)) as section:
                section.set(more=batch[0] + epoch)
            om.log(loss=0.5)
        with om.phase("validate"), om.step(samples=3):
            value: int = double(train.__name__.count("a"))
    run.result(accuracy=0.5)
    run.step = run.step - 1
    om.counter("c").add(2)
    om.counter("c").labels(lang="de").add(2)
    om.gauge("g", "By").set(1.5, queue="a")
    om.histogram("h", unit="s").record(1.5, queue="a")
    with om.span("forward"), om.cuda_memory(reset_peak=True):
        pass
config = om.Config(journal_rows=4096)
memory: int | None = om.readings().process.memory_bytes
age: float | None = om.readings().host.age_s


def describe(section: om.Span, run: om.Run, now: om.Readings) -> str:
    section.set(memory=now.process.memory_bytes)
    return run.name


@om.on_warning
def warned(warning: om.RunWarning) -> None:
    print(warning.rule, warning.summary, warning.value)


@om.on_step_begin
@om.on_step_end
def stepped(phase: str, number: int) -> None:
    print(phase, number)


@om.on_phase
def changed(phase: str, is_open: bool) -> None:
    print(phase, is_open)


om.remove_callback(stepped)
text: float = train(3)
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-incremental", str(program)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout


def test_version():
    """The version is that of the distribution."""
    text = (ROOT / "pyproject.toml").read_text()

    assert f'version = "{om.__version__}"' in text
