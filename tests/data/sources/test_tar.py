"""Tars: WebDataset's grouping, every way to write a name, labels, fields, damage and malice."""

from __future__ import annotations

import gzip
import io
import json
import os
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from datasets import CLASSES, Photo, members_of, write_tar, write_tars
from headwater.data.scans import Scan, Unit
from headwater.data.sources import SourceOptions, open_source
from headwater.data.sources.tar import TarLayout, split_name
from headwater.data.sources.tarheaders import LARGEST_EXTENSION, Member, Window, read_members
from headwater.errors import DatasetError, DatasetNotFound, DatasetStale, SampleCorrupt

FORMS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def members(content: bytes) -> list[Member]:
    window = Window(lambda start, length: content[start : start + length], len(content))
    return list(read_members(window, "x.tar"))


def archive(*entries: tuple[tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for entry, data in entries:
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return stream.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    return info


class TestHeaders:
    @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(
        st.lists(
            st.tuples(st.text("abé日/._ ", min_size=1, max_size=300), st.binary(max_size=2000)), max_size=8
        ),
        st.sampled_from(["gnu", "pax"]),
    )
    def test_agrees_with_tarfile(self, files: list[tuple[str, bytes]], form: str) -> None:
        content = archive(*((entry(name), data) for name, data in files), form=FORMS[form])
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            wanted = [(info.name, info.offset_data, info.size) for info in tar if info.isreg()]
        found = [(name.rstrip("/"), offset, size) for name, offset, size in members(content)]
        assert found == [(name.rstrip("/"), offset, size) for name, offset, size in wanted]

    def test_long_names_in_every_form(self) -> None:
        name = "/".join(["folder" * 5] * 4) + "/file.jpg"
        for form in FORMS.values():
            assert [m.name for m in members(archive((entry(name), b"x" * 700), form=form))] == [name]

    def test_very_long_names(self) -> None:
        name = "d/" * 3000 + "x.jpg"
        for form in ("gnu", "pax"):
            assert members(archive((entry(name), b"data"), form=FORMS[form]))[0].name == name

    def test_only_regular_files(self) -> None:
        link, device = entry("l", tarfile.SYMTYPE), entry("d", tarfile.CHRTYPE)
        folder = entry("f/", tarfile.DIRTYPE)
        link.linkname = "/etc/passwd"
        hard = entry("h", tarfile.LNKTYPE)
        hard.linkname = "a.jpg"
        content = archive((link, b""), (device, b""), (folder, b""), (hard, b""), (entry("a.jpg"), b"photo"))
        assert [(m.name, m.size) for m in members(content)] == [("a.jpg", 5)]

    def test_sizes_in_base_256_and_pax(self) -> None:
        info = entry("a.jpg")
        info.size = 3
        header = bytearray(info.tobuf(tarfile.GNU_FORMAT))
        header[124:136] = b"\x80" + (3).to_bytes(11, "big")
        content = resealed(header) + b"abc".ljust(512, b"\0")
        assert members(content) == [Member("a.jpg", 512, 3)]
        info = entry("b.jpg")
        info.pax_headers = {"size": "4", "comment": "x" * 600}
        record = info.create_pax_header(info.get_info() | {"size": 0}, "utf-8")
        found = members(record + b"abcd".ljust(512, b"\0"))
        assert [(m.name, m.size) for m in found] == [("b.jpg", 4)]

    def test_no_end_marker_is_the_end(self) -> None:
        content = archive((entry("a.jpg"), b"x"))
        assert [m.name for m in members(content[:1024])] == ["a.jpg"]
        assert members(b"") == []

    def test_reads_little_of_an_archive_of_large_members(self) -> None:
        content = archive(*((entry(f"{n}.jpg"), bytes(2 << 20)) for n in range(20)))
        read = []

        def ranged(start: int, length: int) -> bytes:
            read.append(length)
            return content[start : start + length]

        assert len(list(read_members(Window(ranged, len(content)), "x"))) == 20
        assert sum(read) < len(content) / 50

    def test_reads_an_archive_of_small_members_in_few_requests(self) -> None:
        content = archive(*((entry(f"{n}.txt"), b"x") for n in range(5000)))
        read = []

        def ranged(start: int, length: int) -> bytes:
            read.append(length)
            return content[start : start + length]

        assert len(list(read_members(Window(ranged, len(content)), "x"))) == 5000
        assert len(read) < 20


def resealed(header: bytearray) -> bytes:
    """A header with the checksum that fits it."""
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header[:512])
    return bytes(header)


def damaged(change: Callable[[bytearray], bytes]) -> bytes:
    return change(bytearray(archive((entry("a.jpg"), b"x" * 600), (entry("b.jpg"), b"y" * 600))))


def _with(place: slice, value: bytes) -> Callable[[bytearray], bytes]:
    def change(content: bytearray) -> bytes:
        content[place] = value
        return resealed(content[:512]) + bytes(content[512:])

    return change


class TestDamage:
    @pytest.mark.parametrize(
        ("change", "says"),
        [
            (lambda c: bytes(c[:1900]), r"byte 1536: 364 bytes are left"),
            (lambda c: bytes(c[:2100]), r"byte 1536: a member ends at byte 2648, the archive at 2100"),
            (lambda c: bytes(c[:5] + b"Z" + c[6:]), r"byte 0: header checksum is \d+"),
            (_with(slice(124, 136), b"77777777777\0"), r"ends at byte \d+, the archive at \d+: truncated"),
            (_with(slice(124, 136), b"\x80" + b"\xff" * 11), r"truncated, or a lying header"),
            (_with(slice(124, 136), b"\xff" * 12), r"negative"),
            (_with(slice(124, 136), b"0000000089 \0"), r"octal"),
            (_with(slice(156, 157), b"S"), r"sparse"),
            (_with(slice(156, 157), b"x"), r"PAX"),
            (lambda c: gzip.compress(bytes(c)).ljust(600, b"x"), r"compressed with gzip"),
            (lambda c: b"\xff\xd8\xff" + bytes(c), r"byte 0"),
        ],
    )
    def test_is_named_with_shard_and_place(
        self, change: Callable[[bytearray], bytes], says: str, tmp_path: Path
    ) -> None:
        path = tmp_path / "bad.tar"
        path.write_bytes(damaged(change))
        with pytest.raises(DatasetError, match=rf"(?s)bad\.tar.*{says}"):
            open_source(path)

    def test_a_huge_extended_header_is_not_read(self) -> None:
        info = entry("x")
        info.type, info.size = b"L", LARGEST_EXTENSION + 1
        content = info.tobuf(tarfile.GNU_FORMAT) + bytes(2 * LARGEST_EXTENSION)
        with pytest.raises(DatasetError, match="an extended header of"):
            members(content)

    def test_500_mutations_are_read_or_refused(self) -> None:
        long = entry("n" * 150 + ".jpg")
        content = archive((entry("a.jpg"), b"x" * 100), (long, b"y" * 100), (entry("a.cls"), b"3"))
        rng = np.random.default_rng(7)
        blocks = range(0, len(content), 512)
        headers = [start for start in blocks if content[start + 257 : start + 262] == b"ustar"]
        refused = 0
        for number in range(500):
            mutated = bytearray(content)
            start = headers[number % len(headers)]
            for place in rng.integers(0, 512, int(rng.integers(1, 6))):
                mutated[start + place] = rng.integers(256)
            if number % 2:  # a right checksum, so that what lies behind it is reached
                mutated[start : start + 512] = resealed(mutated[start : start + 512])
            try:
                assert all(m.offset + m.size <= len(content) for m in members(bytes(mutated)))
            except DatasetError:
                refused += 1
        assert 100 < refused < 500

    def test_500_mutations_of_extended_records(self) -> None:
        long = entry("n" * 150 + ".jpg")
        long.pax_headers = {"comment": "é" * 40, "size": "100"}
        content = archive((long, b"y" * 100))
        rng = np.random.default_rng(8)
        outcomes = set()
        for _ in range(500):
            mutated = bytearray(content)
            for place in rng.integers(512, 1024, int(rng.integers(1, 4))):
                mutated[place] = rng.integers(256)
            try:
                outcomes.add(len(members(bytes(mutated))))
            except DatasetError:
                outcomes.add(-1)
        assert outcomes <= {-1, 0, 1}
        assert -1 in outcomes


class TestNames:
    @pytest.mark.parametrize(
        ("name", "split"),
        [
            ("0001.jpg", ("0001", "jpg")),
            ("a/b.c/0001.seg.PNG", ("a/b.c/0001", "seg.png")),
            ("./x.jpg", ("x", "jpg")),
            ("/etc/x.jpg", ("etc/x", "jpg")),
            ("../../x.jpg", ("x", "jpg")),
            ("a//b.jpg", ("a/b", "jpg")),
            ("._x.jpg", ("", "")),
            (".hidden/x.jpg", ("", "")),
            ("noext", ("noext", "")),
            ("", ("", "")),
        ],
    )
    def test_base_and_extension(self, name: str, split: tuple[str, str]) -> None:
        assert split_name(name) == split

    def test_traversal_names_are_only_keys(self, tmp_path: Path) -> None:
        before = sorted(os.listdir(tmp_path.parent))
        tar = write_tar(tmp_path / "t.tar", [("../../evil.jpg", b"1"), ("/abs/x.jpg", b"2")])
        source = open_source(tar)
        assert source.index.keys.to_pylist() == ["t/evil", "t/abs/x"]
        assert [bytes(data) for data in source.read(np.arange(2))] == [b"1", b"2"]
        assert sorted(os.listdir(tmp_path.parent)) == before
        assert os.listdir(tmp_path) == ["t.tar"]

    def test_a_name_twice_is_refused(self, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "t.tar", [("a.jpg", b"1"), ("./a.jpg", b"2")])
        with pytest.raises(DatasetError, match=r"t\.tar holds a\.jpg twice"):
            open_source(tar)

    def test_shards_of_one_stem_use_their_paths(self, tmp_path: Path) -> None:
        write_tar(tmp_path / "x/0.tar", [("a.jpg", b"1")])
        write_tar(tmp_path / "y/0.tar", [("a.jpg", b"2")])
        write_tar(tmp_path / "y/1.tar", [("a.jpg", b"3")])
        assert open_source(tmp_path).index.keys.to_pylist() == ["x/0/a", "y/0/a", "1/a"]


class TestSamples:
    def test_members_need_not_lie_together(self, tmp_path: Path) -> None:
        content = [("a.jpg", b"1"), ("b.jpg", b"2"), ("b.cls", b"5"), ("a.cls", b"4")]
        index = open_source(write_tar(tmp_path / "t.tar", content)).index
        assert index.labels.tolist() == [4, 5]

    def test_samples_without_an_image_are_left_out_and_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        tar = write_tar(tmp_path / "t.tar", [("a.jpg", b"1"), ("b.txt", b"2"), ("c.cls", b"3")])
        assert len(open_source(tar).index) == 1
        assert "left out 2 samples without an image" in caplog.text

    def test_no_image_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(DatasetNotFound, match=r"no image in .*t\.tar; looked for \.jpg"):
            open_source(write_tar(tmp_path / "t.tar", [("b.txt", b"2")]))

    def test_which_extension_is_the_image(self, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "t.tar", [("a.jpg", b"1"), ("a.seg.png", b"22"), ("a.png", b"333")])
        for image, data in ((None, b"1"), ("seg.png", b"22"), (".PNG, jpg", b"333"), ("gif,png", b"333")):
            source = open_source(tar, options=SourceOptions(image=image))
            assert [bytes(found) for found in source.read(np.array([0]))] == [data]


class TestLabels:
    def test_numbers_are_themselves(self, tmp_path: Path) -> None:
        content = [("a.jpg", b"1"), ("a.cls", b" 12\n"), ("b.jpg", b"1"), ("b.cls", b"3"), ("c.jpg", b"1")]
        index = open_source(write_tar(tmp_path / "t.tar", content)).index
        assert (index.labels.tolist(), index.classes) == ([12, 3, -1], ())

    def test_one_name_makes_all_of_them_names(self, tmp_path: Path) -> None:
        content = [("a.jpg", b"1"), ("a.cls", b"12"), ("b.jpg", b"1"), ("b.cls", b"dog")]
        index = open_source(write_tar(tmp_path / "t.tar", content)).index
        assert (index.labels.tolist(), index.classes) == ([0, 1], ("12", "dog"))

    def test_from_a_key_of_a_json_member(self, photo_tars: Path) -> None:
        by_name = open_source(photo_tars, options=SourceOptions(label="json:class")).index
        assert by_name.classes == CLASSES
        by_number = open_source(photo_tars, options=SourceOptions(label="json:number")).index
        assert by_number.labels.tolist() == list(range(36))
        none = open_source(photo_tars, options=SourceOptions(label="json:nothing")).index
        assert set(none.labels.tolist()) == {-1}

    def test_from_a_key_with_capitals(self, tmp_path: Path) -> None:
        content = [("a.jpg", b"1"), ("a.JSON", json.dumps({"Kind": "owl"}).encode())]
        tar = write_tar(tmp_path / "t.tar", content)
        assert open_source(tar, options=SourceOptions(label="json:Kind")).index.classes == ("owl",)

    def test_from_json_that_is_none(self, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "t.tar", [("a.jpg", b"1"), ("a.json", b"{")])
        with pytest.raises(DatasetError, match=r"a\.json of .*t\.tar is not JSON"):
            open_source(tar, options=SourceOptions(label="json:x"))

    @pytest.mark.parametrize("value", ["[" * 10**5, '{"x":' * 10**5, '{"x": "\\ud800"}'])
    def test_from_hostile_json(self, tmp_path: Path, value: str) -> None:
        tar = write_tar(tmp_path / "t.tar", [("a.jpg", b"1"), ("a.json", value.encode())])
        with pytest.raises(DatasetError, match=r"a\.json of .*t\.tar is not JSON"):
            open_source(tar, options=SourceOptions(label="json:x"))

    def test_leading_zeros_do_not_depend_on_what_was_indexed_first(self, tmp_path: Path) -> None:
        """Numbers as long as all are; their texts come back as class names when a name joins them."""
        texts = ("09", "10", "9", "-1", "-2")
        write_tar(
            tmp_path / "0.tar", [m for t in texts for m in ((f"{t}.jpg", b"1"), (f"{t}.cls", t.encode()))]
        )
        assert open_source(tmp_path).index.labels.tolist() == [9, 10, 9, -1, -2]
        write_tar(tmp_path / "1.tar", [("n.jpg", b"1"), ("n.cls", b"007")])
        assert open_source(tmp_path).index.labels.tolist() == [9, 10, 9, -1, -2, 7]
        write_tar(tmp_path / "2.tar", [("c.jpg", b"1"), ("c.cls", b"cat")])
        index = open_source(tmp_path).index
        assert index.classes == ("-1", "-2", "007", "09", "10", "9", "cat")
        assert [index.classes[label] for label in index.labels] == [*texts, "007", "cat"]
        assert open_source(tmp_path, options=SourceOptions(refresh=True)).index.version == index.version
        (tmp_path / "2.tar").unlink()
        assert open_source(tmp_path).index.labels.tolist() == [9, 10, 9, -1, -2, 7]

    def test_a_label_of_megabytes_is_not_read(self, tmp_path: Path) -> None:
        tar = write_tar(tmp_path / "t.tar", [("a.jpg", b"1"), ("a.cls", bytes(3 << 20))])
        with pytest.raises(DatasetError, match=r"a\.cls of .* has 3145728 bytes"):
            open_source(tar)


def npy_header(text: bytes) -> bytes:
    """The beginning of an .npy file whose header is this text."""
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


class TestFields:
    def read(self, tmp_path: Path, name: str, data: bytes) -> object:
        tar = write_tar(tmp_path / "t.tar", [("a.jpg", b"1"), (f"a.{name}", data), ("b.jpg", b"2")])
        source = open_source(tar, options=SourceOptions(fields=(name,)))
        values = source.read_fields(np.array([1, 0]))[name]
        assert values[0] is None
        return values[1]

    @pytest.mark.parametrize(
        ("name", "data", "value"),
        [
            ("json", b'{"x": [1, null]}', {"x": [1, None]}),
            ("meta.json", b"3", 3),
            ("txt", "grüße".encode(), "grüße"),
            ("cls", b"7\n", "7"),
            ("bin", b"\x00\xff", b"\x00\xff"),
        ],
    )
    def test_values(self, tmp_path: Path, name: str, data: bytes, value: object) -> None:
        assert self.read(tmp_path, name, data) == value

    @pytest.mark.parametrize("array", [np.arange(6).reshape(2, 3), np.ones((2, 3), order="F"), np.array(5)])
    def test_arrays(self, tmp_path: Path, array: np.ndarray) -> None:
        stream = io.BytesIO()
        np.save(stream, array)
        value = self.read(tmp_path, "npy", stream.getvalue())
        np.testing.assert_array_equal(value, array)

    def test_pickles_lies_and_rubbish_are_refused(self, tmp_path: Path) -> None:
        pickled, honest = io.BytesIO(), io.BytesIO()
        np.save(pickled, np.array([{"a": 1}]), allow_pickle=True)
        np.save(honest, np.zeros(4))
        lying = honest.getvalue().replace(b"(4,)", b"(9999999999999,)")
        lying = lying[:8] + (len(lying) - 32 - 10).to_bytes(2, "little") + lying[10:]
        for number, (name, data, says) in enumerate(
            [
                ("npy", pickled.getvalue(), "unpickled"),
                ("npy", lying, "claims"),
                ("npy", b"rubbish", "'npy' of 7 bytes"),
                ("npy", npy_header(b"-" * 9000), "'npy' of 9010 bytes"),
                ("npy", npy_header(b"(" * 9000), "'npy' of 9010 bytes"),
                ("npy", npy_header(b"{'descr': (), 'fortran_order': False, 'shape': (0,)}"), "'npy' of 62 "),
                ("json", b"{", "'json'"),
                ("json", b"[" * 10**5, "'json' of 100000 bytes"),
                ("txt", b"\xff", "'txt'"),
            ]
        ):
            with pytest.raises(SampleCorrupt, match=says):
                self.read(tmp_path / str(number), name, data)


class TestShards:
    def test_an_added_shard_is_the_only_one_scanned(
        self, tmp_path: Path, photos: list[Photo], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_tars(tmp_path, photos[:30])
        first = open_source(tmp_path).index
        scanned: list[str] = []
        real = TarLayout.scan

        def scan(self: TarLayout, units: Sequence[Unit]) -> Scan:
            scanned.append(units[0].name)
            return real(self, units)

        monkeypatch.setattr(TarLayout, "scan", scan)
        write_tar(tmp_path / "shard-003.tar", [m for photo in photos[30:] for m in members_of(photo)])
        index = open_source(tmp_path).index
        assert scanned == ["shard-003.tar"]
        assert index.ids[:30].tolist() == first.ids.tolist()
        assert len(index) == 36
        assert open_source(tmp_path, options=SourceOptions(refresh=True)).index.version == index.version

    def test_a_shard_that_changed_is_stale(self, tmp_path: Path, photos: list[Photo]) -> None:
        write_tars(tmp_path, photos)
        source = open_source(tmp_path)
        source.read(np.array([0, 35]))
        os.truncate(tmp_path / "shard-002.tar", 5000)
        source.read(np.array([0]))
        with pytest.raises(DatasetStale, match=r"shard-002\.tar .* has 5000 bytes now; open"):
            source.read(np.array([35]))
