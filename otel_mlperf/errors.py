"""Errors that this package can raise, and the exit code of the command line for each.

Recording never raises. These errors come from setting up, from reading files and from commands.
Each message contains what was tried, what was found and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class OtelMlperfError(Exception):
    """Root of every error raised by otel_mlperf."""

    exit_code: ClassVar[int] = 70
    """What the command line exits with (sysexits.h)."""


class ConfigError(OtelMlperfError):
    """An argument or a configuration file is wrong; raised before any work is done."""

    exit_code = 78


class RunActive(OtelMlperfError):
    """``start()`` was called while another run of this process is active."""

    exit_code = 78


class NoSuchRun(OtelMlperfError):
    """No run folder matches the given name, id prefix or path."""

    exit_code = 66


class StoreError(OtelMlperfError):
    """A run folder, or a file in it, cannot be read; names the file."""

    exit_code = 65


class SharedRunFolderWarning(UserWarning):
    """Other users can change the run folder that is read."""


class JournalError(OtelMlperfError):
    """A journal cannot be created, or is not one; names the file."""

    exit_code = 74


class Unreachable(OtelMlperfError):
    """A server did not answer, or refused what it was sent."""

    exit_code = 69


class NotRunning(OtelMlperfError):
    """No process of the run is there to be asked, or it cannot do what is asked."""

    exit_code = 69


class RunServed(OtelMlperfError):
    """An agent still serves the run: what waits is its own to deliver."""

    exit_code = 75


class NoRoom(OtelMlperfError):
    """A process may not map as much as it has to load."""

    exit_code = 71


class UsageError(OtelMlperfError):
    """A command line that cannot be meant."""

    exit_code = 2


class NoSuchProgram(OtelMlperfError):
    """The script, module or command that was to be run does not exist."""

    exit_code = 66


class NoSuchStep(OtelMlperfError):
    """No step of that number has ended in the run."""

    exit_code = 66


class NoSuchPhase(OtelMlperfError):
    """No step of that phase has ended in the run; or no request."""

    exit_code = 66


class NoSuchRequest(OtelMlperfError):
    """No spans of such a request are stored."""

    exit_code = 66


class NoSuchWindow(OtelMlperfError):
    """No profiler window of the run is stored."""

    exit_code = 66


class TraceError(OtelMlperfError):
    """Nothing in a profiler trace can be read; names the file."""

    exit_code = 65


class NoSuchLoader(OtelMlperfError):
    """No file, module or name of a data loader is where it was said to be."""

    exit_code = 66


class LoaderError(OtelMlperfError):
    """What was named gives no batches: it is no loader, it is empty, or its own code raises."""

    exit_code = 65


class NothingToExport(OtelMlperfError):
    """A run holds nothing yet of what was asked for."""

    exit_code = 66


class NoSuchTable(OtelMlperfError):
    """A run folder has no table of that name."""

    exit_code = 64


class QueryError(OtelMlperfError):
    """A query over a run's tables is refused, wrong, or takes longer than it may."""

    exit_code = 65


class NotAnswered(OtelMlperfError):
    """A tool of an assistant has no answer; says why."""

    exit_code = 70


class MissingPackage(OtelMlperfError):
    """What was asked for needs a package that is not installed; names it."""

    exit_code = 69


class OutputError(OtelMlperfError):
    """A file cannot be written: it is there already, or its place refuses it."""

    exit_code = 73
