"""Weaving: timing a function without an additional frame, attribute or wrapper around it.

The function's own body is put into a ``with`` and its code object is exchanged in place.
Tracebacks show the same files, lines and columns as before, references that were taken earlier are
timed too, and nothing is replaced that a program could compare. A wrapper would add one frame to
every traceback.
"""

from __future__ import annotations

import ast
import inspect
from operator import attrgetter
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Final, Protocol

from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.recorder.core.faults import warn_once

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager


_MAY_CLOSE_OVER: Final = ((), ("__class__",))
"""Closure variables: none, or the class of a method that calls ``super()``."""


class Gate(Protocol):
    """Gate that calls of a woven function run in."""

    @property
    def busy(self) -> bool:
        """Whether the function runs as if it were not woven."""

    def of(self, subject: object) -> AbstractContextManager[object]:
        """Return the context for the call with this subject; never raises."""


def weave(
    function: FunctionType,
    gate: Gate,
    name: str,
    *,
    inner: str = "",
    made: Sequence[FunctionType] = (),
    subject: str = "None",
) -> None:
    """Run the body of ``function`` in ``gate`` from now on, except under ``torch.compile``.

    Args:
        function: the function to weave; several may be woven into one gate.
        gate: called at each call.
        name: bound to the gate in the function's module. If that has no ``torch``, its functions
            are woven under ``torch.compile`` too.
        inner: the function of that name, made anew by each call of ``function``, is woven instead.
        made: functions of that name which it has made before.
        subject: passed to the gate for each call: an expression of the function's parameters,
            which cannot fail.

    Raises:
        OSError: the function has no source.
        TypeError: the function is not a plain one: it closes over variables (except the class of a
            method that calls ``super()``), or is a wrapper; or its ``torch`` does not report when
            it compiles.
    """
    code = function.__code__
    # Another code object fits only a function with as many cells; the source of a wrapper is that
    # of the function that it wraps.
    if code.co_freevars not in _MAY_CLOSE_OVER or hasattr(function, "__wrapped__"):
        raise TypeError(f"{function.__qualname__} closes over variables or is a wrapper")
    tree, definition = _parse(function)
    definition.decorator_list = []
    torch = function.__globals__.get("torch")
    passes = f"{_compiling(torch)}() or {name}.busy" if torch is not None else f"{name}.busy"
    _put_into(_find(definition, inner) if inner else definition, f"{name}.of({subject})", passes)
    ast.fix_missing_locations(tree)
    if code.co_freevars:
        tree = _in_class(tree)
    woven = _compile(tree, code)
    hide(gate, torch)
    # The gate comes first: another thread may call the function between these two lines.
    function.__globals__[name] = gate
    before, function.__code__ = code, woven
    for earlier in made:
        if earlier.__code__ in _codes(before):
            earlier.__code__ = next(c for c in _codes(woven) if c.co_name == inner)


def see(what: str, put: Callable[[], object]) -> None:
    """Weave by calling ``put``; if this torch cannot be woven, log once what is not observed."""
    try:
        put()
    except Exception as error:  # noqa: BLE001 - a torch that is built otherwise trains all the same
        raise_foreign(error)
        warn_once("%s cannot be observed with this version of torch: %s", what, error)


def _in_class(tree: ast.Module) -> ast.Module:
    """Let its definitions close over a class, like methods that call ``super()``."""
    scope = ast.parse("def scope(__class__): pass")
    scope.body[0].body = tree.body  # type: ignore[attr-defined]
    return scope


def _find(definition: ast.FunctionDef, inner: str) -> ast.FunctionDef:
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == inner:
            return node
    raise TypeError(f"{definition.name} defines no function {inner}")


def _compiling(torch: object) -> str:
    """Return the expression for whether ``torch.compile`` is tracing, a constant for it."""
    for path in ("compiler.is_compiling", "_utils.is_compiling"):  # the second before torch 2.3
        try:
            attrgetter(path)(torch)
        except AttributeError:
            continue
        return f"torch.{path}"
    raise TypeError("this version of torch does not report whether it is compiling")


def hide(gate: Gate, torch: object) -> None:
    """Keep ``torch.compile`` from tracing the gate's ``of``, and what that calls.

    A woven function of torch's is not always compiled itself, but its callees are traced if they
    get a module or a tensor: with ``fullgraph=True`` that would be an error of the program's.
    """
    try:
        frames = attrgetter("_C._dynamo.eval_frame")(torch)
        code = attrgetter("of.__code__")(gate)
    except AttributeError:
        return
    if hasattr(frames, "set_code_exec_strategy"):  # newer ones can spare callees too
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    elif hasattr(frames, "skip_code"):
        frames.skip_code(code)


def _put_into(definition: ast.FunctionDef, entered: str, passes: str) -> None:
    """Put a function's body into the gate's context, unless the gate is bypassed."""
    globals_ = _Globals()
    body = [globals_.visit(node) for node in definition.body]
    # The compiler's flag comes first: read under it, `busy` would become a guard that changes.
    test = _expression(passes, definition)
    # The body is there twice, so that the path of torch.compile contains nothing of ours.
    timed = ast.With([ast.withitem(_expression(entered, definition))], body)
    choice = ast.If(test, body, [timed])
    for node in (choice, timed):
        ast.copy_location(node, definition)
    definition.body = [*globals_.declared, choice]


class _Globals(ast.NodeTransformer):
    """Removal of global declarations of a function: a second copy would follow the first use."""

    def __init__(self) -> None:
        self.declared: list[ast.Global] = []

    def visit_Global(self, node: ast.Global) -> ast.Pass:
        self.declared.append(node)
        return ast.copy_location(ast.Pass(), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Skip nested functions, which have their own declarations."""
        return node


def _expression(text: str, at: ast.AST) -> ast.expr:
    """Return an expression located at an existing node."""
    expression = ast.parse(text, mode="eval").body
    for node in ast.walk(expression):
        ast.copy_location(node, at)
    return expression


def _parse(function: FunctionType) -> tuple[ast.Module, ast.FunctionDef]:
    """Return the function's syntax tree, with the lines and columns of its file."""
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
    codes = _codes(module)
    if like.co_freevars:
        codes = _codes(codes[0])
    woven = next(c for c in codes if c.co_name == like.co_name)
    return woven.replace(co_qualname=like.co_qualname)


def _codes(code: CodeType) -> list[CodeType]:
    return [constant for constant in code.co_consts if isinstance(constant, CodeType)]
