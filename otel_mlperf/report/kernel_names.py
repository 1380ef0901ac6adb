"""Short names of C++ kernels, cut to the width of a table column.

``void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, …>(int, …)``
becomes ``vectorized_elementwise_kernel<CUDAFunctor_add>``: the function without its namespaces and
arguments, and the one template argument that distinguishes the function from similar kernels.
"""

from __future__ import annotations

import re
from collections import defaultdict
from typing import TYPE_CHECKING

from otel_mlperf.terminal_lines import columns, short

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_OPENING, _CLOSING = "<({[", ">)}]"
_FUNCTOR = re.compile(r"\w*(?:[Ff]unctor|_kernel_(?:cuda|impl)|[a-z]Ops\b)\w*")
_WRAPPERS = frozenset({"gpu_kernel_impl", "BinaryFunctor", "BUnaryFunctor", "AUnaryFunctor"})
_PLAIN = re.compile(
    r"[-+\d.]+\w*|true|false|void|bool|char|short|int|long|float|double|half|unsigned.*|signed.*"
    r"|__half2?|__nv_bfloat16\d?|BFloat16|Half|\w*float\d\w*|Array|array"
)
_GENERIC = frozenset({"kernel", "Kernel", "Kernel2", "run", "apply"})
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_PATH = re.compile(r"^\S*/(?=[^/]+\.py\()")
_WORD = re.compile(r"[A-Za-z0-9]+")
_MAX_WORDS = 3
_MIN_BASE = 10


def short_names(names: Sequence[str], width: int) -> list[str]:
    """Return a short name per kernel; words that differ are added to equal short names."""
    shortened = [short_name(name, width) for name in names]
    alike = defaultdict(list)
    for at, label in enumerate(shortened):
        alike[label].append(at)
    for places in alike.values():
        for at, difference in zip(places, _differences([names[at] for at in places]), strict=True):
            if difference:
                shortened[at] = short_name(names[at], width, difference)
    return shortened


def short_name(name: str, width: int, more: str = "") -> str:
    """Return a kernel's or operator's name in at most ``width`` columns; ``…`` marks a cut.

    ``more`` is a text to append inside the angle brackets that follow the name.
    """
    plain = _PATH.sub("", _ADDRESS.sub("", name))
    base, template = split_name(plain)
    arguments = _significant_arguments(template)
    if base.split("::")[-1] in _GENERIC and arguments:
        base, arguments = arguments, ""
    arguments = ", ".join(part for part in (arguments, more) if part)
    if not arguments:
        return short(base, width)
    if columns(base) + columns(arguments) + 2 > width:
        # The text in brackets distinguishes kernels: the function's name is cut first.
        room = width - 2
        base = short(base, max(_MIN_BASE, room - columns(arguments)))
        arguments = short(arguments, room - columns(base))
    return f"{base}<{arguments}>"


def _differences(names: Sequence[str]) -> list[str]:
    """Return, for each name, its first words that differ between the names; empty if none does."""
    tokens = [_WORD.findall(name) for name in names]
    differing = [column for column in zip(*tokens, strict=False) if len(set(column)) > 1]
    return [" ".join(row) for row in zip(*differing[:_MAX_WORDS], strict=True)] or [""] * len(names)


def split_name(name: str) -> tuple[str, str]:
    """Return a C++ function's name without namespaces, and the text of its template arguments.

    A name that is not a C++ signature is returned unchanged, without template arguments.
    """
    # Remove both patterns first: their ( and > would otherwise count as brackets.
    plain = name.replace("(anonymous namespace)::", "").replace("->", "- ")
    head = plain[: _end_of_head(plain)]
    if head == plain and "<" not in plain:
        return name, ""
    function = _without_return_type(head)
    at = function.find("<")
    template = function[at + 1 : function.rfind(">")] if 0 <= at < function.rfind(">") else ""
    parts = (function if at < 0 else function[:at]).split("::")
    base = "::".join(parts[-2:]) if parts[-1] in _GENERIC and len(parts) > 1 else parts[-1]
    return (base, template) if re.fullmatch(r"[\w:~]+", base) else (name, "")


def _end_of_head(name: str) -> int:
    """Return the index of the first ``(`` that no other bracket encloses, or the name's length."""
    return next((at for at, char, depth in _walk(name) if char == "(" and depth == 0), len(name))


def _without_return_type(head: str) -> str:
    ends = [at for at, char, depth in _walk(head) if char == " " and depth == 0]
    return head[ends[-1] + 1 :] if ends else head


def _significant_arguments(template: str) -> str:
    """Return the most informative template argument; empty if all are basic types or numbers.

    A functor is preferred to other arguments.
    """
    functors = [functor for functor in _FUNCTOR.findall(template) if not _is_wrapper(functor)]
    if functors:
        return str(functors[0])
    for argument in _arguments(template):
        last = re.split(r"[<(]", argument, maxsplit=1)[0].strip().split("::")[-1]
        if last and not _PLAIN.fullmatch(last) and re.fullmatch(r"\w+", last):
            return last
    return ""


def _is_wrapper(name: str) -> bool:
    return name in _WRAPPERS or name.startswith("gpu_kernel_impl")


def _arguments(template: str) -> Iterator[str]:
    start = 0
    for at, char, depth in _walk(template):
        if char == "," and depth == 0:
            yield template[start:at]
            start = at + 1
    yield template[start:]


def _walk(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield each character's index, the character, and how many open brackets enclose it."""
    depth = 0
    for at, char in enumerate(text):
        depth -= char in _CLOSING and depth > 0
        yield at, char, depth
        depth += char in _OPENING
