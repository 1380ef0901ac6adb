"""The faults that the package must survive, the promise for each, and the tests that verify it.

A test names the faults that it verifies by ``@pytest.mark.fault("F12")``. ``tests/pages.py`` writes
the page ``docs/faults.md`` from both. A fault without a test states the reason in ``untested``.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent


class Fault(NamedTuple):
    """An event, the promised behaviour, and the untested part of the promise with the reason."""

    event: str
    promise: str
    untested: str = ""


DELIVERY = {
    "F01": Fault(
        "the server is unreachable for seconds or minutes",
        "no data is lost; delivery resumes within five seconds of the server's return",
    ),
    "F02": Fault(
        "the server stays unreachable",
        "pending data on disk is limited; beyond the limit, the oldest data is dropped and counted",
    ),
    "F03": Fault(
        "the server accepts a request but sends no response, or one byte per second",
        "one deadline covers the whole exchange; then the request is retried",
    ),
    "F04": Fault(
        "the server is overloaded (429, 503, Retry-After; RetryInfo of gRPC)",
        "a requested delay is honoured up to one minute; retries have jitter and never stop",
    ),
    "F05": Fault(
        "the server rejects a request (400, 401, 403, 404, 413, 500)",
        "only an invalid item is dropped and counted; all other items are retained and retried",
    ),
    "F06": Fault(
        "a response with status 200 reports a partial success",
        "the rejected items are counted as lost and are not sent again",
    ),
    "F07": Fault(
        "the server redirects a request",
        "the redirect is not followed and is not a success; the request is retained",
    ),
    "F08": Fault(
        "a response has megabytes, is a decompression bomb, or is not OTLP",
        "a limited number of bytes is read, nothing is decompressed, and the request did not "
        "succeed",
    ),
    "F09": Fault(
        "a batch exceeds the size limit of the server",
        "batches are split by their size in bytes, and halved if the server rejects them",
    ),
    "F10": Fault(
        "the response is lost after the server accepted the request",
        "the request is sent again with the same ids, so that a store contains each span once",
    ),
    "F11": Fault(
        "the host is unknown, the port is closed, or the certificate is invalid",
        "`start()` does not raise; the failure is reported without secrets; data is retained and "
        "retried",
    ),
    "F12": Fault(
        "two agents are started for one run",
        "one agent has the lock; the other agent changes no file",
    ),
}

PROCESS = {
    "F20": Fault(
        "a launcher sends SIGTERM",
        "no signal handler is installed; the exit status is unchanged, and all ended sections are "
        "delivered",
    ),
    "F21": Fault(
        "SIGKILL or the OOM killer ends the process at any moment",
        "ended sections are delivered exactly once, open sections as interrupted",
    ),
    "F22": Fault("`abort`, `os._exit` or `exec` ends the program", "same as after SIGKILL"),
    "F23": Fault(
        "an exception, `sys.exit` or Ctrl-C ends the program",
        "exit code and traceback are unchanged; all sections that an error leaves are marked as "
        "failed",
    ),
    "F24": Fault(
        "the program ends while the server is unreachable",
        "the end is delayed by at most about two seconds (five if a summary is printed, ten in the "
        "first process of a container); undelivered data is retained and counted as pending",
    ),
    "F25": Fault(
        "`os.fork`, multiprocessing or DataLoader workers fork while other threads record",
        "each child has its own journal and ids; nothing is recorded twice and nothing deadlocks",
    ),
    "F26": Fault(
        "a rank is repeatedly killed and restarted",
        "each start adds its records to the run; the trace ids of different starts differ",
    ),
    "F27": Fault(
        "the agent is killed",
        "a new agent continues without loss or duplicates; if agents keep dying, restarts back off "
        "to five minutes",
    ),
    "F28": Fault(
        "the program dies while its agent is running",
        "the agent stores and sends all data and exits; it keeps no file of the program open",
    ),
    "F29": Fault(
        "no thread, process, file descriptor or memory is available, or Python is shutting down",
        "no traceback and no changed result; unrecorded data is counted or reported",
    ),
    "F30": Fault(
        "the system clock is set back or forward",
        "durations follow the monotonic clock; no timestamp is negative",
    ),
    "F31": Fault(
        "a section stays open for days",
        "every ten minutes, a finished child span is created",
    ),
}

DISK = {
    "F40": Fault(
        "the disk is full or fails, or a folder is removed",
        "the program continues; data that cannot be stored is retained or counted; storage resumes",
    ),
    "F41": Fault(
        "a disk or network file system hangs",
        "the training process opens no file on a disk between start and end of the run",
    ),
    "F42": Fault(
        "files of the agent contain truncated, flipped, zeroed or foreign bytes",
        "records before the damage are used, the agent starts, and the loss is counted",
    ),
    "F43": Fault(
        "the journal folder is a link, belongs to another user, or could be replaced by one",
        "the folder is not used and the link is not followed; the journal is in the run folder",
    ),
    "F44": Fault(
        "earlier runs have left thousands of files",
        "a run opens none of them",
    ),
}

PYTHON = {
    "F50": Fault(
        "an internal error, or a callback that raises",
        "results and exceptions of the program are unchanged; the error is counted",
    ),
    "F51": Fault(
        "an exception whose message raises, is huge, or has a cyclic cause; an exception group",
        "the program receives the original exception; its recorded text is truncated",
    ),
    "F52": Fault(
        "any names and values: surrogates, tensors, infinity, lists that contain themselves",
        "values are made storable and truncated; tensors are not read; other sections are "
        "unaffected",
    ),
    "F53": Fault(
        "an impossible start or end time",
        "a negative duration counts as zero; sums stay valid",
    ),
    "F54": Fault(
        "`torch.compile(fullgraph=True)` and `torch.export`",
        "no graph break and identical results; nothing is recorded inside the compiled code",
    ),
    "F55": Fault(
        "generators and async generators: early close, use in another task, interleaved iteration",
        "the section covers the body and is never the current section of the consumer",
    ),
    "F56": Fault(
        "deep recursion, many threads, ten thousand tasks",
        "a call costs one stack frame; sections of different threads and tasks are never mixed",
    ),
    "F57": Fault(
        "signal handlers and finalizers record while the interrupted code is recording",
        "no deadlock; no row is missing or damaged",
    ),
    "F58": Fault(
        "seeded random generators of Python, NumPy and PyTorch",
        "the generators are not used; losses and weights are bit-identical; ids do not follow the "
        "seed",
    ),
    "F59": Fault(
        "`-O`, `-I`, `-W error`, closed streams, a failing log handler, another tracer provider",
        "nothing raises, and no unintended output is printed",
        "gevent, which replaces threads below Python's own: no test runs under gevent",
    ),
    "F60": Fault(
        "invalid settings",
        "invalid arguments and files raise before any work; a warning names an invalid variable",
    ),
}

SENSORS = {
    "F70": Fault(
        "the GPU library or driver is missing or incompatible",
        "one log line; a new attempt after five minutes; readings are absent, not zero",
    ),
    "F71": Fault(
        "a GPU does not support or permit a reading",
        "only this reading is absent; MIG instances have memory but no utilization",
    ),
    "F72": Fault(
        "a GPU is lost, is reset, or returns",
        "its readings are absent during the loss; the loss is counted and is in the run's trace",
    ),
    "F73": Fault(
        "a driver call hangs",
        "only the readings of this call are late; no other part waits for the call",
    ),
    "F74": Fault(
        "files of the kernel are missing, malformed or of another version",
        "readings are absent, not zero; a limit is the lowest of all applicable limits",
    ),
    "F75": Fault(
        "GPUs are hidden, renumbered, or selected by UUID or MIG instance",
        "a rank has the GPU that CUDA assigns to it, or no GPU if the assignment is unknown",
    ),
}

PROFILER = {
    "F80": Fault(
        "another profiler is running, or starts during a window",
        "two profilers never run at once: the window is skipped or cut, and the program's profiler "
        "records all its events",
    ),
    "F81": Fault(
        "events of the device are unavailable",
        "the window contains the CPU events and reports what is missing",
        "CUPTI in use by another tool: requires a GPU and that tool; a window without device "
        "events is tested",
    ),
    "F82": Fault(
        "CUDA graphs with CUDA before 12.6",
        "no profiling, and no CUPTI variable is set",
    ),
    "F83": Fault(
        "a window has hundreds of thousands of events",
        "the window ends at its event limit and is converted in parallel to the training; no time "
        "is lost",
    ),
    "F84": Fault(
        "a trace cannot be exported or written",
        "only this window is lost: no partial file, one log message, no exception",
    ),
    "F85": Fault(
        "profiler windows allocate memory",
        "the memory is released: no window keeps events",
    ),
    "F86": Fault(
        "a trace file is truncated or damaged, or is not JSON",
        "everything around the damage is read; each damage is counted with its position; a file "
        "without events is refused",
    ),
    "F87": Fault(
        "PyTorch itself writes invalid JSON",
        "the JSON is repaired where the intended value is clear",
    ),
    "F88": Fault(
        "a compressed file is a decompression bomb, truncated, corrupt, or has trailing data",
        "the file is read up to a limit with little memory; data before the fault is used",
    ),
    "F89": Fault(
        "ids refer to nothing or are repeated; times are impossible",
        "missing references are counted, never guessed; a repeated id refers to the last call "
        "before; times are exact to the nanosecond",
    ),
    "F90": Fault(
        "FIFOs, devices, folders, files that grow or shrink, equal file names",
        "only regular files are read, and no appended bytes; no trace is overwritten",
    ),
}

ATTACKS = {
    "F91": Fault(
        "shared memory is emptied, or a journal is truncated, during a run",
        "the agent continues to read the removed file; the next step creates a new file; a "
        "truncated file gets its length back; lost rows are counted",
    ),
    "F92": Fault(
        "the agent gets no CPU",
        "no loss at 10,000 spans per second next to two busy processes; otherwise the loss is "
        "counted exactly",
        "the rate, which requires a minute on a loaded machine: `tests/load/rate.py --busy 2`",
    ),
    "F93": Fault(
        "the agent is stopped for half a minute and continues",
        "a stopped agent does not count as dead; no second agent starts until its lock is free",
    ),
    "F94": Fault(
        "a program overwrites its journal",
        "impossible values are dropped and counted; other journals and runs are unaffected",
    ),
    "F95": Fault(
        "a signal handler, or another thread, raises an exception inside code of the package",
        "the exception always reaches the program, exactly once",
    ),
    "F96": Fault(
        "the program catches Ctrl-C and uses the interrupted construct again",
        "the construct works as if it were new: no deadlock and no swallowed exception",
    ),
    "F97": Fault(
        "a server reports more rejected items than it received",
        "at most the items of the request are counted as lost",
    ),
    "F98": Fault(
        "the agent's folder contains corrupt or foreign files",
        "the files are ignored with a log message; the agent starts, and `doctor --recover` works",
    ),
    "F99": Fault(
        "another user owns or prepares the journal folder",
        "the folder is refused; the journal is stored in the run folder; files of the other user "
        "are not read",
    ),
    "F100": Fault(
        "oversized attributes, a rank of 23 digits, no working directory",
        "one warning for each; the value is truncated or ignored, and the program continues",
    ),
}

SECURITY = {
    "S1": Fault(
        "an attacker on the network reaches the machine of the stack",
        "the ports of the stack are open on loopback only",
    ),
    "S2": Fault(
        "debugging and administration interfaces",
        "disabled in every file of the stack",
    ),
    "S3": Fault(
        "a dashboard without a password",
        "no anonymous access and no sign-up; the password is generated on the machine",
    ),
    "S4": Fault(
        "an attacker controls a container",
        "read-only, without capabilities or root, with resource limits; only the one-shot "
        "container that prepares volumes runs as root, without a network",
    ),
    "S5": Fault(
        "an image or a package is replaced",
        "packages are pinned by hash, images by version; one command pins images by digest",
        "a scan and an SBOM of the images, which the publisher of a release provides",
    ),
    "S6": Fault(
        "an endpoint on another machine uses plain http",
        "headers are not sent, unless `OTEL_EXPORTER_OTLP_INSECURE=true`",
        "the spans, which are sent unencrypted: SECURITY.md lists this limit",
    ),
    "S7": Fault(
        "the certificate is invalid, or other users can read the client key",
        "nothing is sent to an untrusted server; a readable key causes a warning",
    ),
    "S8": Fault(
        "secrets in headers, variables, attributes and exceptions",
        "no file, request body, message or `repr` contains a secret",
    ),
    "S9": Fault(
        "secrets in the command line and the environment of the program",
        "neither is recorded",
    ),
    "S10": Fault(
        "tokens in texts of exceptions and attributes",
        "tokens are redacted by their form and by their name; a setting omits exception texts",
    ),
    "S11": Fault(
        "tensors and models as attributes",
        "the type, and the shape of tensors, is recorded, never the content",
    ),
    "S12": Fault("values of megabytes", "values are truncated; the limits are on by default"),
    "S13": Fault(
        "netrc, proxy variables, redirects, endless responses",
        "netrc and proxy variables are not read, redirects not followed, responses limited in size",
    ),
    "S14": Fault(
        "another service sends trace headers (`traceparent`)",
        "trace ids of the run and its steps follow from the run id alone. otel_mlperf reads no "
        "headers. If the program extracts them into an OpenTelemetry context, sections and "
        "requests in this context join the caller's trace",
    ),
    "S15": Fault(
        "a malicious trace file",
        "only regular files are read; size, compression ratio and depth are limited; nothing is "
        "unpickled or evaluated",
    ),
    "S16": Fault(
        "names of the program in paths",
        "id and name of a run become one safe file name; ranks are numbers",
    ),
    "S17": Fault("markup in names", "a notebook shows the markup as text"),
    "S18": Fault(
        "names with special characters in exported formats",
        "labels are sent as OTLP fields; a library writes the JSON; no cell of a CSV file is a "
        "formula",
    ),
    "S19": Fault("control characters in names", "no control character reaches the terminal"),
    "S20": Fault(
        "a process of another user on the same machine",
        "no port is open; only their owner can access journals",
    ),
    "S21": Fault(
        "a user wants to know what is protected",
        "SECURITY.md states what is trusted, what is promised, and the known limits",
    ),
}

GROUPS = {
    "Delivery to servers": DELIVERY,
    "Process lifecycle": PROCESS,
    "Disks": DISK,
    "Python and the program": PYTHON,
    "Sensors": SENSORS,
    "Profiler and traces": PROFILER,
    "Interference during a run": ATTACKS,
    "Security": SECURITY,
}
FAULTS = {name: fault for group in GROUPS.values() for name, fault in group.items()}


@cache
def marked_tests() -> dict[str, list[str]]:
    """Return the node ids of the tests that verify each fault, by fault, in order."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef):
                for fault in _faults_of(node):
                    found.setdefault(fault, []).append(f"{path.relative_to(TESTS)}::{node.name}")
    return found


def _faults_of(function: ast.FunctionDef) -> list[str]:
    return [
        argument.value
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.fault"
        for argument in decorator.args
        if isinstance(argument, ast.Constant)
    ]
