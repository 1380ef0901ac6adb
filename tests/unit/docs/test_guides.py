"""The commands in the pages for users can be typed, and their quoted messages are real."""

from __future__ import annotations

import ast
import re
import subprocess

import guides
import page_programs
import pages
import pytest
import yaml

import otel_mlperf as om
from otel_mlperf.settings.config import known_variables

each_guide = pytest.mark.parametrize("page", guides.GUIDES, ids=lambda page: page.stem)


@each_guide
def test_links_lead_somewhere(page):
    """Each names a file that is there."""
    links = re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text())

    assert [link for link in links if not (page.parent / link).exists()] == []


@each_guide
def test_what_the_shell_is_told_it_understands(page):
    """Each block is a script."""
    for block in guides.blocks(page.read_text(), "sh"):
        done = subprocess.run(
            ["bash", "-n"], input=block, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, ""), block


@each_guide
def test_commands_and_options_are_there(page):
    """Of every call of ours, in blocks and in sentences."""
    assert [words for words in guides.commands(page.read_text()) if guides.unknown(words)] == []


def test_a_command_that_is_not_there_is_found():
    """Nor an option of it; what belongs to the program is the program's."""
    assert guides.unknown(["summarise"]) == ["summarise"]
    assert guides.unknown(["summary", "latest", "--jason"]) == ["--jason"]
    assert guides.unknown(["run", "--nme", "a", "train.py", "--lr", "1"]) == ["--nme"]
    assert guides.unknown(["run", "--name", "a", "--", "torchrun", "--nnodes", "2"]) == []
    assert guides.unknown(["show", "latest", "--step", "3"]) == []


@each_guide
def test_variables_are_known(page):
    """A start takes none of ours for a misspelt one."""
    named = set(re.findall(r"OTEL_MLPERF_\w+", page.read_text()))

    assert named <= set(known_variables())


@each_guide
def test_python_names_what_is_public(page):
    """Each block is Python, and what it asks of the package is there."""
    for block in guides.blocks(page.read_text(), "python"):
        used = {
            node.attr
            for node in ast.walk(ast.parse(block))
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "om"
        }
        assert used <= set(om.__all__), block


@each_guide
def test_yaml_is_what_kubernetes_takes(page):
    """Each document says its kind and its name, and each mounted volume is one of the pod's."""
    for block in guides.blocks(page.read_text(), "yaml"):
        for document in yaml.safe_load_all(block):
            assert {"apiVersion", "kind", "metadata", "spec"} == set(document)
            assert document["metadata"]["name"]
            spec = document["spec"].get("template", document)["spec"]
            containers = [*spec.get("initContainers", ()), *spec.get("containers", ())]
            mounts = {mount["name"] for one in containers for mount in one["volumeMounts"]}
            assert mounts == {volume["name"] for volume in spec.get("volumes", ())}
            for one in containers:
                assert all(variable.keys() >= {"name"} for variable in one["env"])


@each_guide
def test_rows_of_each_summary_are_explained(page):
    """Whoever sees a row on the page is told there what it holds."""
    text = page.read_text()
    shown = [one.summary for one in page_programs.shown(text)]

    assert all(page_programs.rows(summary) for summary in shown)
    for summary in shown:
        assert page_programs.rows(summary) <= page_programs.explained(text)


@each_guide
def test_messages_are_quoted_as_they_are_written(page):
    """Each heading in backticks is a text of the code, with placeholders for what differs."""
    assert [quote for quote in guides.quoted(page.read_text()) if not guides.is_said(quote)] == []


def test_a_message_that_nobody_says_is_found():
    """A word that was changed in the code is missed on the page."""
    assert guides.quoted("### `run: no such option …`\n") == ["run: no such option …"]
    assert guides.is_said("run: no such option …; options of the program come after its name")
    assert not guides.is_said("run: there is no such option …")


def test_troubles_have_a_message_or_a_sentence_and_a_cure():
    """Each symptom is followed by its cause and by what helps."""
    parts = re.split(r"^#{2,3} .+$", guides.DOCS.joinpath("troubleshooting.md").read_text(),
                     flags=re.MULTILINE)[1:]  # fmt: skip

    assert len(guides.quoted(guides.DOCS.joinpath("troubleshooting.md").read_text())) > 15
    assert [part for part in parts if part.strip() and len(part.split()) < 8] == []


def test_every_guide_is_in_the_readme():
    """Whoever opens it finds all of them."""
    readme = (pages.ROOT / "README.md").read_text()
    listed = set(re.findall(r"\]\(docs/([^)#]+)\)", readme.partition("## Documentation")[2]))

    assert {str(page.relative_to(pages.DOCS)) for page in guides.GUIDES} <= listed
