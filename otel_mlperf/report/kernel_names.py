"""How is the name of a C++ kernel said in the width of a table?

``void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, …>(int, …)``
is ``vectorized_elementwise_kernel<CUDAFunctor_add>``: the function without its namespaces and
arguments, and of its template arguments the one that tells it from its like.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from otel_mlperf.report.lines import columns, short

if TYPE_CHECKING:
    from collections.abc import Iterator

_OPENING, _CLOSING = "<({[", ">)}]"
_FUNCTOR = re.compile(r"\w*(?:[Ff]unctor|_kernel_(?:cuda|impl)|[a-z]Ops\b)\w*")
_WRAPPERS = frozenset({"gpu_kernel_impl", "BinaryFunctor", "BUnaryFunctor", "AUnaryFunctor"})
_PLAIN = re.compile(
    r"[-+\d.]+\w*|true|false|void|bool|char|short|int|long|float|double|half|unsigned.*|signed.*"
    r"|__half2?|__nv_bfloat16\d?|BFloat16|Half|\w*float\d\w*|Array|array"
)
_GENERIC = frozenset({"kernel", "Kernel", "Kernel2", "run", "apply"})
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def short_name(name: str, width: int) -> str:
    """A kernel's or operator's name in at most ``width`` columns; a cut is marked."""
    plain = _ADDRESS.sub("", name)
    base, template = split_name(plain)
    told = _telling(template)
    if not told or base.split("::")[-1] in _GENERIC:
        return short(told or base, width)
    if columns(base) + columns(told) + 2 > width:
        # Either may be what differs: the function keeps half of the room, and more if it is there.
        room = width - 2
        base = short(base, max(room // 2, room - columns(told)))
        told = short(told, room - columns(base))
    return f"{base}<{told}>"


def split_name(name: str) -> tuple[str, str]:
    """The function of a C++ name without its namespaces, and its template arguments.

    A name that is no C++ signature is its own function.
    """
    plain = name.replace("(anonymous namespace)::", "").replace("->", "- ")
    head = plain[: _end_of_head(plain)]
    if head == plain and "<" not in plain:
        return name, ""
    function = _last_word(head)
    at = function.find("<")
    template = function[at + 1 : function.rfind(">")] if 0 <= at < function.rfind(">") else ""
    parts = (function if at < 0 else function[:at]).split("::")
    base = "::".join(parts[-2:]) if parts[-1] in _GENERIC and len(parts) > 1 else parts[-1]
    return (base, template) if re.fullmatch(r"[\w:~]+", base) else (name, "")


def _end_of_head(name: str) -> int:
    """Where the arguments of a function begin: the first parenthesis outside all brackets."""
    return next((at for at, char, depth in _walk(name) if char == "(" and depth == 0), len(name))


def _last_word(head: str) -> str:
    """The function itself, without its return type."""
    ends = [at for at, char, depth in _walk(head) if char == " " and depth == 0]
    return head[ends[-1] + 1 :] if ends else head


def _telling(template: str) -> str:
    """The template argument that says most: a functor, or else the first that is no plain type."""
    functors = [found for found in _FUNCTOR.findall(template) if not _is_wrapper(found)]
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
    """Each character with its place and how many brackets are open around it."""
    depth = 0
    for at, char in enumerate(text):
        depth -= char in _CLOSING and depth > 0
        yield at, char, depth
        depth += char in _OPENING
