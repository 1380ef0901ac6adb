"""Foreign file formats: files that are not Chrome traces, and how to convert or unpack them.

Formats are recognised by the first bytes, the names of the first fields, or the file name
extension.
"""

from __future__ import annotations

import re
import shlex
import zipfile
from tarfile import BLOCKSIZE, REGULAR_TYPES, HeaderError, TarInfo
from typing import TYPE_CHECKING, Final

from otel_mlperf.kineto.reading.damage import DamageLog, printable
from otel_mlperf.kineto.reading.source import TraceSource

if TYPE_CHECKING:
    from pathlib import Path

_JSON: Final = re.compile(rb"(?:\xef\xbb\xbf)?\s*[\[{]")
_MAGIC: Final = (
    (b"\xfd7zXZ\0", "it is compressed with xz; unpack it with `unxz`"),
    (b"BZh", "it is compressed with bzip2; unpack it with `bunzip2`"),
    (b"\x28\xb5\x2f\xfd", "it is compressed with Zstandard; unpack it with `unzstd`"),
    (b"\x04\x22\x4d\x18", "it is compressed with lz4; unpack it with `unlz4`"),
    (b"7z\xbc\xaf", "it is a 7z archive; unpack the archive and pass the traces"),
    (b"version https://git-lfs", "it is a pointer of Git LFS; fetch the file with `git lfs pull`"),
    (b"<", "it is a web page or XML; download the file itself"),
)
_EXPORT: Final = "export a Chrome trace of the same program with torch.profiler"
_NSYS: Final = f"it is a report of Nsight, which cannot export Chrome traces; {_EXPORT}"
_XPLANE: Final = (
    "it is a profile of XLA (XSpace); pass the `*.trace.json.gz` in the same folder, or record "
    "with JAX's create_perfetto_trace=True and pass `perfetto_trace.json.gz`"
)
_PERFETTO: Final = (
    "it is a trace of Perfetto in protobuf; convert it with `traceconv json FILE NEW.json`"
)
_OTF2: Final = (
    f"it is an OTF2 archive, as written by Score-P and rocprofv3; {_EXPORT}, or record with "
    "rocprofv3 `--output-format pftrace` and convert with `traceconv json FILE NEW.json`"
)
_CHAKRA: Final = (
    "it is an execution trace (Chakra), a graph of operators; pass the Chrome trace that "
    "torch.profiler exported in the same run"
)
_SQLITE: Final = f"it is an SQLite database, as written by `nsys export` and rocprofv3; {_EXPORT}"
_SNAPSHOT: Final = f"it is a pickle file, such as a memory snapshot of PyTorch; {_EXPORT}"
_PROTON: Final = (
    "it is a tree of Triton's Proton; record a Chrome trace with proton.start(…, data='trace')"
)
_ROCPROF: Final = (
    "it is the JSON of rocprofv3; record with `--output-format pftrace` and convert the result "
    f"with `traceconv json FILE NEW.json`, or {_EXPORT}"
)
_SPEEDSCOPE: Final = f"it is a sampled profile for Speedscope; {_EXPORT}"
_BINARY: Final = (
    (re.compile(rb"SQLite format 3\0"), _SQLITE),
    (re.compile(rb"OTF2"), _OTF2),
    (re.compile(rb"\x80[\x02-\x05]"), _SNAPSHOT),
    (re.compile(rb"[^\n]{0,64}?/(?:device|host):", re.DOTALL), _XPLANE),
)
_ENDINGS: Final = {
    ".pb": _XPLANE,
    ".nsys-rep": _NSYS,
    ".qdrep": _NSYS,
    ".qdstrm": _NSYS,
    ".ncu-rep": _NSYS,
    ".sqlite": _SQLITE,
    ".otf2": _OTF2,
    ".et": _CHAKRA,
    ".pftrace": _PERFETTO,
    ".perfetto-trace": _PERFETTO,
    ".pickle": _SNAPSHOT,
}
_OTHER_JSON: Final = (
    (re.compile(rb'\s*\[\s*\{\s*"(?:children|frame|metrics)"'), _PROTON),
    (re.compile(rb'\s*\{\s*"rocprofiler-sdk-tool"'), _ROCPROF),
    (re.compile(rb'\s*\{\s*"\$schema"\s*:\s*"https://www.speedscope'), _SPEEDSCOPE),
)
"""JSON of other tools, recognised by the first field, and how to convert it."""
_NUL: Final = re.compile(rb"\0{0,3}[\s\[{]\0{1,3}[^\0]")
"""First two characters of JSON in UTF-16 or UTF-32 without a byte order mark."""
_MARKS: Final = (
    (b"\xff\xfe\0\0", "UTF-32"),
    (b"\0\0\xfe\xff", "UTF-32"),
    (b"\xff\xfe", "UTF-16"),
    (b"\xfe\xff", "UTF-16"),
)
_TRACE: Final = re.compile(r".*\.json(?:\.gz)?", re.DOTALL)
_UNPACK: Final = {"tar": "tar -xf", "zip": "unzip"}
_MAX_NAMES: Final = 5
_MAX_MEMBERS: Final = 4_096
_MAX_BYTES: Final = 1 << 30
"""Maximum number of bytes of an archive that are read to list the names of its members."""


def find_foreign(path: Path, head: bytes) -> str:
    """Return a foreign file's format and how to convert the file; empty if it might be a trace.

    ``head`` is the start of the file's uncompressed text.
    """
    if _tar_header(head[:BLOCKSIZE]):
        return _archive("tar", path, *_tar_members(path))
    if _JSON.match(head) and not _NUL.match(head):
        return next(
            (description for pattern, description in _OTHER_JSON if pattern.match(head)), ""
        )
    if head.startswith(b"PK\x03\x04"):
        return _archive("zip", path, _zip_members(path))
    if encoding := _encoding(head):
        return (
            f"its encoding is {encoding}; convert it with `iconv -f {encoding} -t UTF-8 FILE > NEW`"
        )
    known = (description for magic, description in _MAGIC if head.startswith(magic))
    binary = (description for pattern, description in _BINARY if pattern.match(head))
    named = (description for ending, description in _ENDINGS.items() if path.name.endswith(ending))
    return next(known, "") or next(binary, "") or next(named, "")


def _encoding(head: bytes) -> str:
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    if not _NUL.match(head):
        return ""
    width = 32 if b"\0\0" in head[:4] else 16
    return f"UTF-{width}{'BE' if head[:1] == bytes(1) else 'LE'}"


def find_foreign_fields(fields: dict[str, object]) -> str:
    """Return the format of a JSON object with these fields; empty if the format is not known."""
    return _CHAKRA if {"nodes", "schema"} <= fields.keys() else ""


def _archive(kind: str, path: Path, members: list[str], is_whole: bool = True) -> str:
    shown = ", ".join(printable(name) for name in members[:_MAX_NAMES])
    more = f" and {len(members) - _MAX_NAMES:,} more" if len(members) > _MAX_NAMES else ""
    least = "" if is_whole else "at least "
    many = f"{least}{len(members):,} file{'s' * (len(members) != 1)}"
    files = f"of {many} ({shown}{more})" if members else "of files"
    files += "" if is_whole else ", whose end is missing"
    traces = [name for name in members if _TRACE.fullmatch(name)] or members
    unpack = f"{_UNPACK[kind]} {shlex.quote(str(path))}"
    if not traces or not f"{unpack} {traces[0]}".isprintable():
        return f"it is a {kind} archive {files}; unpack the archive and pass the traces"
    read = f"otel-mlperf kernels {shlex.quote('./' * traces[0].startswith('-') + traces[0])}"
    return (
        f"it is a {kind} archive {files}; unpack the archive and read one trace: `{unpack} && "
        f"{read}`; for several traces, use `otel-mlperf import`"
    )


def _zip_members(path: Path) -> list[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return [name for name in archive.namelist() if not name.endswith("/")]
    except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError):
        return []


def _tar_members(path: Path) -> tuple[list[str], bool]:
    """Return the names of the files in a tar archive, and whether the list is complete."""
    names: list[str] = []
    with TraceSource(path, DamageLog(), _MAX_BYTES) as source:
        data = b""
        for _ in range(_MAX_MEMBERS):
            while len(data) < BLOCKSIZE and (piece := source.read()):
                data += piece
            header, data = data[:BLOCKSIZE], data[BLOCKSIZE:]
            member = _tar_header(header)
            if member is None:
                return names, header == bytes(BLOCKSIZE)
            if member.type in REGULAR_TYPES:  # Not a folder, link or long name.
                names.append(member.name)
            remaining = -(-max(0, member.size) // BLOCKSIZE) * BLOCKSIZE
            while len(data) < remaining and (piece := source.read()):
                remaining -= len(data)
                data = piece
            data = data[remaining:]
    return names, False


def _tar_header(block: bytes) -> TarInfo | None:
    try:
        return TarInfo.frombuf(block, "utf-8", "replace")
    except HeaderError:
        return None
