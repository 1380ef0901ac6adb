"""A journal keeps what its process recorded, in whatever way the process ended.

Each program runs in a process of its own; its journal is read afterwards, as the agent would.
"""

from __future__ import annotations

import glob
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from runs import LIMIT_S

from otel_mlperf.journal.journal_folder import journal_folder
from otel_mlperf.journal.journal_reader import JournalReader
from otel_mlperf.journal.layout import Kind, Word
from otel_mlperf.journal.ring_scan import PayloadParts, rows_of_kind
from otel_mlperf.store.run_folders import list_runs

ROOT = Path(__file__).parents[4]
BEGIN = """
import os, signal, sys, threading, time
import otel_mlperf as om
run = om.start("life", agent="none", console=False, dir=sys.argv[1])
print(run._recorder.journal.path, flush=True)
"""
BODY = {
    "clean": "with om.step(), om.span('forward'): pass",
    "exception": "with om.step(), om.span('forward'): raise KeyError('x')",
    "plain exception": "for _ in om.steps([1]): raise KeyError('x')",
    "exit": "with om.step(), om.span('forward'): sys.exit(3)",
    "interrupt": "with om.step(), om.span('forward'): signal.raise_signal(signal.SIGINT)",
    "os._exit": "with om.step(), om.span('forward'): os._exit(4)",
    "abort": "with om.step(), om.span('forward'): os.abort()",
    "kill": "with om.step(), om.span('forward'): os.kill(os.getpid(), 9)",
    "terminate": "with om.step(), om.span('forward'): os.kill(os.getpid(), 15); time.sleep(60)",
    "exec": "with om.step(), om.span('forward'): os.execv('/bin/true', ['true'])",
}


class After:
    """A program's exit status and what its journal holds."""

    def __init__(self, body: str, folder: Path, *, first: str = "") -> None:
        done = subprocess.run(
            [sys.executable, "-c", first + BEGIN + textwrap.dedent(body), str(folder)],
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if not k.startswith("OTEL_")},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )
        self.status, self.out, self.err = done.returncode, done.stdout, done.stderr
        self.path = Path(done.stdout.splitlines()[0])
        self.folder = self.path.parent
        self.journals = {path.name: self._read(path) for path in self.folder.iterdir()}
        self.main = self.journals[self.path.name]
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()

    def _read(self, path: Path) -> dict:
        reader = JournalReader(str(path))
        names = {n: entry[1] for n, entry in reader.new_entries().items()}
        rows, parts = reader.take(final=True), PayloadParts()
        parts.feed(rows_of_kind(rows, Kind.PAYLOAD))
        sections = rows_of_kind(rows, Kind.SECTION)
        found = {
            "names": [names[n] for n in sections["name"].tolist()],
            "ids": sections["span"].tolist(),
            "parents": sections["parent"].tolist(),
            "errors": {
                names[n]: (parts.pop(span) or {}).get("e", [""])[0]
                for n, span in sections[["name", "span"]].tolist()
            },
            "open": {names[n] for n in reader.open_sections()["name"].tolist()},
            "begun": rows_of_kind(rows, Kind.BEGIN)["span"].tolist(),
            "is_closed": reader.is_closed,
            "is_owned": reader.is_owned,
            "internal": reader.word(Word.INTERNAL_ERRORS),
            "meta": reader.meta,
        }
        reader.close()
        return found


@pytest.mark.fault("F23")
@pytest.mark.parametrize(
    ("how", "status", "error"),
    [("clean", 0, ""), ("exception", 1, "KeyError"), ("plain exception", 1, "KeyError"),
     ("exit", 3, "SystemExit"), ("interrupt", -signal.SIGINT, "KeyboardInterrupt")],
)  # fmt: skip
def test_interpreter_ends(tmp_path, how, status, error):
    """Where the interpreter ends, everything has its row, with the error; the status is its own."""
    after = After(BODY[how], tmp_path)

    assert after.status == status
    errors = after.main["errors"]
    assert errors["train.step"] == error
    assert errors["run"] == ("" if how == "exit" else error)
    assert after.main["is_closed"]
    assert after.main["open"] == set()
    assert after.main["internal"] == 0
    assert ("KeyError: 'x'" in after.err) is (error == "KeyError")
    assert "otel_mlperf" not in after.err


@pytest.mark.fault("F20", "F21", "F22")
@pytest.mark.parametrize(
    ("how", "status"),
    [("os._exit", 4), ("abort", -signal.SIGABRT), ("kill", -9), ("terminate", -15), ("exec", 0)],
)
def test_process_ends(tmp_path, how, status):
    """Where only the process ends, what was open is found open, and nobody owns the journal."""
    after = After(BODY[how], tmp_path)

    assert after.status == status
    assert after.main["open"] == {"run", "train.step", "forward"}
    assert not after.main["is_closed"]
    assert not after.main["is_owned"]


@pytest.mark.fault("F25")
def test_fork(tmp_path):
    """A forked child has a journal of its own, ids of its own, and repeats nothing."""
    after = After(
        """
        with om.span("outer"), om.span("inner"):
            for i in range(3):
                with om.span("before"): pass
            pid = os.fork()
            for i in range(100):
                with om.span("child" if pid == 0 else "parent", i=i): pass
        if pid == 0:
            sys.exit(5)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
        tmp_path,
    )
    (child,) = [j for name, j in after.journals.items() if name != after.path.name]

    assert after.out.split()[1] == "5"
    assert after.main["names"].count("parent") == 100
    assert after.main["names"].count("outer") == after.main["names"].count("inner") == 1
    assert child["names"] == ["child"] * 100
    assert not set(child["ids"]) & set(after.main["ids"])
    assert child["meta"].is_child
    assert child["meta"].run_span == after.main["meta"].run_span
    assert set(child["parents"]) == {after.main["meta"].run_span}
    assert child["open"] == after.main["open"] == set()


@pytest.mark.fault("F25")
def test_collection_before_a_child_is_known_as_one(tmp_path):
    """What a child collects before its recording is its own writes nothing over the parent's."""
    after = After(
        """
        from otel_mlperf.recorder.instruments import garbage_collection

        garbage_collection.PAUSE_NS = 0
        if not os.fork():
            os._exit(0)
        with om.span("parent"): pass
        gc.collect()
        os.wait()
        """,
        tmp_path,
        first="import gc, os; gc.disable(); os.register_at_fork(after_in_child=gc.collect)\n",
    )

    assert after.main["names"][:2] == ["parent", "gc.collect"]
    assert set(after.main["names"]) == {"parent", "gc.collect", "run"}


@pytest.mark.fault("F25", "F95")
def test_a_child_that_is_interrupted_as_it_begins(tmp_path):
    """At every moment in which it leaves the parent's journal: it is told, and is as any other."""
    after = After(
        """
        import gc, itertools, json
        from interrupted_calls import Interruption
        from otel_mlperf import recorder

        # One comes when it will, and what its callbacks are interrupted by Python drops.
        gc.disable()

        def interrupted_child(*moment):
            interruption, arrived = Interruption(recorder, *moment), False
            try:
                interruption.call(lambda: os.fork())
            except KeyboardInterrupt:
                arrived = True
            if os.getpid() != parent:
                with om.span("child"): pass
                report = [interruption.where, arrived, interruption.begins]
                os.write(to_parent, json.dumps(report).encode() + b"\\n")
                os._exit(0)
            assert os.wait()[1] == 0
            where, arrived, begins = json.loads(reports.readline())
            print(where, arrived, sep=": ")
            return where, begins

        parent = os.getpid()
        from_child, to_parent = os.pipe()
        reports = os.fdopen(from_child)
        for at in itertools.count():
            where, begins = interrupted_child(at, KeyboardInterrupt())
            if where is None:
                break
        # What comes before the first function of ours is dropped by Python in those of others.
        for begin in begins[1:]:
            interrupted_child(-1, KeyboardInterrupt(), tuple(begin))
        """,
        tmp_path,
        first="import sys; sys.path.insert(0, 'tests')\n",
    )
    _, *told = after.out.splitlines()

    assert after.status == 0, after.err
    assert [line for line in told if not line.endswith(": True")] == ["None: False"]
    assert len(told) > 20
    assert "child" not in after.main["names"]
    children = [j for name, j in after.journals.items() if name != after.path.name]
    assert [child["names"] for child in children] == [["child"]] * len(told)
    assert not after.err


@pytest.mark.fault("F25")
def test_fork_without_sections(tmp_path):
    """A child that records nothing makes no file; its exit ends nothing of the parent's."""
    after = After(
        """
        with om.span("outer"):
            if os.fork() == 0:
                sys.exit(0)
            os.wait()
            assert om.span("still").__class__.__name__ == "BoundSection"
        """,
        tmp_path,
    )

    assert after.status == 0
    assert len(after.journals) == 1
    assert after.main["names"] == ["outer", "run"]


@pytest.mark.fault("F25")
def test_fork_of_a_fork(tmp_path):
    """A child of a child that recorded nothing has a journal of its own, from its first section."""
    after = After(
        """
        if os.fork() == 0:
            if os.fork() == 0:
                with om.span("grandchild"): pass
                os._exit(0)
            os.wait()
            if os.fork() == 0:
                os._exit(0)
            os.wait()
            os._exit(0)
        os.wait()
        """,
        tmp_path,
    )
    (grandchild,) = [j for name, j in after.journals.items() if name != after.path.name]

    assert after.status == 0, after.err
    assert grandchild["names"] == ["grandchild"]
    assert grandchild["meta"].is_child


@pytest.mark.fault("F25")
def test_fork_storm(tmp_path):
    """Forty forks from a process whose threads record all the time: nothing lost or twice."""
    after = After(
        """
        stop = threading.Event()
        def work():
            for _ in range(10_000):  # all have room in the journal, however long the forks take
                if stop.is_set(): break
                with om.span("thread"), om.span("inner"): pass
                time.sleep(0)
        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads: t.start()
        for _ in range(40):
            if os.fork() == 0:
                for _ in range(20):
                    with om.span("child"): pass
                os._exit(0)
        for _ in range(40): os.wait()
        stop.set()
        for t in threads: t.join()
        """,
        tmp_path,
    )
    children = [j for name, j in after.journals.items() if name != after.path.name]
    ids = [span for journal in after.journals.values() for span in journal["ids"]]

    assert after.status == 0, after.err
    assert [j["names"].count("child") for j in children] == [20] * 40
    assert len(ids) == len(set(ids))
    assert after.main["names"].count("thread") == after.main["names"].count("inner")


@pytest.mark.fault("F25")
def test_steps_in_a_forked_child(tmp_path):
    """Steps of a forked child are recorded in its own journal, and its clean exit closes them."""
    after = After(
        """
        pid = os.fork()
        if pid == 0:
            for _ in om.steps([1, 2]):
                with om.span("forward"): pass
            om.stop(); run.stop()
            sys.exit(0)
        os.wait()
        """,
        tmp_path,
    )
    (child,) = [j for name, j in after.journals.items() if name != after.path.name]

    assert child["names"] == ["data.load", "forward", "train.step"] * 2
    assert after.main["names"] == ["run"]


@pytest.mark.fault("F25")
def test_worker_processes(tmp_path):
    """Multiprocessing's forked workers record, spawned ones record nothing, both work."""
    program = tmp_path / "workers.py"
    program.write_text(
        textwrap.dedent(
            """
            import multiprocessing, sys
            import otel_mlperf as om

            @om.span
            def double(x):
                return 2 * x

            if __name__ == "__main__":
                run = om.start("life", agent="none", console=False, dir=sys.argv[1])
                print(run._recorder.journal.path, flush=True)
                for method in ("fork", "spawn", "forkserver"):
                    with multiprocessing.get_context(method).Pool(2) as pool:
                        print(sum(pool.map(double, range(10))))
            """
        )
    )
    after = After(f"import runpy; om.stop(); runpy.run_path({str(program)!r}, run_name='__main__')",
                  tmp_path)  # fmt: skip
    second = Path(after.out.splitlines()[1])
    names = []
    for path in second.parent.iterdir():
        reader = JournalReader(str(path))
        entries = {n: entry[1] for n, entry in reader.new_entries().items()}
        rows = rows_of_kind(reader.take(final=True), Kind.SECTION)
        names += [entries[n] for n in rows["name"].tolist()]
        reader.close()
        path.unlink()
    second.parent.rmdir()

    assert after.status == 0, after.err
    assert after.out.split()[2:] == ["90"] * 3
    assert names.count("double") == 10


IMPORTED = """
import multiprocessing, sys
import otel_mlperf as om

run = om.start("imported", agent="none", dir=sys.argv[1])

def own_run(_):
    with om.start("own", agent="none", dir=sys.argv[1], console=False) as own:
        return own.is_active

def steps(_):
    with om.step():
        return run.is_active

if __name__ == "__main__":
    workers = multiprocessing.get_context(sys.argv[2])
    with workers.Pool(1) as pool:
        print(run.is_active, *pool.map(eval(sys.argv[3]), [0]), flush=True)
"""


@pytest.mark.parametrize(
    ("function", "printed", "runs"),
    [("steps", "True False", ["imported"]), ("own_run", "True True", ["imported", "own"])],
)
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_program_that_children_import_again_is_one_run(tmp_path, method, function, printed, runs):
    """start() at its top records in the first process alone; a child's function may start a run."""
    program = tmp_path / "imported.py"
    program.write_text(IMPORTED)

    done = subprocess.run(
        [sys.executable, program, tmp_path / "runs", method, function],
        cwd=tmp_path, env={k: v for k, v in os.environ.items() if not k.startswith("OTEL_")},
        capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip

    assert (done.returncode, done.stdout) == (0, f"{printed}\n"), done.stderr
    found = list_runs(tmp_path / "runs")
    assert sorted(run.facts.name for run in found) == runs
    first, *others = done.stderr.splitlines()
    assert first.startswith("otel_mlperf: recording imported into ")
    assert [line.split(":")[1] for line in others] == (
        [" step() in a child process of multiprocessing"] if function == "steps" else []
    )
    for run in found:
        folder = Path(journal_folder(run.facts.id, str(run.path)))
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.fault("F29", "F57")
def test_sections_at_exit_and_in_finalizers(tmp_path):
    """Sections in atexit functions and finalizers harm nothing."""
    after = After(
        """
        import atexit
        class Late:
            def __del__(self):
                with om.span("finalizer"): pass
        late = Late(); late.me = late
        def at_exit():
            with om.span("at exit"): pass
        atexit.register(at_exit)
        sys.late = late
        """,
        tmp_path,
    )

    assert after.status == 0
    assert after.err == ""
    assert "at exit" in after.main["names"]


@pytest.mark.slow
@pytest.mark.fault("F21")
def test_many_kills(tmp_path):
    """Killed at random moments, a process's finished sections are all there, none twice."""
    body = """
        done = memoryview(__import__("mmap").mmap(
            os.open(sys.argv[1] + "/done", os.O_RDWR | os.O_CREAT), 8)).cast("Q")
        threading.Timer({delay}, lambda: os.kill(os.getpid(), 9)).start()
        tail = run._recorder.journal.words
        for _ in range(20_000):  # all have room in the journal, however late it is killed
            with om.span("work", n=1): pass
            done[0] += 1
        signal.pause()
    """
    for i in range(8):
        folder = tmp_path / str(i)
        folder.mkdir()
        (folder / "done").write_bytes(bytes(8))
        after = After(body.format(delay=0.01 + 0.013 * i), folder)
        done = int.from_bytes((folder / "done").read_bytes(), "little")

        assert after.status == -9
        assert 0 <= after.main["names"].count("work") - done <= 1
        assert len(set(after.main["ids"])) == len(after.main["ids"])
        assert after.main["open"] <= {"run", "work"}


@pytest.mark.fault("F29", "F40")
@pytest.mark.parametrize("limit", [0, 10, 4096])
def test_start_without_room(tmp_path, limit):
    """Where there is room nowhere the program goes on, is told, and no folder is left."""
    program = (
        "import resource, sys\n"
        "import otel_mlperf as om\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
        "run = om.start('x', agent='none', console=False, dir=sys.argv[1], run_id='no-room')\n"
        "with om.span('work'): print(run.is_active)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == "False"
    assert done.stderr.splitlines()[-1].endswith("; nothing is recorded")
    assert list(tmp_path.iterdir()) == []
    assert not glob.glob(f"{journal_folder('no-room', '', key='')}*")


@pytest.mark.fault("F29")
def test_no_memory_is_left(tmp_path):
    """A program that may map no more records to its end, and its child writes nothing of its."""
    after = After(
        """
        import resource
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), hard))
        with om.span("around"):
            for _ in om.steps([1, 2, 3]):
                with om.span("forward", rows=2): om.log(loss=0.5)
            pid = os.fork()
            if pid == 0:
                with om.span("child"): pass
                os._exit(6)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        run.stop()
        """,
        tmp_path,
    )

    assert after.out.splitlines()[1:] == ["6"]
    assert after.status == 0
    assert after.main["names"].count("forward") == 3
    assert "child" not in after.main["names"]
    assert after.main["is_closed"]
    assert after.main["internal"] == 0


@pytest.mark.fault("F29")
def test_no_descriptors_are_left(tmp_path):
    """A program that has used up all records on, to its end; a child that cannot says so."""
    after = After(
        """
        taken = []
        try:
            while True: taken.append(os.open("/dev/null", os.O_RDONLY))
        except OSError: pass
        for _ in om.steps([1, 2, 3]):
            with om.span("forward", rows=2): om.log(loss=0.5)
        pid = os.fork()
        if pid == 0:
            with om.span("child"): pass
            os._exit(6)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        run.result(accuracy=1)
        run.stop()
        for one in taken: os.close(one)
        """,
        tmp_path,
    )

    assert (after.status, after.out.split()[1]) == (0, "6")
    assert "Too many open files" in after.err
    assert after.main["names"].count("forward") == 3
    assert after.main["open"] == set()
    assert after.main["is_closed"]
    assert after.main["internal"] == 0
