"""The output of commands with ``--json`` matches ``otel-mlperf reference schema``."""

from __future__ import annotations

import io
import json
import math
import sys
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from functools import cache

import jsonschema
import pytest
from kineto_traces import training_step, write_trace
from pages import DOCS
from run_folders import MS, RunFolderBuilder, S, digits, training

from otel_mlperf import ids
from otel_mlperf.cli import commands, main
from otel_mlperf.cli.import_ import import_
from otel_mlperf.cli.reference import answers
from otel_mlperf.run_files.growth_file import GrowthRow
from otel_mlperf.run_files.hot_file import HotSpot, ProfiledCall, append_call

ASKED = [
    "summary digits",
    "summary sections",
    "summary diverged",
    "summary digits --every 1h",
    "findings digits",
    "findings starving",
    "show digits",
    "show digits --step 30",
    "show sections",
    "show sections --phase request",
    "compare digits wide",
    "compare digits wide starving",
    "compare digits wide --max samples_per_s>=1",
    "compare digits --write-baseline base.json",
    "kernels profiled",
    "kernels trace.json --by operator",
    "summary digits --functions",
    "query digits SELECT(max(number))FROM(steps)",
    "import trace.json",
    "runs",
    "runs --columns step,width",
    "runs --trend digits",
    "top digits",
    "top diverged",
    "profile --loader loaders.py:numbers --batches 1",
    "reference metrics",
    "doctor digits",
]
"""At least one for each shape of each command."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """What the commands are asked about, in the folder where they are."""
    runs = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(runs)
        patch.setenv("OTEL_MLPERF_DIR", str(runs))
        fill(runs)
        yield runs


class Answers(dict):
    """Answers of commands, by command line; each command runs once, when it is first needed."""

    def __missing__(self, asked):
        self[asked] = json.loads(said(*asked.split(), "--json")[0])
        return self[asked]


@pytest.fixture(scope="module")
def answers_to(folder):
    """Answers of the commands in that folder."""
    return Answers()


def said(*arguments):
    """Output and messages of the real entry."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["otel-mlperf", *arguments])
        with pytest.raises(SystemExit):
            main()
    return out.getvalue(), err.getvalue()


@cache
def schema_of(*command):
    """What ``otel-mlperf reference schema`` prints."""
    return json.loads(said("reference", "schema", *command)[0])


def fill(runs):
    """Runs, a trace and a loader."""
    run = digits(runs)
    row = GrowthRow(what="type", name="Batch", count=1, bytes=48, now_count=2, now_bytes=96)
    run.grown(row, bytes=48)
    run.write()
    spots = [HotSpot(name="attention", file="model.py", line=3, calls=4, own_ns=MS)]
    about = {"section": "forward", "category": "forward", "phase": "train", "kind": "calls"}
    call = ProfiledCall(**about, rank=0, restart=0, unix_ns=1, duration_ns=2 * MS, spots=spots)
    append_call(str(run.path), 7, call)
    training(runs, "wide", "b" * 16, forward=13).write()
    training(runs, "starving", "c" * 16, waiting=30).write()
    sections = RunFolderBuilder(runs, "sections", "d" * 16)
    sections.process(S)
    trace = f"{ids.run_trace_id('d' * 16, 0):032x}"
    root = sections.span(None, "run", 0, S, trace_id=trace, phase="")
    sections.span(None, "read", 0, S // 5, trace_id=trace, phase="", parent_id=root)
    sections.span(None, "predict", 0, S // 9, trace_id="9" * 32, phase="", category="request")
    sections.outside("read", S // 5)
    sections.write()
    diverged = training(runs, "diverged", "e" * 16)
    for number, loss in enumerate((0.5, math.nan, math.inf)):
        diverged.row(
            "values", rank=0, restart=0, phase="train", name=f"loss{number}", number=number,
            time_ns=number, value=loss,
        )  # fmt: skip
    diverged.write()
    import_([write_trace(runs / "trace.json", training_step())], run="profiled")
    (runs / "loaders.py").write_text("numbers = [[1, 2], [3, 4]] * 50\n")


@pytest.mark.sampled(8)
@pytest.mark.parametrize("asked", ASKED)
def test_an_answer_is_what_the_schema_of_its_command_says(asked, answers_to):
    """Each field is there, of its type, and none that is not in the schema."""
    schema = deepcopy(schema_of(asked.split()[0]))
    for shape in schema["$defs"].values():
        shape["additionalProperties"] = False

    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(answers_to[asked], schema, jsonschema.Draft202012Validator)


def test_every_command_with_json_has_a_schema():
    """And no other command."""
    with_json = {
        name
        for name in commands._COMMANDS
        for option in commands._Lazy().get_command(None, name).params
        if "--json" in option.opts
    }

    assert set(answers()) == with_json


@pytest.mark.slow
def test_every_shape_of_every_command_was_asked_for(answers_to):
    """The questions above leave none out."""
    schema = schema_of()
    shapes = [schema["$defs"][part["$ref"].rpartition("/")[2]] for part in schema["anyOf"]]

    assert {answers_to[asked]["schema"] for asked in ASKED} == {
        name for shape in shapes for name in shape["properties"]["schema"]["enum"]
    }


def test_what_is_not_finite_is_null(answers_to):
    """As the schema allows: JSON has no such numbers."""
    assert answers_to["summary diverged"]["last"] == {"loss0": 0.5, "loss1": None, "loss2": None}


def test_fields_say_what_they_mean():
    """In the words that stand below them in the code, null for None; none is ever left out."""
    summary = schema_of("summary")["$defs"]["Summary"]

    assert summary["properties"]["failure"]["anyOf"][1] == {"type": "null"}
    assert summary["properties"]["epochs"]["type"] == "array"
    assert "null: all ranks" in summary["properties"]["rank"]["description"]
    assert summary["required"] == list(summary["properties"])


def test_the_schema_in_the_docs_is_that_of_the_code():
    """``otel-mlperf reference schema > docs/json.schema.json`` writes it; check what it changes."""
    assert (DOCS / "json.schema.json").read_text() == said("reference", "schema")[0]


def test_a_command_without_json_has_no_schema():
    """It says which have one."""
    assert "profile, summary, findings" in said("reference", "schema", "run")[1]


def test_json_and_messages_do_not_share_an_output(folder):
    """What was written, and annotations for GitHub, go where messages go."""
    out, err = said("compare", "digits", "--write-baseline", "b.json", "--github", "--json")

    assert json.loads(out)["verdicts"] == []
    assert "wrote b.json" in err
