"""Safe descriptions of exceptions: type, redacted message and truncated stack.

The type is always recorded. The message is truncated and its secrets are redacted; the stack is
truncated. ``str(error)`` runs code of the program. If that code raises, the failure is recorded as
the message, and the program still sees the exception that is described.
"""

from __future__ import annotations

from otel_mlperf.foreign_errors import raise_foreign
from otel_mlperf.redaction import IN_PROCESS

MESSAGE_BYTES = 4096
STACK_BYTES = 16_384
_FRAMES = 40
_NOT_FAILURES = (GeneratorExit, StopIteration, StopAsyncIteration)


def is_failure(error: BaseException | None) -> bool:
    """Return whether ``error`` means that a section failed; False for a normal exit and None."""
    if error is None or isinstance(error, _NOT_FAILURES):
        return False
    return not (isinstance(error, SystemExit) and error.code in (None, 0))


def clean(text: str, limit: int) -> str:
    """Return ``text`` as valid UTF-8, cut to ``limit`` bytes."""
    raw = text[:limit].encode("utf-8", "replace")
    return raw[:limit].decode("utf-8", "ignore").replace("\0", "\ufffd")


def describe_exception(
    error: BaseException, *, with_text: bool = True, with_stack: bool = True
) -> list[str]:
    """Return type, message and stack of an exception, safe to store; never raises.

    Args:
        error: the exception.
        with_text: whether to include message and stack; they are empty otherwise.
        with_stack: whether to include the stack: walking a deep one costs time.
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
        # Redact a text longer than the limit: otherwise a secret cut at the limit would not be
        # recognised.
        return clean(IN_PROCESS.text(clean(str(error), 2 * MESSAGE_BYTES)), MESSAGE_BYTES)
    except Exception as broken:  # noqa: BLE001 - __str__ is the program's code
        raise_foreign(broken)
        return f"<message not readable: {type(broken).__name__}>"


def _stack(error: BaseException) -> str:
    """Return the frames, outermost first; without source lines, which would be read from disk."""
    try:
        lines: list[str] = []
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            lines.append(f'  File "{code.co_filename}", line {trace.tb_lineno}, in {code.co_name}')
            if len(lines) > 2 * _FRAMES:  # a recursion error: only its first and last frames help
                del lines[_FRAMES]
            trace = trace.tb_next
        return clean(IN_PROCESS.text("\n".join(lines)), STACK_BYTES)
    except Exception as broken:  # noqa: BLE001 - a stack is never worth an exception
        raise_foreign(broken)
        return ""
