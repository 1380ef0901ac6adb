"""The faults that the package must survive, the promise for each, and the tests that check it.

A test says by ``@pytest.mark.fault("F12")`` which rows it holds; ``tests/pages.py`` writes the page
``docs/faults.md`` from both. A row that no test holds has to say why.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent


class Fault(NamedTuple):
    """What happens, what we promise then, and what of it no test holds, with the reason."""

    event: str
    promise: str
    untested: str = ""


DELIVERY = {
    "F01": Fault(
        "the server is away for seconds or minutes",
        "nothing is lost; sending goes on within five seconds of its return",
    ),
    "F02": Fault(
        "the server never comes back",
        "what waits stays below its limit on disk; then the oldest goes, counted",
    ),
    "F03": Fault(
        "the server takes a request and says nothing, or one byte a second",
        "one deadline for the whole exchange, then another try",
    ),
    "F04": Fault(
        "the server is overloaded (429, 503, Retry-After; gRPC's RetryInfo)",
        "its wish is honoured up to a minute; tries spread out and never end",
    ),
    "F05": Fault(
        "the server refuses (400, 401, 403, 404, 413, 500)",
        "the bad item alone is lost, counted; all else is kept and tried again",
    ),
    "F06": Fault("a 200 that took only a part", "what was rejected is counted as lost, not resent"),
    "F07": Fault("a redirect", "no success and not followed; kept"),
    "F08": Fault(
        "an answer of megabytes, a bomb, or garbage",
        "a bounded read, nothing unpacked, and no success",
    ),
    "F09": Fault(
        "a batch larger than the server takes", "cut by bytes, halved where it is refused"
    ),
    "F10": Fault(
        "the answer is lost after the server has taken the request",
        "sent again under the same ids, so that a store has it once",
    ),
    "F11": Fault(
        "no such host, a closed port, a wrong certificate",
        "start does not raise; said without secrets, kept, tried again",
    ),
    "F12": Fault("two agents for one run", "one holds the lock; the other leaves everything alone"),
}

PROCESS = {
    "F20": Fault(
        "SIGTERM of a launcher",
        "no handler of ours; the exit status stays, and all that had ended is delivered",
    ),
    "F21": Fault(
        "SIGKILL or the OOM killer, at any moment",
        "all that had ended is there, once; what was open arrives as interrupted",
    ),
    "F22": Fault("abort, os._exit, exec", "as after SIGKILL"),
    "F23": Fault(
        "an exception, sys.exit, Ctrl-C ends the program",
        "exit code and traceback are the program's own; what it crossed is marked",
    ),
    "F24": Fault(
        "the program ends while the server is dead",
        "it waits two seconds at most; the rest is kept and counted as pending",
    ),
    "F25": Fault(
        "forks: raw, multiprocessing, DataLoader workers, while others record",
        "each child has a journal and ids of its own; nothing twice, nothing hangs",
    ),
    "F26": Fault(
        "a rank is killed and started again, again and again",
        "each start adds what it recorded; the trace ids of starts differ",
    ),
    "F27": Fault(
        "the agent is killed",
        "another one goes on without loss or double, ever more rarely if it dies again",
    ),
    "F28": Fault(
        "the program dies and its agent stays behind",
        "it stores and sends what there is, leaves, and holds nothing of the program's",
    ),
    "F29": Fault(
        "no thread, no process, no descriptor, no memory, or Python is ending",
        "no traceback and no other result; what could not be recorded is counted or said",
    ),
    "F30": Fault(
        "the clock is set back or forward",
        "durations follow the monotonic clock; no time is negative",
    ),
    "F31": Fault("a section that is open for days", "a finished child every ten minutes"),
}

DISK = {
    "F40": Fault(
        "a full disk, one that refuses, a folder that is removed",
        "the program goes on; what cannot be stored is kept or counted, and it recovers",
    ),
    "F41": Fault(
        "a disk or network file system that hangs",
        "the training process opens no file between start and end",
    ),
    "F42": Fault(
        "torn, flipped, zeroed or foreign bytes in the agent's files",
        "what stands before the damage counts, the agent starts, the loss is counted",
    ),
    "F43": Fault(
        "links, foreign owners, a folder that somebody made before us",
        "not used and not followed; the journal goes to a private place",
    ),
    "F44": Fault(
        "thousands of files that earlier runs left",
        "a run opens none of them",
    ),
}

PYTHON = {
    "F50": Fault(
        "a mistake of ours, or a callback that raises",
        "the program computes the same and sees its own exceptions; it is counted",
    ),
    "F51": Fault(
        "an exception whose text raises, is huge, cyclic or a group",
        "the program gets that very exception; what is recorded of it is cut",
    ),
    "F52": Fault(
        "names and values of any kind: surrogates, tensors, no numbers, without end",
        "made storable and cut; a tensor is never read; no section hurts another",
    ),
    "F53": Fault(
        "a start or an end that cannot be",
        "a negative duration counts as zero and spoils no sum",
    ),
    "F54": Fault(
        "torch.compile with fullgraph, export",
        "no graph break and the same numbers; nothing is recorded inside",
    ),
    "F55": Fault(
        "generators and async generators: early close, other task, taking turns",
        "a section covers the body and is never current in the consumer",
    ),
    "F56": Fault(
        "deep recursion, many threads, ten thousand tasks",
        "one frame a call; sections of threads and tasks are never mixed up",
    ),
    "F57": Fault(
        "signal handlers and finalizers that record in the middle of recording",
        "no lock to hang on: all rows are there, none is damaged",
    ),
    "F58": Fault(
        "seeded generators of Python, numpy and torch",
        "not drawn from; losses and weights are bit for bit the same, ids differ",
    ),
    "F59": Fault(
        "-O, -I, -W error, closed streams, a log handler that raises, another provider",
        "nothing raises, and nothing is printed that is not meant to be",
        "gevent: it replaces threads below Python's own, and nothing here was tried under it",
    ),
    "F60": Fault(
        "wrong settings",
        "wrong arguments and files raise before any work; a wrong variable warns by its name",
    ),
}

SENSORS = {
    "F70": Fault(
        "no GPU library, no driver, one that does not fit",
        "said once, asked again after five minutes; readings are absent, not zero",
    ),
    "F71": Fault(
        "a reading that a GPU does not offer or permit",
        "that one is absent; MIG instances have memory and no utilisation",
    ),
    "F72": Fault(
        "a GPU is lost, is reset, comes back",
        "absent meanwhile, counted, a moment in the trace of the run",
    ),
    "F73": Fault("a driver call hangs", "only its readings are late; nothing waits for it"),
    "F74": Fault(
        "files of the kernel that are missing, odd or of another version",
        "absent, not zero; limits are the least of all that hold",
    ),
    "F75": Fault(
        "GPUs hidden, renumbered, named by UUID or instance",
        "a rank has the GPU that CUDA gives it, or none that can be told",
    ),
}

PROFILER = {
    "F80": Fault(
        "a profiler is running already, or starts meanwhile",
        "never a second one: ours gives way, and the program's sees every event",
    ),
    "F81": Fault(
        "the device's events cannot be had",
        "the window has those of the CPU, and says what it lacks",
        "CUPTI in use by somebody else: it takes a GPU and a second tool; what it leaves is tested",
    ),
    "F82": Fault(
        "CUDA graphs with an old CUDA",
        "not profiled, and no variable of CUPTI is set",
    ),
    "F83": Fault(
        "a window of hundreds of thousands of events",
        "cut at its cap, converted beside the training, and no time is lost",
    ),
    "F84": Fault(
        "a trace cannot be exported or written",
        "the window is lost alone: no half file, one word, no exception",
    ),
    "F85": Fault("memory that profiler windows take", "given back: no window keeps an event"),
    "F86": Fault(
        "a trace file that is cut, broken, or not JSON at all",
        "everything around the damage is read, each damage counted with its place",
    ),
    "F87": Fault("invalid JSON as PyTorch itself writes it", "mended where it can be told"),
    "F88": Fault(
        "compressed files: bombs, cut, corrupt, with a tail",
        "read up to a cap in little memory; what stands before the fault is kept",
    ),
    "F89": Fault(
        "numbers that point nowhere or twice, times that cannot be",
        "counted, never guessed; times are exact to the nanosecond",
    ),
    "F90": Fault(
        "FIFOs, devices, folders, files that grow or shrink, equal names",
        "regular files only, as far as they were; no trace is overwritten",
    ),
}

ATTACKS = {
    "F91": Fault(
        "shared memory is emptied, or a journal cut short, while a run goes on",
        "it is read on, a new file comes at the next step, a cut one is made whole; counts hold",
    ),
    "F92": Fault(
        "the agent gets no processor",
        "no loss at 10,000 spans a second beside two busy processes, or the exact count",
        "the rate: it takes a machine under load for a minute: `tests/load/rate.py --busy 2`",
    ),
    "F93": Fault(
        "the agent is stopped for half a minute and goes on",
        "not taken for dead, and never given up while the run goes on",
    ),
    "F94": Fault(
        "a program writes over its journal",
        "what cannot be is dropped and counted; other journals and runs are untouched",
    ),
    "F95": Fault(
        "an exception out of a signal handler, or set from another thread, inside our code",
        "it reaches the program, always, once",
    ),
    "F96": Fault(
        "Ctrl-C is caught, and the same construct is used again",
        "as new: nothing hangs, nothing is swallowed",
    ),
    "F97": Fault(
        "a server that claims to have rejected more than it was given",
        "no more than the request is counted as lost",
    ),
    "F98": Fault(
        "garbled or foreign files in the agent's folder",
        "left out with a word; the agent starts, and `doctor --recover` works",
    ),
    "F99": Fault(
        "another user owns or prepares the folder of the journals",
        "refused, and a private place on disk taken; nothing of theirs is read",
    ),
    "F100": Fault(
        "attributes without measure, a rank of 23 digits, no working directory",
        "one warning, cut or off; the program goes on",
    ),
}

SECURITY = {
    "S1": Fault("somebody on the network finds the stack", "its ports are on loopback alone"),
    "S2": Fault("doors for debugging or administration", "shut in every file of the stack"),
    "S3": Fault(
        "a dashboard without a password",
        "no visitors, no sign-up; a password that is made on the machine",
    ),
    "S4": Fault(
        "a container that is broken into",
        "read-only, without capabilities or root, bounded",
    ),
    "S5": Fault(
        "an image or a package is replaced",
        "packages are pinned by hash, images by version, and by digest with one command",
        "a scan of the images and an SBOM: they follow from whoever publishes a release",
    ),
    "S6": Fault(
        "an endpoint on another machine over plain http",
        "headers stay here unless it is said that this is wanted",
        "spans themselves are sent: SECURITY.md names it as a limit",
    ),
    "S7": Fault(
        "a wrong certificate, a key that others may read",
        "nothing is sent to whom is not trusted; a loose key is said",
    ),
    "S8": Fault(
        "secrets in headers, variables, attributes, exceptions",
        "in no file, request, message or repr",
    ),
    "S9": Fault(
        "the command line and the environment of the program",
        "neither is recorded",
    ),
    "S10": Fault(
        "tokens in the text of exceptions and attributes",
        "blacked out by their form and by their name; the text can be left out",
    ),
    "S11": Fault("tensors and models as attributes", "type and shape, never the content"),
    "S12": Fault("values of megabytes", "cut to limits that are on by default"),
    "S13": Fault(
        "netrc, proxy variables, redirects, endless answers",
        "not read, not followed, bounded",
    ),
    "S14": Fault(
        "trace headers of a stranger",
        "none is read: trace ids follow from the run",
    ),
    "S15": Fault(
        "a trace file made to harm",
        "regular files, caps of size, ratio and depth; nothing is unpickled or evaluated",
    ),
    "S16": Fault(
        "names of the program in paths",
        "a run's id and name become one safe file name; ranks are numbers",
    ),
    "S17": Fault("markup in names", "a notebook shows them as text"),
    "S18": Fault(
        "names in formats of others",
        "labels travel in OTLP; JSON is written by a library; nothing writes CSV",
    ),
    "S19": Fault("control characters in names", "a terminal is shown none of them"),
    "S20": Fault(
        "another user's process beside ours",
        "nothing listens; journals are for their owner alone",
    ),
    "S21": Fault(
        "somebody wants to know what is protected",
        "SECURITY.md says what is trusted, promised and known to be missing",
    ),
}

GROUPS = {
    "The way to the server": DELIVERY,
    "The life of processes": PROCESS,
    "Disks": DISK,
    "Python and the program": PYTHON,
    "Sensors": SENSORS,
    "The profiler and its traces": PROFILER,
    "Attacks on what runs": ATTACKS,
    "Security": SECURITY,
}
FAULTS = {name: fault for group in GROUPS.values() for name, fault in group.items()}


@cache
def marked_tests() -> dict[str, list[str]]:
    """By fault the tests that say that they hold it, as pytest is told of them, in order."""
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
