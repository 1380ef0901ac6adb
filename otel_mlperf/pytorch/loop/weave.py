"""Weaving: running a function's body in a ``with``, without a wrapper around the function.

The function's code object is replaced in place, without an additional frame or attribute.
Tracebacks show the same files, lines and columns as before, earlier references to the function are
covered too, and the function stays the same object. A wrapper would add one frame to every
traceback.
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


_COMPILE_CHECK: Final = "_otel_mlperf_is_compiling"
"""Global name of torch's function that is true while ``torch.compile`` traces."""
_MAY_CLOSE_OVER: Final = ((), ("__class__",))
"""Permitted closure variables: none, or the class of a method that calls ``super()``."""


class Gate(Protocol):
    """Protocol of a gate, which provides the context for calls of woven functions."""

    @property
    def busy(self) -> bool:
        """Whether calls bypass the gate, as if the function were not woven."""

    def of(self, subject: object) -> AbstractContextManager[object]:
        """Return the context in which the body of a call with ``subject`` runs; never raises."""


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
        gate: provides the context of each call.
        name: global name of the gate in the function's module. If that module has no global
            ``torch``, the gate is entered under ``torch.compile`` too.
        inner: name of a function that each call of ``function`` creates and that is woven instead.
        made: functions of that name that ``function`` has created before.
        subject: expression of the function's parameters, evaluated at each call and passed to the
            gate; must not fail.

    Raises:
        OSError: the function has no source.
        TypeError: the function is not a plain one: it closes over variables (except the class of a
            method that calls ``super()``), or is a wrapper; or its ``torch`` does not report when
            it compiles.
    """
    code = function.__code__
    # A new code object must have the same number of closure cells. Of a wrapper, ``inspect``
    # returns the source of the wrapped function.
    if code.co_freevars not in _MAY_CLOSE_OVER or hasattr(function, "__wrapped__"):
        raise TypeError(f"{function.__qualname__} closes over variables or is a wrapper")
    tree, definition = _parse(function)
    definition.decorator_list = []
    torch = function.__globals__.get("torch")
    passes = f"{name}.busy"
    if torch is not None:
        # A global of the module: the lookup through ``torch.compiler`` would double the cost, which
        # each call of each module has.
        function.__globals__[_COMPILE_CHECK] = _find_compile_check(torch)
        passes = f"{_COMPILE_CHECK}() or {passes}"
    _put_into(_find(definition, inner) if inner else definition, f"{name}.of({subject})", passes)
    ast.fix_missing_locations(tree)
    if code.co_freevars:
        tree = _in_class(tree)
    woven = _compile(tree, code)
    hide(gate, torch)
    # The gate must be set first: another thread may call the function between these two lines.
    function.__globals__[name] = gate
    before, function.__code__ = code, woven
    for earlier in made:
        if earlier.__code__ in _codes(before):
            earlier.__code__ = next(c for c in _codes(woven) if c.co_name == inner)


def see(what: str, put: Callable[[], object]) -> None:
    """Weave by calling ``put``; if that fails, log once that ``what`` is not observed."""
    try:
        put()
    except Exception as error:  # noqa: BLE001 - a torch that is built otherwise trains all the same
        raise_foreign(error)
        warn_once("%s cannot be observed with this version of torch: %s", what, error)


def _in_class(tree: ast.Module) -> ast.Module:
    """Nest definitions in a scope with ``__class__``, as methods that call ``super()`` need it."""
    scope = ast.parse("def scope(__class__): pass")
    scope.body[0].body = tree.body  # type: ignore[attr-defined]
    return scope


def _find(definition: ast.FunctionDef, inner: str) -> ast.FunctionDef:
    for node in definition.body:
        if isinstance(node, ast.FunctionDef) and node.name == inner:
            return node
    raise TypeError(f"{definition.name} defines no function {inner}")


def _find_compile_check(torch: object) -> Callable[[], bool]:
    """Return the function that is true while ``torch.compile`` traces, and constant for it."""
    # The first costs a third of the second. Before torch 2.3, only the last is there.
    for path in ("compiler.is_dynamo_compiling", "compiler.is_compiling", "_utils.is_compiling"):
        try:
            check: Callable[[], bool] = attrgetter(path)(torch)
        except AttributeError:
            continue
        return check
    raise TypeError("this version of torch does not report whether it is compiling")


def hide(gate: Gate, torch: object) -> None:
    """Keep ``torch.compile`` from tracing the gate's ``of`` and the functions that it calls.

    A woven function of torch is not always compiled itself, but callees that receive a module or a
    tensor are traced. With ``fullgraph=True`` that would raise an error in the program.
    """
    try:
        frames = attrgetter("_C._dynamo.eval_frame")(torch)
        code = attrgetter("of.__code__")(gate)
    except AttributeError:
        return
    if hasattr(frames, "set_code_exec_strategy"):  # newer versions can skip callees too
        skip = frames._FrameAction.SKIP
        frames.set_code_exec_strategy(code, frames._FrameExecStrategy(skip, skip))
    elif hasattr(frames, "skip_code"):
        frames.skip_code(code)


def _put_into(definition: ast.FunctionDef, entered: str, passes: str) -> None:
    """Run a function's body in context ``entered``, unless expression ``passes`` is true."""
    globals_ = _Globals()
    body = [globals_.visit(node) for node in definition.body]
    # The compiler's flag must be tested first: otherwise torch.compile would guard on `busy`, which
    # changes.
    test = _expression(passes, definition)
    # The body is duplicated, so that the path of torch.compile contains no code of this package.
    timed = ast.With([ast.withitem(_expression(entered, definition))], body)
    choice = ast.If(test, body, [timed])
    for node in (choice, timed):
        ast.copy_location(node, definition)
    definition.body = [*globals_.declared, choice]


class _Globals(ast.NodeTransformer):
    """Removal of a function's ``global`` declarations from its body.

    A second copy of a declaration would follow a use of the name, which is a syntax error.
    """

    def __init__(self) -> None:
        self.declared: list[ast.Global] = []

    def visit_Global(self, node: ast.Global) -> ast.Pass:
        self.declared.append(node)
        return ast.copy_location(ast.Pass(), node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Skip nested functions, which have their own declarations."""
        return node


def _expression(text: str, at: ast.AST) -> ast.expr:
    expression = ast.parse(text, mode="eval").body
    for node in ast.walk(expression):
        ast.copy_location(node, at)
    return expression


def _parse(function: FunctionType) -> tuple[ast.Module, ast.FunctionDef]:
    """Return the function's syntax tree, with the lines and columns of its file."""
    source = inspect.getsource(function)
    indented = source[:1].isspace()
    # An indented method is parsed inside a block, which keeps its columns: tracebacks underline
    # them.
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
