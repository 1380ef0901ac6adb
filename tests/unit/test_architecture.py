"""The tree keeps the rules that it is built by."""

from __future__ import annotations

import ast
import graphlib
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


@cache
def parsed(path):
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def python_files(*folders):
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def test_every_module_states_what_it_contains():
    """Every file of the package has a docstring, whose first line is a statement."""
    files = python_files("otel_mlperf")
    first = {file: (ast.get_docstring(parsed(file)) or "").partition("\n")[0] for file in files}

    assert files
    assert [file for file, line in first.items() if not line or "?" in line] == []


def test_every_test_states_its_promise():
    """Every test has a docstring, and every test file a question."""
    missing = []
    for path in python_files("tests/unit", "tests/integration"):
        tree = parsed(path)
        tests = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        ]
        missing += [f"{path}:{node.lineno}" for node in tests if not ast.get_docstring(node)]
        if not ast.get_docstring(tree):
            missing.append(str(path))

    assert missing == []


@pytest.mark.fault("S5")
@pytest.mark.parametrize(
    "path", sorted((ROOT / "requirements").glob("*.txt")), ids=lambda p: p.stem
)
def test_pins_carry_hashes_and_no_addresses(path):
    """Each environment is pinned by hash, and no file names where it is downloaded from."""
    lines = path.read_text().splitlines()
    pins = [line for line in lines if line[:1].isalnum()]

    assert pins
    assert all("==" in pin and pin.endswith("\\") for pin in pins)
    assert not [line for line in lines if "://" in line or line.startswith("-")]


LAYERS = next(
    contract["layers"]
    for contract in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
        "contracts"
    ]
    if contract["name"] == "Imports point one way"
)
HEIGHT = {
    part: -height for height, layer in enumerate(LAYERS) for part in re.findall(r"\w+", layer)
}
"""Of each package and module at the top."""
IN_ANOTHER_PROCESS = {"ray_driver.py": "otel_mlperf.integrations.ray_worker"}
"""By name, because a worker of Ray may lack this package."""


def test_imports_by_name_go_down():
    """The linter does not see them: none leads to a part of the same height or above."""
    seen = 0
    for path in python_files("otel_mlperf"):
        part = path.relative_to(ROOT / "otel_mlperf").parts[0].removesuffix(".py")
        for call in (node for node in ast.walk(parsed(path)) if isinstance(node, ast.Call)):
            name = call.args[0].value if call.args and isinstance(call.args[0], ast.Constant) else 0
            if not str(name).startswith("otel_mlperf.") or "import" not in ast.unparse(call.func):
                continue
            seen += 1
            if IN_ANOTHER_PROCESS.get(path.name) != name:
                assert HEIGHT[part] > HEIGHT[name.split(".")[1]], f"{path}:{call.lineno}"

    assert seen


def imported_modules(path, modules):
    """The modules of the package that a file imports, for types alone too."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ImportFrom) and node.module in modules:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules else node.module


def test_no_modules_import_each_other():
    """There is an order in which every module comes after all that it imports, types included."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in python_files("otel_mlperf")
    }
    del files["otel_mlperf"]  # the public calls, imported by modules that run as programs
    graph = {name: {*imported_modules(path, files)} - {name} for name, path in files.items()}

    assert sum(map(len, graph.values())) > len(files)
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def called_and_imported(path):
    """The names that a file calls, with what stands before the dot, and those that it imports."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            yield from (*module, *(alias.name for alias in node.names))


@pytest.mark.fault("S15", "S20")
def test_nothing_listens_and_nothing_that_is_read_is_run():
    """No port is opened, nothing unpickled or evaluated, no shell asked, YAML is plain data.

    One socket is a file of the user's own, by which the agent sends spans back to a process.
    """
    servers = {"socketserver", "http.server", "asyncio.start_server", "create_server"}
    runs = {"eval", "exec", "os.system", "marshal", "shelve", "yaml.load", "yaml.unsafe_load",
            "pickle.load", "pickle.loads", "pickle.Unpickler"}  # fmt: skip
    for path in python_files("otel_mlperf"):
        names = set(called_and_imported(path))
        assert names & (servers | runs) == set(), path
        assert "shell=True" not in path.read_text(), path
        if path.name == "joined_provider.py":
            assert "socket.socket(socket.AF_UNIX)" in path.read_text()
            assert path.read_text().count("socket.socket(") == 1
        elif "socket" in names:
            assert not any(name.endswith((".bind", ".listen", ".accept")) for name in names), path


def test_whoever_catches_everything_says_why_or_raises_it_again():
    """Behind each ``except Exception`` and ``BaseException`` is a reason, or a ``raise``."""
    silent = []
    for path in python_files("otel_mlperf"):
        text = path.read_text()
        lines = text.splitlines()
        silent += [
            f"{path.relative_to(ROOT)}:{handler.lineno}"
            for handler in ast.walk(parsed(path))
            if isinstance(handler, ast.ExceptHandler) and catches_everything(handler)
            if not any(isinstance(node, ast.Raise) for node in ast.walk(handler))
            if not any("#" in line for line in lines[handler.lineno - 1 : handler.end_lineno])
        ]

    assert silent == []


def catches_everything(handler):
    """Whether an ``except`` names no kind of error, or the widest ones."""
    named = ast.walk(handler.type) if handler.type else []
    names = {node.id for node in named if isinstance(node, ast.Name)}
    return handler.type is None or bool(names & {"Exception", "BaseException"})
