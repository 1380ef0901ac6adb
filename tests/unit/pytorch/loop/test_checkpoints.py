"""Checkpoints of an unmodified program have their size in bytes and their rate."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

import otel_mlperf as om
from otel_mlperf import names
from otel_mlperf.pytorch.loop.checkpoint_io import CheckpointIo

STATE = {"weights": torch.arange(1000.0)}
SIZE, RATE = names.CHECKPOINT_SIZE, names.CHECKPOINT_RATE
SECTIONS = (names.SPAN_CHECKPOINT, names.SPAN_CHECKPOINT_LOAD)


def said(watched):
    """Name and attributes of each checkpoint so far."""
    return [(one.name, one.payload.get("a", {})) for one in watched.sections(*SECTIONS)]


def sizes(watched):
    return [attributes.get(SIZE) for _, attributes in said(watched)]


def test_size_is_that_of_the_file(watched, tmp_path):
    """Written and read, by path and by open file; the sums are those of all calls."""
    path = tmp_path / "model.pt"
    torch.save(STATE, path)
    torch.load(path)
    with path.open("wb") as file:
        torch.save(STATE, file)
    with path.open("rb") as file:
        torch.load(file)
    size = path.stat().st_size

    assert sizes(watched) == [pytest.approx(size, rel=0.01)] * 4
    written = sum(size for name, _ in said(watched) if name == "checkpoint")
    assert written == 2 * size
    assert watched.counted(names.CHECKPOINT_IO.name) == sum(sizes(watched))


def test_rate_is_bytes_by_time(watched, tmp_path):
    """Of the call alone, and no more than its section allows."""
    torch.save(STATE, tmp_path / "model.pt")
    (section,) = watched.sections(names.SPAN_CHECKPOINT)
    attributes = section.payload["a"]

    assert attributes[RATE] >= attributes[SIZE] / (section.end - section.start) * 1e9
    took_s = watched.counted(names.CHECKPOINT_IO_TIME.name)
    assert attributes[RATE] == pytest.approx(attributes[SIZE] / took_s)


def test_what_is_written_to_memory_has_its_size(watched):
    """From where the buffer stood, as by Lightning, which writes the file itself."""
    buffer = io.BytesIO()
    buffer.write(b"before")
    torch.save(STATE, buffer)
    length = len(buffer.getvalue())

    assert sizes(watched) == [length - len(b"before")]


def test_what_is_not_read_has_no_size(watched, tmp_path):
    """Of a mapped file nobody knows how much is read."""
    path = tmp_path / "model.pt"
    torch.save(STATE, path)
    torch.load(path, mmap=True)

    assert [SIZE in attributes for _, attributes in said(watched)] == [True, False]


def test_tensor_that_is_pickled_is_no_checkpoint(watched):
    """Torch saves it into a buffer of its own, for another process or a copy."""
    assert torch.equal(pickle.loads(pickle.dumps(STATE))["weights"], STATE["weights"])

    assert said(watched) == []


def test_failed_checkpoint_has_no_size(watched, tmp_path):
    """Whatever it has left behind."""
    (tmp_path / "model.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "model.pt")

    assert sizes(watched) == [None]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_distributed_checkpoint_has_the_size_of_its_rank_s_files(watched, tmp_path):
    """Of a folder, what this rank has written; what others did, and what is read, is not known."""
    state = {"weights": torch.arange(1000.0)}
    dcp.save(state, checkpoint_id=tmp_path)
    (tmp_path / "__1_0.distcp").write_bytes(bytes(1000))
    dcp.load(state, checkpoint_id=tmp_path)
    own = sum(path.stat().st_size for path in tmp_path.glob("__0_*.distcp"))

    assert sizes(watched) == [own, None]


def test_checkpoint_inside_the_program_s_own_section_is_counted(watched, tmp_path):
    """It is no second section, but its bytes are in the sums."""
    with om.span("checkpoint"):
        torch.save(STATE, tmp_path / "model.pt")

    assert len(said(watched)) == 1
    assert watched.counted(names.CHECKPOINT_IO.name) == (tmp_path / "model.pt").stat().st_size


class Odd:
    """A file that is none, and may not be asked."""

    def tell(self):
        raise AssertionError


@pytest.mark.parametrize("file", [None, 3, Odd(), "missing", Path("missing"), "/dev/null", "."])
def test_unknown_size_is_absent(train, file):
    """Of what is no file, is not there, or holds nothing of this rank."""
    trained = train()
    for direction in (names.CHECKPOINT_WRITE, names.CHECKPOINT_READ):
        CheckpointIo(direction, file).end(None)

    assert trained.counted(names.CHECKPOINT_IO.name) == 0
