"""Check of the files and names that a page mentions.

On a page `` `agent/intake/tail.py` `Tail` `` is a file and a name that this file defines; a name
that stands alone is to be one of the package. What is of others is written without backticks.
"""

from __future__ import annotations

import ast
import re
from functools import cache

from pages import ROOT

from otel_mlperf.cli.commands import _COMMANDS, _RUN

PACKAGE = ROOT / "otel_mlperf"
_CODE = re.compile(r"```.*?```", re.DOTALL)
_PICTURE = re.compile(r"```\n(.*?)```", re.DOTALL)
_FILE = re.compile(r"[\w./-]+\.py")
_TICKED = re.compile(r"`([^`\n]+)`")
_PLACE = re.compile(r"`([\w./-]+\.py)`((?:,? `[A-Za-z_][\w.]*(?<!\.py)(?:\(\))?`)+)")
_PATH = re.compile(r"[\w.*-]+(?:/[\w.*-]+)*(?:/|\.(?:py|md|toml|yaml|txt))")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*(?:\(\))?")
_COMMAND = re.compile(r"otel-mlperf (\w+)")


def wrong(text):
    """Whatever a page names that is not there, as it stands on the page."""
    drawn = [path for picture in _PICTURE.findall(text) for path in wrong_files(picture)]
    text = _CODE.sub("", text)
    found = [*wrong_places(text), *drawn]
    for ticked in _TICKED.findall(_PLACE.sub(r"`\1`", text)):
        command = _COMMAND.match(ticked)
        if command:
            is_there = command[1] in {_RUN, *_COMMANDS}
        elif _PATH.fullmatch(ticked):
            is_there = bool(files(ticked)) or set(ticked.strip("/").split("/")) <= words()
        elif _NAME.fullmatch(ticked):
            is_there = set(ticked.removesuffix("()").split(".")) <= words()
        else:
            is_there = True
        if not is_there:
            found.append(ticked)
    return found


def wrong_places(text):
    """Each name that the file before it does not define."""
    for place in _PLACE.finditer(text):
        for path in files(place[1]):
            known = defined(path)
            for name in _TICKED.findall(place[2]):
                if name.removesuffix("()") not in known:
                    yield f"{place[1]} {name}"


def wrong_files(picture):
    """Files of a picture that are not there; a bare name lies beside the file before it."""
    beside = ""
    for path in _FILE.findall(picture):
        whole = path if "/" in path else f"{beside}/{path}"
        beside = whole.rpartition("/")[0]
        if not files(whole):
            yield whole


def files(path):
    """What a path of a page stands for: in the repository, or in the package."""
    at_root = sorted(ROOT.glob(path.rstrip("/")))
    return at_root or sorted(PACKAGE.glob(path.rstrip("/")))


@cache
def defined(path):
    """Names that a module defines: its own, and ``Class.method``."""
    names = set()
    for node in ast.parse(path.read_text()).body:
        for name in own_names(node):
            names.add(name)
            inner = node.body if isinstance(node, ast.ClassDef) else ()
            names |= {f"{name}.{below}" for child in inner for below in own_names(child)}
    return names


def own_names(node):
    """What a statement gives a name to."""
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return [node.name]
    if isinstance(node, ast.AnnAssign):
        return [node.target.id] if isinstance(node.target, ast.Name) else []
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []


@cache
def words():
    """Each identifier of the package, and each word of its short texts that are no docstrings."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        found |= {path.stem, *path.relative_to(PACKAGE.parent).parts}
        nodes = list(ast.walk(ast.parse(path.read_text())))
        docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if id(node) not in docstrings:
                found |= words_of(node)
    return found


def words_of(node):
    """The identifiers that a node holds itself, or the words of a text."""
    if isinstance(node, ast.Constant):
        text = node.value if isinstance(node.value, str) and len(node.value) < 80 else ""
        return {text, *re.findall(r"\w+", text)}
    fields = ("name", "id", "attr", "arg")
    return {value for field in fields if isinstance(value := getattr(node, field, None), str)}
