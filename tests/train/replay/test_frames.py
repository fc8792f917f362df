"""How a journal lies in its file, and that nothing else is taken for one."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fulldisk import files_no_larger_than
from headwater.errors import JournalRefused, ModelError, WrongUse
from headwater.train.replay.frames import MAGIC, FrameWriter, find_frames
from headwater.train.replay.reading import JournalFile
from headwater.train.replay.records import Group, Header, StepRecord, pack_mark, unpack_mark, unpack_step
from headwater.train.replay.writer import JournalWriter
from killing import choose, find_points, kill_at

HEADER = Header(
    objective={"kind": "linear"},
    batches={"kind": "full", "count": 2, "steps": 2},
    data="version",
    ids=np.array([5, -1], "<i8").tobytes(),
    groups=(Group(2, 0.5), Group(1, 0.0)),
    momentum=0.9,
    nesterov=False,
    every=2,
)
PLACE, SPEED = np.array([1, 2, 3], np.float32), np.array([0, 0.5, 0], np.float32)


def write(path: Path, *, steps: int = 2, sealed: bool = True) -> Path:
    with JournalWriter(path, HEADER) as writer:
        for step in range(steps):
            if writer.wants_mark:
                writer.mark(PLACE, SPEED)
            gradient = np.array([0.5, -0.25, step], np.float32)
            writer.step(None if step == 3 else gradient, np.array([0.1, 0.2]))
        if sealed:
            writer.seal(PLACE, SPEED, error=0.25)
        else:
            writer.sync()
    return path


def frames_of(path: Path) -> list[tuple[str, bytes]]:
    content = path.read_bytes()
    return [(frame.kind, content[frame.begin : frame.end]) for frame in find_frames(memoryview(content))]


def test_the_frames_of_a_journal(tmp_path: Path) -> None:
    kinds = [kind for kind, _ in frames_of(write(tmp_path / "a", steps=5))]
    assert kinds == ["HEAD", *("MARK", "STEP", "STEP") * 2, "MARK", "STEP", "MARK", "SEAL"]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = JournalFile(write(tmp_path / "a", steps=5))
    assert (file.header, len(file)) == (HEADER, 5)
    assert (file.seal.steps, file.seal.error) == (5, 0.25)
    moments = list(file.moments(0))
    assert [moment.number for moment in moments] == list(range(5))
    assert moments[3].gradient is None
    for moment in (*moments[:3], moments[4]):
        np.testing.assert_array_equal(moment.gradient, [0.5, -0.25, moment.number])
        np.testing.assert_array_equal(moment.rates, [0.1, 0.2])
    assert [moment.number for moment in file.moments(2)] == [2, 3, 4]
    assert file.mark_before(3)[0] == 2
    np.testing.assert_array_equal(file.mark_before(5)[1], PLACE)
    np.testing.assert_array_equal(file.mark_before(5)[2], SPEED)


def test_golden_bytes(tmp_path: Path) -> None:
    """What another program would have to write, byte for byte; see docs/reference/formats.md."""
    content = write(tmp_path / "a").read_bytes()
    assert content.hex() == "".join((Path(__file__).parent / "golden.journal.hex").read_text().split())


def test_a_journal_that_ends_anywhere_is_refused(tmp_path: Path) -> None:
    content, cut = write(tmp_path / "a").read_bytes(), tmp_path / "cut"
    for length in range(len(content)):
        cut.write_bytes(content[:length])
        with pytest.raises(JournalRefused, match=r"cut short|no journal"):
            JournalFile(cut).seal  # noqa: B018 - it is looked at to be refused


def test_a_journal_with_any_bit_turned_is_refused(tmp_path: Path) -> None:
    content, turned = write(tmp_path / "a").read_bytes(), tmp_path / "turned"
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << (place % 8)
        turned.write_bytes(damaged)
        with pytest.raises(JournalRefused, match=r"cut short|no journal|altered"):
            JournalFile(turned).seal  # noqa: B018


def test_what_follows_the_seal_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a")
    with path.open("ab") as file:
        file.write(b"more")
    with pytest.raises(JournalRefused, match="4 bytes after the seal"):
        JournalFile(path).seal  # noqa: B018


def test_frames_that_were_moved_are_refused(tmp_path: Path) -> None:
    content = write(tmp_path / "a").read_bytes()
    first, second = (frame for frame in find_frames(memoryview(content)) if frame.kind == "STEP")
    head = len(content[first.end : second.begin])
    swapped = content[: first.begin - head] + content[first.end : second.end]
    swapped += content[first.begin - head : first.end] + content[second.end :]
    (tmp_path / "b").write_bytes(swapped)
    with pytest.raises(JournalRefused, match="cut short: it has 0 whole steps"):
        JournalFile(tmp_path / "b").seal  # noqa: B018


def test_without_a_seal_the_whole_steps_are_known_and_refused(tmp_path: Path) -> None:
    file = JournalFile(write(tmp_path / "a", steps=7, sealed=False))
    assert len(file) == 7
    with pytest.raises(JournalRefused, match="7 whole steps, and it was never sealed; train again"):
        file.seal  # noqa: B018


@pytest.mark.parametrize(
    "content", [b"", b"HWJRNL1", b"\x80\x04pickled", MAGIC, MAGIC + b"HEAD\xff\xff\xff\xff" + b"x" * 8]
)
def test_what_is_no_journal(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(JournalRefused):
        JournalFile(tmp_path / "a")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(JournalRefused, match=r"cannot read .*No such file"):
        JournalFile(tmp_path / "none")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"format": 9}, "format 9, this version reads 1"),
        ({"every": 0}, "marks every 0"),
        ({"momentum": 1.5}, "momentum 1.5"),
        ({"groups": ()}, "0 groups"),
        ({"ids": b"123"}, "3 bytes of ids"),
    ],
)
def test_headers_that_no_writer_writes(tmp_path: Path, changes: dict[str, object], says: str) -> None:
    strange = msgspec.structs.replace(HEADER, **changes)
    with pytest.raises(ValueError, match=says):
        JournalWriter(tmp_path / "a", strange)
    stream = io.BytesIO()
    FrameWriter(stream).put("HEAD", msgspec.msgpack.encode(strange))
    (tmp_path / "b").write_bytes(stream.getvalue())
    with pytest.raises(JournalRefused, match=f"cannot be read: .*{says}"):
        JournalFile(tmp_path / "b")


def test_a_body_that_is_something_else(tmp_path: Path) -> None:
    """Checks that fit, around content that does not."""
    stream = io.BytesIO()
    frames = FrameWriter(stream)
    frames.put("HEAD", msgspec.msgpack.encode(HEADER))
    frames.put("MARK", b"\0" * 8)
    frames.put("STEP", b"\0" * 8)
    (tmp_path / "a").write_bytes(stream.getvalue())
    file = JournalFile(tmp_path / "a")
    with pytest.raises(JournalRefused, match="a mark of 8 bytes"):
        file.mark_before(0)
    with pytest.raises(JournalRefused, match="a step of 8 bytes"):
        list(file.moments(0))


def test_steps_and_marks_of_other_lengths() -> None:
    good = b"".join(StepRecord(0, np.array([0.1]), None).pack())
    assert unpack_step(memoryview(good), groups=1, size=3).coded is None
    for body in (good + b"\0", good[:-1]):
        with pytest.raises(ValueError, match="step"):
            unpack_step(memoryview(body), groups=1, size=3)
    with pytest.raises(ValueError, match="a mark of"):
        unpack_mark(memoryview(b"\0" * 24), size=3, moving=True)


def test_a_velocity_of_nothing_takes_no_bytes() -> None:
    (number, place), still = (
        pack_mark(7, PLACE, 0 * SPEED),
        memoryview(b"".join(pack_mark(7, PLACE, 0 * SPEED))),
    )
    assert (int.from_bytes(number, "little"), len(place)) == (7, 12)
    found = unpack_mark(still, size=3, moving=True)
    assert found[2] is not None
    assert not found[2].any()
    assert unpack_mark(still, size=3, moving=False)[2] is None
    with pytest.raises(ValueError, match="a mark of"):
        unpack_mark(memoryview(b"".join(pack_mark(7, PLACE, SPEED))), size=3, moving=False)


@settings(max_examples=25, deadline=None)
@given(cut=st.integers(0, 6))
def test_a_writer_goes_on_after_any_step(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    folder = tmp_path_factory.mktemp("resume")
    whole = write(folder / "whole", steps=7)
    path = write(folder / "part", steps=7, sealed=False)
    with path.open("ab") as file:
        file.write(b"torn")
    with JournalWriter.resume(path, HEADER, steps=cut) as writer:
        assert writer.steps == cut
        for step in range(cut, 7):
            if writer.wants_mark:
                writer.mark(PLACE, SPEED)
            gradient = np.array([0.5, -0.25, step], np.float32)
            writer.step(None if step == 3 else gradient, np.array([0.1, 0.2]))
        writer.seal(PLACE, SPEED, error=0.25)
    assert path.read_bytes() == whole.read_bytes()


def test_a_writer_does_not_go_on_with_another_run(tmp_path: Path) -> None:
    path = write(tmp_path / "a", sealed=False)
    other = msgspec.structs.replace(HEADER, data="another")
    for header, steps in ((other, 1), (HEADER, 3)):
        with pytest.raises(JournalRefused, match="delete it and train again"):
            JournalWriter.resume(path, header, steps=steps)


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(WrongUse, match="is there already"):
        JournalWriter(tmp_path / "a", HEADER)
    assert (tmp_path / "a").read_text() == "mine"
    with pytest.raises(ModelError, match="cannot write"):
        JournalWriter(tmp_path / "none" / "a", HEADER)


def test_a_gradient_that_is_no_number_is_not_written(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "a", HEADER) as writer:
        writer.mark(PLACE, SPEED)
        with pytest.raises(ModelError, match="step 0 has a gradient that is no number"):
            writer.step(np.array([0, np.nan, 0], np.float32), np.array([0.1, 0.2]))


def test_a_full_disk_is_told(tmp_path: Path) -> None:
    with (
        JournalWriter(tmp_path / "a", HEADER) as writer,
        files_no_larger_than(0),
        pytest.raises(ModelError, match="File too large; make room"),
    ):
        writer.mark(np.zeros(1 << 20, np.float32), None)


@pytest.mark.parametrize("call", ["sync", "flush", "seal"])
def test_a_full_disk_is_told_also_of_what_waits_in_a_buffer(tmp_path: Path, call: str) -> None:
    with JournalWriter(tmp_path / "a", HEADER) as writer:
        writer.mark(PLACE, SPEED)
        with files_no_larger_than(0), pytest.raises(ModelError, match=f"cannot write {tmp_path / 'a'}: File"):
            writer.seal(PLACE, SPEED) if call == "seal" else getattr(writer, call)()
        assert writer.broken


@pytest.mark.parametrize("end", ["close", "discard"])
def test_a_writer_stops_on_a_full_disk(tmp_path: Path, end: str) -> None:
    writer = JournalWriter(tmp_path / "a", HEADER)
    writer.mark(PLACE, SPEED)
    with files_no_larger_than(0):
        getattr(writer, end)()
    assert (tmp_path / "a").exists() == (end == "close")


def test_a_header_that_finds_no_room_leaves_no_file(tmp_path: Path) -> None:
    large = msgspec.structs.replace(HEADER, ids=bytes(8 << 15))
    with files_no_larger_than(0), pytest.raises(ModelError, match="make room"):
        JournalWriter(tmp_path / "a", large)
    assert not (tmp_path / "a").exists()


def test_a_writer_that_is_killed_leaves_a_prefix_or_a_whole_journal(tmp_path: Path) -> None:
    def action() -> None:
        (tmp_path / "a").unlink(missing_ok=True)
        write(tmp_path / "a", steps=6)

    for point in choose(find_points(action), 20):
        kill_at(point, action)
        try:
            file = JournalFile(tmp_path / "a")
        except JournalRefused:
            continue
        if len(file) == 6:
            try:
                assert file.seal.steps == 6
            except JournalRefused as error:
                assert "cut short" in str(error)  # noqa: PT017
        else:
            with pytest.raises(JournalRefused, match=f"{len(file)} whole steps"):
                file.seal  # noqa: B018
