"""What of an exception may be recorded, and how is it read without running into its bugs?

The type always; the message cut and with secrets blacked out; the stack cut. ``str(error)`` runs
code of the program, which may raise, so every look is guarded: the program sees its own exception.
"""

from __future__ import annotations

import re

MESSAGE_BYTES = 4096
STACK_BYTES = 16_384
HIDDEN = "[redacted]"
_FRAMES = 40
_SECRETS = re.compile(
    r"""
      (?<![A-Za-z0-9]) (?: hf_[A-Za-z0-9]{8,} | sk-[A-Za-z0-9_-]{8,} | gh[pousr]_[A-Za-z0-9]{8,}
        | github_pat_\w{8,} | glpat-[\w-]{8,} | xox[abprs]-[\w-]{8,} | AKIA[0-9A-Z]{12,}
        | AIza[\w-]{20,} | eyJ[\w-]{5,}\.[\w-]{5,}(?:\.[\w-]*)? )
    | (?<=://) [^\s/@]+ (?=@)
    """,
    re.VERBOSE,
)
_NAMED = re.compile(
    r"""
    (?P<name> (?i: (?<![^\W_]) (?: password | passwd | pwd | secret | credentials?
        | api[_-]?key | access[_-]?key | auth[_-]?token | access[_-]?token | token )
        ["']? \s* [=:] \s* ))
    (?P<value> "[^"]*" | '[^']*' | [^\s,;&'"]+ )
    | (?P<scheme> (?i: \b (?: bearer | basic ) \s+ )) (?P<credentials> [A-Za-z0-9._~+/=-]{6,} )
    """,
    re.VERBOSE,
)


_NOT_FAILURES = (GeneratorExit, StopIteration, StopAsyncIteration)


def is_failure(error: BaseException | None) -> bool:
    """Whether an exception that leaves a section means that it failed."""
    if error is None or isinstance(error, _NOT_FAILURES):
        return False
    return not (isinstance(error, SystemExit) and error.code in (None, 0))


def redact(text: str) -> str:
    """``text`` without what looks like a key, token, password or login in a URL."""
    text = _SECRETS.sub(HIDDEN, text)
    return _NAMED.sub(lambda m: (m["name"] or m["scheme"]) + HIDDEN, text)


def clean(text: str, limit: int) -> str:
    """``text`` as UTF-8 can carry it, cut to ``limit`` bytes."""
    raw = text[:limit].encode("utf-8", "replace")
    return raw[:limit].decode("utf-8", "ignore").replace("\0", "\ufffd")


def describe_exception(
    error: BaseException, *, with_text: bool = True, with_stack: bool = True
) -> list[str]:
    """Type, message and stack of an exception, safe to store; never raises.

    Args:
        error: what was raised.
        with_text: whether message and stack are wanted; they are empty otherwise.
        with_stack: whether the stack is wanted: walking a deep one takes time.
    """
    kind = type(error)
    name = kind.__qualname__
    if kind.__module__ not in ("builtins", "__main__"):
        name = f"{kind.__module__}.{name}"
    if not with_text:
        return [clean(name, 256), "", ""]
    return [clean(name, 256), _message(error), _stack(error) if with_stack else ""]


def _message(error: BaseException) -> str:
    try:
        # More than the limit is read, so that a secret at the cut is recognised.
        return clean(redact(clean(str(error), 2 * MESSAGE_BYTES)), MESSAGE_BYTES)
    except Exception as broken:  # noqa: BLE001 - __str__ is the program's code
        return f"<message not readable: {type(broken).__name__}>"


def _stack(error: BaseException) -> str:
    """Frames, outermost first, without source lines: those would be read from disk."""
    try:
        lines: list[str] = []
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            lines.append(f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}')
            if len(lines) > 2 * _FRAMES:  # a recursion error: only its ends are worth keeping
                del lines[_FRAMES]
            trace = trace.tb_next
        return clean(redact("\n".join(lines)), STACK_BYTES)
    except Exception:  # noqa: BLE001 - a stack is never worth an exception
        return ""
