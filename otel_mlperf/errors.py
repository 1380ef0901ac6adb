"""Errors of this package, each with its exit code of the command line.

Recording never raises. These errors are raised by set-up, by reading files and by commands. Each
message has three parts: what was tried, what was found and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class OtelMlperfError(Exception):
    """Base class of every error raised by otel_mlperf."""

    exit_code: ClassVar[int] = 70
    """Exit code of the command line (sysexits.h)."""


class ConfigError(OtelMlperfError):
    """Error: an argument or a configuration file is invalid; raised before any work is done."""

    exit_code = 78


class RunActive(OtelMlperfError):
    """Error: ``start()`` was called while another run of this process is active."""

    exit_code = 78


class NoSuchRun(OtelMlperfError):
    """Error: no run folder matches the given name, id prefix or path."""

    exit_code = 66


class StoreError(OtelMlperfError):
    """Error: a run folder, or a file in it, cannot be read; the message names the file."""

    exit_code = 65


class SharedRunFolderWarning(UserWarning):
    """Warning: other users can change the run folder that is read."""


class JournalError(OtelMlperfError):
    """Error: a journal cannot be created, or a file is not a journal; the message names it."""

    exit_code = 74


class Unreachable(OtelMlperfError):
    """Error: a server did not respond, or rejected the sent data."""

    exit_code = 69


class NotRunning(OtelMlperfError):
    """Error: no process of the run can be reached, or the process cannot execute the request."""

    exit_code = 69


class RunServed(OtelMlperfError):
    """Error: an agent still serves the run, and will deliver the pending data itself."""

    exit_code = 75


class NoRoom(OtelMlperfError):
    """Error: the address space limit of a process is too low for the libraries that it loads."""

    exit_code = 71


class UsageError(OtelMlperfError):
    """Error: the command line is invalid."""

    exit_code = 2


class NoSuchProgram(OtelMlperfError):
    """Error: the script, module or command to run does not exist."""

    exit_code = 66


class NoSuchStep(OtelMlperfError):
    """Error: no step with the given number has ended in the run."""

    exit_code = 66


class NoSuchPhase(OtelMlperfError):
    """Error: no step of the given phase, or no request, has ended in the run."""

    exit_code = 66


class NoSuchRequest(OtelMlperfError):
    """Error: no spans of the given request are stored."""

    exit_code = 66


class NoSuchWindow(OtelMlperfError):
    """Error: no profiler window of the run is stored."""

    exit_code = 66


class TraceError(OtelMlperfError):
    """Error: nothing in a profiler trace can be read; the message names the file."""

    exit_code = 65


class NoSuchLoader(OtelMlperfError):
    """Error: the named file, module or object of a data loader does not exist."""

    exit_code = 66


class LoaderError(OtelMlperfError):
    """Error: the named object is not a loader, is empty, or raises an exception."""

    exit_code = 65


class NothingToExport(OtelMlperfError):
    """Error: a run does not contain the requested data yet."""

    exit_code = 66


class NoSuchTable(OtelMlperfError):
    """Error: a run folder has no table with the given name."""

    exit_code = 64


class QueryError(OtelMlperfError):
    """Error: a query of a run's tables is not permitted, invalid, or exceeds a limit."""

    exit_code = 65


class NotAnswered(OtelMlperfError):
    """Error: a tool of the MCP server has no answer; the message contains the reason."""

    exit_code = 70


class MissingPackage(OtelMlperfError):
    """Error: a required package is not installed; the message names the package."""

    exit_code = 69


class OutputError(OtelMlperfError):
    """Error: a file cannot be written, because it exists already or the system refuses it."""

    exit_code = 73
