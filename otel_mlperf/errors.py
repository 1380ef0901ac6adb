"""Errors that this package can raise, and the exit code of the command line for each.

Recording never raises. These errors come from setting up, from reading files and from commands.
Each message contains what was tried, what was found and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class OtelMlperfError(Exception):
    """Base class of every error raised by otel_mlperf."""

    exit_code: ClassVar[int] = 70
    """Exit code of the command line (sysexits.h)."""


class ConfigError(OtelMlperfError):
    """Error in an argument or a configuration file; raised before any work is done."""

    exit_code = 78


class RunActive(OtelMlperfError):
    """Error: ``start()`` was called while another run of this process is active."""

    exit_code = 78


class NoSuchRun(OtelMlperfError):
    """Error: no run folder matches the given name, id prefix or path."""

    exit_code = 66


class StoreError(OtelMlperfError):
    """Error: a run folder, or a file in it, cannot be read; names the file."""

    exit_code = 65


class SharedRunFolderWarning(UserWarning):
    """Warning: other users can change the run folder that is read."""


class JournalError(OtelMlperfError):
    """Error: a journal cannot be created, or is not one; names the file."""

    exit_code = 74


class Unreachable(OtelMlperfError):
    """Error: a server did not answer, or refused what it was sent."""

    exit_code = 69


class NotRunning(OtelMlperfError):
    """Error: no process of the run can be reached, or it cannot do what is requested."""

    exit_code = 69


class RunServed(OtelMlperfError):
    """Error: an agent still serves the run, and delivers what waits itself."""

    exit_code = 75


class NoRoom(OtelMlperfError):
    """Error: a process may not map as much as it has to load."""

    exit_code = 71


class UsageError(OtelMlperfError):
    """Error: the command line is invalid."""

    exit_code = 2


class NoSuchProgram(OtelMlperfError):
    """Error: the script, module or command to run does not exist."""

    exit_code = 66


class NoSuchStep(OtelMlperfError):
    """Error: no step of that number has ended in the run."""

    exit_code = 66


class NoSuchPhase(OtelMlperfError):
    """Error: no step of that phase, or no request, has ended in the run."""

    exit_code = 66


class NoSuchRequest(OtelMlperfError):
    """Error: no spans of such a request are stored."""

    exit_code = 66


class NoSuchWindow(OtelMlperfError):
    """Error: no profiler window of the run is stored."""

    exit_code = 66


class TraceError(OtelMlperfError):
    """Error: nothing in a profiler trace can be read; names the file."""

    exit_code = 65


class NoSuchLoader(OtelMlperfError):
    """Error: the named file, module or object of a data loader does not exist."""

    exit_code = 66


class LoaderError(OtelMlperfError):
    """Error: the named object yields no batches.

    It is no loader, it is empty, or its own code raises.
    """

    exit_code = 65


class NothingToExport(OtelMlperfError):
    """Error: a run does not contain the requested data yet."""

    exit_code = 66


class NoSuchTable(OtelMlperfError):
    """Error: a run folder has no table of that name."""

    exit_code = 64


class QueryError(OtelMlperfError):
    """Error: a query over a run's tables is refused, wrong, or too slow."""

    exit_code = 65


class NotAnswered(OtelMlperfError):
    """Error: a tool of an assistant has no answer; contains the reason."""

    exit_code = 70


class MissingPackage(OtelMlperfError):
    """Error: the request needs a package that is not installed; names it."""

    exit_code = 69


class OutputError(OtelMlperfError):
    """Error: a file cannot be written, because it exists already or its place refuses it."""

    exit_code = 73
