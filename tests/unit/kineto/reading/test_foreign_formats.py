"""A file that is not a Chrome trace is identified by its format."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import shlex
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from kineto_traces import operator, trace_text

from otel_mlperf.errors import TraceError
from otel_mlperf.kineto.reading.trace_reader import read_trace

TRACE = trace_text([operator("aten::mm", 1, 5)])


def tar(mode, ranks=7, folder="run"):
    """An archive of that many traces, and a folder around them."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:
        around = tarfile.TarInfo(folder)
        around.type = tarfile.DIRTYPE
        archive.addfile(around)
        for rank in range(ranks):
            member = tarfile.TarInfo(f"{folder}/rank{rank}.json")
            member.size = len(TRACE)
            archive.addfile(member, io.BytesIO(TRACE.encode()))
    return packed.getvalue()


def v7(packed):
    """The archive as tar wrote it before POSIX: the headers have no magic."""
    blocks = [packed[at : at + 512] for at in range(0, len(packed), 512)]
    return b"".join(_without_magic(b) if b[257:262] == b"ustar" else b for b in blocks)


def _without_magic(header):
    header = header[:148] + b" " * 8 + header[156:257] + bytes(512 - 257)
    return header[:148] + b"%06o\0 " % sum(header) + header[156:]


def zipped():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("rank0.json", TRACE)
    return packed.getvalue()


SEVEN = "tar archive of 7 files (run/rank0.json, run/rank1.json, "
FOREIGN = {
    "a tar": ("t.tar", tar("w:"), SEVEN),
    "a tar in gzip": ("t.tar.gz", tar("w:gz"), SEVEN),
    "a tar in xz": ("t.tar.xz", tar("w:xz"), "xz"),
    "a cut tar": ("t.tar", tar("w:")[:2_600], "tar archive of at least 2 files (run/rank0.json, "),
    "a tar that ends in its first file": ("t.tar", tar("w:")[:1_100], "at least 1 file (run/rank0"),
    "a tar of the seventh edition": ("t.tar", v7(tar("w:")), SEVEN),
    "a tar whose first name begins like JSON": (
        "t.tar",
        tar("w:", folder="[run]"),
        "tar archive of 7 files ([run]/rank0.json, ",
    ),
    "a zip": ("t.zip", zipped(), "zip archive of 1 file (rank0.json)"),
    "a cut zip": ("t.zip", zipped()[:200], "zip archive of files"),
    "Zstandard": ("t.json.zst", b"\x28\xb5\x2f\xfd\x04\x00", "Zstandard"),
    "bzip2": ("t.json.bz2", b"BZh91AY&SY", "bzip2"),
    "UTF-16 with its mark": ("t.json", TRACE.encode("utf-16"), "UTF-16;"),
    "UTF-16 without": ("t.json", TRACE.strip().encode("utf-16-le"), "UTF-16LE"),
    "UTF-16 from the other end": ("t.json", TRACE.encode("utf-16-be"), "UTF-16BE"),
    "UTF-32": ("t.json", TRACE.encode("utf-32"), "UTF-32;"),
    "UTF-16 in gzip": ("t.json.gz", gzip.compress(TRACE.encode("utf-16")), "UTF-16;"),
    "XSpace": ("host.xplane.pb", b"\x0a\x21\x08\x01\x12\x0d/device:GPU:0", "XSpace"),
    "nsys": ("run.nsys-rep", b"\x01\x02\x03", "Nsight"),
    "SQLite": ("run.db", b"SQLite format 3\x00", "SQLite"),
    "OTF2": ("traces.otf2", b"OTF2\x01", "OTF2"),
    "Perfetto": ("run.pftrace", b"\x0a\x3c\x08\x01", "traceconv"),
    "a graph of Chakra": ("et.json", b'{"schema": "1.0.2", "nodes": [{"id": 1}]}', "Chakra"),
    "a tree of Proton": ("p.hatchet", b'[{"frame": {"name": "ROOT"}}]', "Proton"),
    "rocprofv3": ("r.json", b'{"rocprofiler-sdk-tool": [{}]}', "JSON of rocprofv3"),
    "Speedscope": ("s.json", b'{"$schema": "https://www.speedscope.app/f.json"}', "Speedscope"),
    "a snapshot": ("snapshot.pickle", b"\x80\x04\x95\x10", "pickle"),
    "a pointer of Git LFS": ("t.json", b"version https://git-lfs.github.com/spec/v1", "git lfs"),
    "a web page": ("t.json", b"<!DOCTYPE html><html>", "web page"),
}


@pytest.mark.parametrize(("name", "data", "expected"), FOREIGN.values(), ids=FOREIGN.keys())
def test_a_file_of_another_format_is_called_by_its_name(tmp_path, name, data, expected):
    """With what unpacks or exports a trace, and never read as if it were damaged JSON."""
    path = tmp_path / name
    path.write_bytes(data)

    with pytest.raises(TraceError) as raised:
        read_trace(path)

    assert expected in str(raised.value)
    assert "traceEvents" not in str(raised.value)


@pytest.mark.parametrize("name", ["run's ranks.tar.gz", "ranks.zip"])
def test_the_command_for_an_archive_unpacks_it_and_reads_one_trace(tmp_path, monkeypatch, name):
    """As it is printed, in a shell."""
    packed = zipped() if name.endswith("zip") else tar("w:gz", folder="a run")
    (tmp_path / name).write_bytes(packed)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TraceError) as raised:
        read_trace(Path(name))

    unpack, read = str(raised.value).split("`")[1].split(" && ")
    if shutil.which(shlex.split(unpack)[0]) is None:
        pytest.skip("no unzip here")
    subprocess.run(unpack, shell=True, check=True, capture_output=True)

    assert read.startswith("otel-mlperf kernels ")
    assert len(read_trace(Path(shlex.split(read)[2])).events) == 1


@pytest.mark.parametrize("size", [1, 2, 9, 18, 24])
def test_gzip_that_is_cut_before_the_first_event_is_not_called_empty(tmp_path, size):
    """In its header, or in the fields before the list."""
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(TRACE.encode())[:size])

    with pytest.raises(TraceError, match="gzip data is cut off"):
        read_trace(path)


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_a_trace_stays_a_trace_whatever_its_file_is_called(tmp_path, mark):
    """The text decides, not the ending."""
    for name in ("t.pb", "t.sqlite", "t.tar", "t.zip"):
        path = tmp_path / name
        path.write_bytes(mark + json.dumps([operator("aten::mm", 1, 5)]).encode())

        assert len(read_trace(path).events) == 1
