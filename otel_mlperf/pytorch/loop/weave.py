"""How is a function timed without a frame, an attribute or a wrapper of ours around it?

Its own body is put into a ``with`` and its code object is exchanged in place: tracebacks show the
same files, lines and columns as before, references that others took earlier are timed too, and
nothing is replaced that a program could compare. A wrapper would be one frame in every traceback.
"""

from __future__ import annotations

import ast
import inspect
from types import CodeType, FunctionType
from typing import Protocol


class Gate(Protocol):
    """What a woven function runs in: a context manager, and whether to leave it out."""

    @property
    def busy(self) -> bool:
        """True while the function runs as if it were not woven."""

    def __enter__(self) -> object: ...

    def __exit__(self, kind: object, error: object, traceback: object) -> None: ...


def weave(function: FunctionType, gate: Gate, name: str, inner: str = "") -> None:
    """Runs the body of ``function`` in ``gate`` from now on, except under ``torch.compile``.

    ``name`` is bound to the gate in the function's module, whose globals must hold ``torch``. With
    ``inner`` it is the function of that name, made anew by each call of ``function``.

    Raises:
        OSError: the function has no source.
        TypeError: the function is not a plain one: it closes over variables, or is a wrapper.
    """
    code = function.__code__
    # Another code object fits only a function with as many cells; the source of a wrapper is that
    # of what it wraps.
    if code.co_freevars or hasattr(function, "__wrapped__"):
        raise TypeError(f"{function.__qualname__} closes over variables or is a wrapper")
    tree, definition = _parse(function)
    definition.decorator_list = []
    _put_into(_find(definition, inner) if inner else definition, name)
    ast.fix_missing_locations(tree)
    woven = _compile(tree, code)
    # The gate comes first: another thread may call the function between these two lines.
    function.__globals__[name] = gate
    function.__code__ = woven


def _find(definition: ast.FunctionDef, inner: str) -> ast.FunctionDef:
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == inner:
            return node
    raise TypeError(f"{definition.name} makes no function {inner}")


def _put_into(definition: ast.FunctionDef, name: str) -> None:
    """Puts a function's body into the gate of that name."""
    # The compiler's flag comes first: read under it, `busy` would become a guard that changes.
    test = ast.parse(f"torch.compiler.is_compiling() or {name}.busy", mode="eval").body
    # The body stands there twice, so that the way of torch.compile holds nothing of ours.
    timed = ast.With([ast.withitem(ast.Name(name, ast.Load()))], definition.body)
    choice = ast.If(test, definition.body, [timed])
    for node in (choice, timed):
        ast.copy_location(node, definition)
    definition.body = [choice]


def _parse(function: FunctionType) -> tuple[ast.Module, ast.FunctionDef]:
    """The function's syntax tree, with the lines and columns of its file."""
    source = inspect.getsource(function)
    indented = source[:1].isspace()
    # A block around a method keeps its columns, which tracebacks underline.
    tree = ast.parse(f"if True:\n{source}" if indented else source)
    ast.increment_lineno(tree, function.__code__.co_firstlineno - (2 if indented else 1))
    block = tree.body[0]
    definition = block.body[0] if isinstance(block, ast.If) else block
    if not isinstance(definition, ast.FunctionDef):
        raise TypeError(f"{function.__qualname__} is not a plain function")
    return tree, definition


def _compile(tree: ast.Module, like: CodeType) -> CodeType:
    future = like.co_flags & 0x1FE0000  # `from __future__` of the module that the function is in
    module = compile(tree, like.co_filename, "exec", flags=future, dont_inherit=True)
    woven = next(c for c in _codes(module) if c.co_name == like.co_name)
    return woven.replace(co_qualname=like.co_qualname)


def _codes(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
