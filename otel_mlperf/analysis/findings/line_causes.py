"""Kinds of calls that block a training loop, each with a description and a recommended action.

A call is of a kind by its name in the user's line, or by the package of the called Python function.
If several kinds include the call, the first kind applies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from otel_mlperf.analysis.findings.stack_lines import Call

Kind = Literal["sync_in_loop", "blocked_loop", "conversions", "transfer"]


class Cause(NamedTuple):
    """One kind of calls that block a training loop."""

    id: Kind
    """Id of the row in the findings table."""
    doing: str
    """Completes "the loop is …" in a summary; empty: the summary of the table row is used."""
    action: str
    """Recommended action; empty: the action of the table row is used."""
    calls: frozenset[str] = frozenset()
    packages: frozenset[str] = frozenset()

    def includes(self, call: Call) -> bool:
        """Return whether the call is of this kind."""
        return call.package in self.packages or call.name in self.calls


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ITERATION: Final = "iteration"
"""Name given to a sampled call in which a ``for`` requests its next item."""
WITH: Final = "with"
"""Name given to a sampled call in which a ``with`` enters a context manager written in C."""
_RESULT_ACTION: Final = (
    "Keep losses and metrics as tensors, and call .item() only every N steps, for the values "
    "that are printed or logged."
)
RESULTS: Final = Cause(
    "sync_in_loop",
    "on fetching results",
    _RESULT_ACTION,
    _names("item"),
)
WAITS: Final = Cause(
    "sync_in_loop",
    "on fetching results",
    _RESULT_ACTION,
    _names("item tolist cpu numpy synchronize float int bool print array asarray"),
)
"""Calls in which the loop waits until the GPU has finished all of its work."""
TRANSFERS: Final = Cause("transfer", "", "", _names("to cuda copy_"))
"""Calls that are synchronous copies from the host if they are slow and a GPU is used."""
CAUSES: Final = (
    Cause(
        "blocked_loop",
        "sleeping",
        "Remove the sleep from the loop: wait for the condition itself (an event, a queue with "
        "a timeout), and limit rates in another thread.",
        _names("sleep nanosleep pause"),
    ),
    Cause(
        "blocked_loop",
        "waiting for programs that the loop starts",
        "Start programs only every N steps, in parallel with the loop: call subprocess.Popen, "
        "and read the result some steps later. Or use a library instead of a program.",
        _names("system popen Popen check_output check_call communicate waitpid posix_spawn"),
        frozenset({"subprocess", "pexpect", "sh"}),
    ),
    Cause(
        "blocked_loop",
        "waiting for a lock or another thread",
        "Shorten the time for which other threads own the lock: copy shared data under the "
        "lock, and work on the copy. Or pass results through a queue that the loop reads every "
        "N steps.",
        _names("acquire flock lockf lock with"),
        frozenset({"threading", "filelock", "portalocker", "fasteners"}),
    ),
    Cause(
        "blocked_loop",
        "waiting for other processes",
        "Request results some steps after the call, for several calls together, or only every N "
        "steps.",
        frozenset(),
        frozenset({"multiprocessing", "concurrent", "joblib", "ray"}),
    ),
    Cause(
        "blocked_loop",
        "waiting for the network",
        "Send and fetch data in another thread, in batches every N steps, over one persistent "
        "connection.",
        _names("urlopen sendall recv connect getaddrinfo create_connection"),
        frozenset({"requests", "urllib", "urllib3", "http", "socket", "ssl", "aiohttp", "httpx",
                   "boto3", "botocore", "redis", "psycopg2", "pymongo", "smtplib"}),
    ),
    Cause(
        "blocked_loop",
        "waiting for data from a queue",
        "Speed up the thread or process that puts data into that queue, or use several of them. "
        "om.steps(iter(queue.get, None)) records the wait as data wait.",
        # `get` by name: the package of SimpleQueue.get, written in C, is unknown. No other is slow.
        _names("get get_nowait popleft"),
        frozenset({"queue", "_queue"}),
    ),
    Cause(
        "sync_in_loop",
        "on output and logging",
        "Print and log only every N steps, in batches. Draw and upload in another thread or at "
        "the end of an epoch.",
        _names("print debug info warning error add_scalar add_scalars add_histogram add_image "
               "add_text log_metric log_metrics savefig pprint"),
        frozenset({"logging", "loguru", "structlog", "tensorboard", "tensorboardX", "wandb",
                   "mlflow", "rich", "tqdm", "matplotlib", "aim", "comet_ml", "pprint"}),
    ),
    Cause(
        "sync_in_loop",
        "on reading and writing files",
        "Write in batches every N steps or in another thread, keep the file open, and flush and "
        "sync rarely. Read files before the loop or in DataLoader workers.",
        _names("write writelines writerow writerows flush fsync fdatasync sync dump save savez "
               "savez_compressed savetxt to_csv to_parquet to_json commit open close read readline "
               "readlines readinto load imread imwrite read_csv read_parquet read_image fromfile "
               "tofile listdir scandir copyfile"),
        frozenset({"csv", "sqlite3", "shutil", "pickle", "gzip", "zipfile", "tarfile", "h5py"}),
    ),
    RESULTS,
    Cause(
        "conversions",
        "",
        "",
        _names("numpy tolist from_numpy tensor as_tensor array asarray fromiter FloatTensor "
               "LongTensor float int to type astype double half bfloat16 long byte bool contiguous "
               "ascontiguousarray"),
    ),
)  # fmt: skip


def cause_of(call: Call, *, has_gpu: bool) -> Cause | None:
    """Return the first kind that includes the call, or None if no kind includes it.

    If ``has_gpu``, waits for a GPU and copies to it are the first kinds.
    """
    of_gpu = (TRANSFERS, WAITS) if has_gpu else ()
    return next((cause for cause in (*of_gpu, *CAUSES) if cause.includes(call)), None)
