"""What every label database promises, in SQLite and in a PostgreSQL that runs: rules, history, queries."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import sqlalchemy as sa

from headwater.errors import LabelError, LabelRefused, WrongUse
from headwater.store.labels import LabelRows, Source, open_labels, writing
from headwater.store.labels.announced import Announced
from headwater.store.labels.database import LabelDatabase
from headwater.store.labels.page import LabelPage
from headwater.store.labels.wanted import LabelQuery
from labelled import (
    NAMES,
    Kind,
    Templates,
    announce,
    contents,
    digest,
    human,
    imported,
    in_force,
    predicted,
    remembered,
)


@pytest.fixture
def kind(label_kind: Kind) -> Kind:
    return label_kind


@pytest.fixture
def db(kind: Kind) -> Iterator[LabelDatabase]:
    """With two model versions, 1 and 2, and a dataset of four classes without labels."""
    database = kind.open()
    announce(database, 1)
    announce(database, 2)
    database.adopt("photos", NAMES)
    yield database
    database.close()


def put(db: LabelDatabase, who: str, label: int, *, sample: int = 7) -> Any:
    """One label of a human, an import, or a model by its number."""
    if who.isdigit():
        rows = predicted([sample], [label], db.model(digest(int(who))).number)
    else:
        rows = {"human": human, "import": imported}[who]([sample], [label])
    return db.write("photos", rows)


class TestRules:
    @pytest.mark.parametrize(
        ("there", "comes", "replaced"),
        [
            ("human", "human", True),
            ("human", "import", False),
            ("human", "1", False),
            ("import", "human", True),
            ("import", "import", True),
            ("import", "1", False),
            ("1", "human", True),
            ("1", "import", True),
            ("1", "2", True),
            ("2", "1", False),
            ("1", "1", False),
        ],
    )
    def test_who_replaces_whom(self, db: LabelDatabase, there: str, comes: str, replaced: bool) -> None:
        put(db, there, 1)
        written = put(db, comes, 2)
        assert (written.wrote, written.kept) == ((1, 0) if replaced else (0, 1))
        who = comes if replaced else there
        assert in_force(db) == {7: (2 if replaced else 1, "model" if who.isdigit() else who)}

    def test_a_model_replaces_an_import_only_if_asked(self, db: LabelDatabase) -> None:
        put(db, "import", 1)
        put(db, "human", 1, sample=8)
        model = db.model(digest(1)).number
        written = db.write("photos", predicted([7, 8], [2, 2], model), over_imports=True)
        assert (written.wrote, written.kept) == (1, 1)
        assert in_force(db) == {7: (2, "model"), 8: (1, "human")}

    def test_an_import_that_says_the_same_changes_nothing(self, db: LabelDatabase) -> None:
        put(db, "import", 1)
        before = contents(db)
        assert put(db, "import", 1).wrote == 0
        assert contents(db) == before

    @pytest.mark.parametrize("comes", ["1", "import"])
    def test_the_statement_itself_protects_a_human_who_comes_between(
        self, db: LabelDatabase, comes: str
    ) -> None:
        """A label that appears after the write has looked, in the last moment before it writes."""
        row = "1, 0, 7, 3, NULL, NULL, 0, NULL, 5, 0"
        done: list[str] = []

        def intrude(connection: Any, cursor: Any, statement: str, *_: object) -> None:
            if statement.startswith("INSERT INTO labels") and not done:
                done.append(statement)
                cursor.execute(f"INSERT INTO labels VALUES ({row})")

        sa.event.listen(db._engine, "before_cursor_execute", intrude)
        assert put(db, comes, 1).wrote == 0
        assert done
        assert in_force(db) == {7: (3, "human")}

    def test_an_unknown_version_cannot_label(self, db: LabelDatabase) -> None:
        with pytest.raises(LabelRefused, match="was not told of model version number 999"):
            db.write("photos", predicted([7], [1], 999))
        with pytest.raises(LabelRefused, match="was not told of model version number 0"):
            db.write("photos", LabelRows.of([7], [1], source=Source.MODEL))
        assert in_force(db) == {}
        assert [entry.kind for entry in db.log()] == ["announce", "announce"]

    def test_what_makes_no_sense_is_refused(self, db: LabelDatabase) -> None:
        with pytest.raises(WrongUse, match="label 4 is no place in a list of 4 classes"):
            db.write("photos", human([7], [4]))
        with pytest.raises(WrongUse, match="names a model version"):
            db.write("photos", LabelRows.of([7], [1], source=Source.HUMAN, model=1))
        with pytest.raises(WrongUse, match="source 9 is none of 0"):
            db.write("photos", LabelRows.of([7], [1], source=9))
        with pytest.raises(WrongUse, match="at least one row"):
            db.write("photos", human([], []))
        with pytest.raises(WrongUse, match="a dataset's name"):
            db.write("a\nb", human([7], [0]))

    def test_columns_come_back_as_they_went(self, db: LabelDatabase) -> None:
        rows = LabelRows.of(
            [(1 << 63) - 1, 0],
            [3, 1],
            source=[Source.MODEL, Source.HUMAN],
            model=[db.model(digest(2)).number, 0],
            scores=[0.1, np.nan],
            margins=[1e-30, np.nan],
            times=[1_600_000_000_123, 1],
        )
        db.write("photos", rows)
        (found,) = db.scan("photos")
        for name, one, other in zip(rows.__dict__, found.columns(), rows.columns(), strict=True):
            if name != "revisions":
                assert one.dtype == other.dtype
                np.testing.assert_array_equal(one, other[::-1], err_msg=name)

    def test_many_rows_are_written_in_parts(self, db: LabelDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writing, "ROWS_AT_ONCE", 7)
        samples = np.random.default_rng(0).permutation(100)
        assert db.write("photos", imported(samples, samples % 4)).wrote == 100
        model = db.model(digest(1)).number
        assert db.write("photos", predicted(range(50, 150), [1] * 100, model)).kept == 50
        assert {s: label for s, (label, _) in in_force(db).items() if s < 100} == {
            s: s % 4 for s in range(100)
        }
        assert db.get("photos", range(200), opinions=True).samples.tolist() == list(range(50, 100))


class TestModels:
    def test_a_version_is_announced_once(self, db: LabelDatabase) -> None:
        again = db.announce(digest(1), name="another name", parent=digest(2))
        assert again == db.model(digest(1))
        assert again.name == "net1"
        assert [version.digest for version in db.models()] == [digest(1), digest(2)]

    def test_found_by_digest_its_beginning_and_name(self, db: LabelDatabase) -> None:
        third = db.announce("abcdef0123456789", name="net2", parent=digest(2))
        assert third.parent == digest(2)
        assert db.model("abcdef01") == db.model("net2") == third
        with pytest.raises(LabelRefused, match="begins several digests"):
            db.model("00000000")
        for text in ("abcdef0", "nothing"):
            with pytest.raises(LabelRefused, match="is not known to this database"):
                db.model(text)

    def test_a_digest_is_hexadecimal(self, db: LabelDatabase) -> None:
        for given in ({"digest": "../../etc"}, {"digest": digest(3), "parent": "../../etc"}):
            with pytest.raises(WrongUse, match=r"'\.\./\.\./etc' is no digest"):
                db.announce(**given, name="net")
        assert len(db.models()) == 2

    def test_a_child_comes_before_its_parent_and_is_newer(self, db: LabelDatabase) -> None:
        child = db.announce(digest(4), name="net4", parent=digest(3))
        unnamed = db.model(digest(3))
        assert (unnamed.name, unnamed.parent) == ("", None)
        with pytest.raises(LabelRefused, match="is not known"):
            db.model("")
        parent = db.announce(digest(3), name="net3", parent=digest(8))
        assert parent == Announced(unnamed.number, digest(3), "net3", digest(8)) == db.model("net3")
        assert db.models()[1].number < parent.number < child.number
        assert db.announce(digest(3), name="other") == parent
        put(db, "4", 1)
        assert put(db, "3", 2).kept == 1
        put(db, "3", 2, sample=8)
        assert db.pending("photos", digest(4), [7, 8]).tolist() == [8]
        assert db.pending("photos", digest(3), [7, 8]).tolist() == []
        assert put(db, "4", 1, sample=8).wrote == 1

    def test_those_before_a_version_are_announced_first(self, db: LabelDatabase) -> None:
        line = [Announced(0, digest(number), "net", None) for number in (5, 1, 4, 3)]
        last = db.announce_line(line, author="anna")
        assert [one.digest for one in db.models()] == [digest(number) for number in (1, 2, 5, 4, 3)]
        assert last == db.models()[-1]
        for one in line:
            assert db.announce_line([one]) == db.model(one.digest)

    def test_what_came_before_a_known_version_does_not_become_newer(self, db: LabelDatabase) -> None:
        line = [Announced(0, digest(number), f"net{number}", None) for number in (5, 1)]
        assert db.announce_line(line) == db.model(digest(1))
        assert [one.digest for one in db.models()] == [digest(1), digest(2)]

    def test_a_nameless_parent_moves_to_another_database(self, db: LabelDatabase) -> None:
        there = [Announced(4, digest(4), "", None), Announced(6, digest(6), "net6", digest(4))]
        for _ in range(2):
            assert [(one.digest, one.name) for one in db.announce_all(there)] == [
                (digest(4), ""),
                (digest(6), "net6"),
            ]


class TestKeys:
    def test_a_chunk_is_written_once(self, db: LabelDatabase) -> None:
        model = db.model(digest(1)).number
        first = db.write("photos", predicted([1, 2], [0, 1], model), key="job", chunk=0)
        before, old = contents(db), remembered(db)
        assert db.write("photos", predicted([1, 2], [3, 3], model), key="job", chunk=0) == first
        assert (contents(db), remembered(db)) == (before, old)
        assert (db.written("job", 0), db.written("job", 1), db.written("other", 0)) == (first, None, None)
        second = db.write("photos", predicted([3], [2], model), key="job", chunk=1)
        assert second.revision == first.revision
        assert db.log("photos")[0].wrote == 3

    def test_chunks_are_undone_together(self, db: LabelDatabase) -> None:
        put(db, "import", 2)
        before = contents(db)
        for chunk in range(3):
            db.write("photos", human([chunk, 7 + chunk], [0, 1]), key="job", chunk=chunk)
        assert db.undo("photos").wrote == 6
        assert contents(db) == before

    def test_a_sample_in_two_chunks_goes_back_to_what_was_before_both(self, db: LabelDatabase) -> None:
        put(db, "import", 2)
        before = contents(db)
        for chunk in range(2):
            db.write("photos", human([7], [chunk]), key="job", chunk=chunk)
        assert in_force(db) == {7: (1, "human")}
        db.undo("photos")
        assert contents(db) == before

    def test_a_key_is_one_writes_only(self, db: LabelDatabase) -> None:
        model = db.model(digest(1)).number
        db.write("photos", predicted([1], [0], model), key="job")
        for rows in (human([2], [0]), predicted([2], [0], db.model(digest(2)).number)):
            with pytest.raises(LabelRefused, match="key 'job' is that of revision 3"):
                db.write("photos", rows, key="job", chunk=1)
        db.undo("photos")
        with pytest.raises(LabelRefused, match="was undone by revision 4"):
            db.write("photos", predicted([1], [0], model), key="job", chunk=1)


class TestUndo:
    def test_rows_come_back_exactly(self, db: LabelDatabase) -> None:
        states = [contents(db)]
        for who, label in (("1", 0), ("import", 1), ("2", 2), ("human", 3), ("2", 1), ("human", 0)):
            put(db, who, label)
            states.append(contents(db))
        for state in reversed(states[:-1]):
            db.undo("photos")
            assert contents(db) == state
        with pytest.raises(LabelRefused, match="nothing is left to undo"):
            db.undo("photos")

    def test_an_undo_can_be_undone_again_and_again(self, db: LabelDatabase) -> None:
        put(db, "1", 0)
        first = last = put(db, "human", 1).revision
        states, in_force_again = [contents(db)], []
        for _ in range(4):
            last = db.undo("photos", last).revision
            states.append(contents(db))
            in_force_again.append({e.number: e.undone_by for e in db.log("photos")}[first])
        assert states[0] == states[2] == states[4] != states[1] == states[3]
        assert in_force_again == [first + 1, None, first + 1, None]
        assert [e.undone_by is None for e in db.log("photos", limit=4)] == [True, False, True, False]
        assert db.undo("photos").wrote == 1

    def test_refused_by_name_where_a_row_changed_since(self, db: LabelDatabase) -> None:
        first = db.write("photos", human([1, 2], [0, 0])).revision
        second = put(db, "human", 1, sample=2).revision
        before = contents(db)
        with pytest.raises(LabelRefused, match=f"revision {first} .*: 1 row .*, last by revision {second}"):
            db.undo("photos", first)
        assert contents(db) == before
        db.undo("photos", second)
        db.undo("photos", first)
        assert in_force(db) == {}

    def test_an_older_one_whose_rows_nobody_touched(self, db: LabelDatabase) -> None:
        first = put(db, "human", 0, sample=1).revision
        put(db, "human", 1, sample=2)
        db.undo("photos", first)
        assert in_force(db) == {2: (1, "human")}

    def test_what_cannot_be_undone_says_why(self, db: LabelDatabase) -> None:
        first = put(db, "human", 0).revision
        db.adopt("others", NAMES)
        done = db.undo("photos").revision
        with pytest.raises(LabelRefused, match=f"was undone by {done}"):
            db.undo("photos", first)
        for dataset, number in (("photos", 99), ("others", done), ("photos", 1)):
            with pytest.raises(LabelRefused, match="is none of this dataset"):
                db.undo(dataset, number)

    def test_opinions_come_back_too(self, db: LabelDatabase) -> None:
        put(db, "1", 0)
        put(db, "human", 1)
        assert db.get("photos", [7], opinions=True).labels.tolist() == [0]
        put(db, "2", 2)
        assert db.get("photos", [7], opinions=True).labels.tolist() == [2]
        db.undo("photos")
        assert db.get("photos", [7], opinions=True).labels.tolist() == [0]
        db.undo("photos")
        assert len(db.get("photos", [7], opinions=True)) == 0


class TestClasses:
    def test_names_get_numbers_in_order(self, db: LabelDatabase) -> None:
        assert db.adopt("photos", ["dog", "emu", "ant", "emu"]).tolist() == [3, 4, 0, 4]
        assert db.classes("photos").names == (*NAMES, "emu")

    def test_a_new_name_and_the_old_one_mean_the_class(self, db: LabelDatabase) -> None:
        put(db, "human", 2)
        db.rename("photos", "cat", "feline")
        assert db.classes("photos").names[2] == "feline"
        assert db.adopt("photos", ["cat", "feline"]).tolist() == [2, 2]
        assert db.counts("photos")["feline"][Source.HUMAN] == 1
        db.undo("photos")
        assert db.classes("photos").names == NAMES
        assert db.adopt("photos", ["feline"]).tolist() == [4]

    def test_a_name_in_use_is_refused(self, db: LabelDatabase) -> None:
        with pytest.raises(LabelRefused, match="class 1 is called 'bee' already; merge"):
            db.rename("photos", "cat", "bee")
        with pytest.raises(WrongUse, match="no class is called 'cow'; of 4, such as"):
            db.rename("photos", "cow", "ox")
        with pytest.raises(WrongUse, match="a class's name"):
            db.rename("photos", "cat", " ")

    def test_a_rename_is_not_undone_into_a_name_that_is_taken(self, db: LabelDatabase) -> None:
        first = db.rename("photos", "cat", "feline").revision
        db.rename("photos", "dog", "cat")
        with pytest.raises(LabelRefused, match="another class is called 'cat' now"):
            db.undo("photos", first)

    def test_merged_classes_are_read_as_one(self, db: LabelDatabase) -> None:
        for sample in range(8):
            put(db, "human", sample % 4, sample=sample)
        rows = contents(db)["labels"]
        db.merge("photos", "dog", "cat")
        db.merge("photos", "cat", "bee")
        assert contents(db)["labels"] == rows, "rows are left alone"
        assert {label for label, _ in in_force(db).values()} == {0, 1}
        counts = {name: row[Source.HUMAN] for name, row in db.counts("photos").items()}
        assert counts == {"ant": 2, "bee": 6}
        for name in ("bee", "cat", "dog"):
            found = db.search("photos", LabelQuery(classes=(name,)))
            assert found.samples.tolist() == [1, 2, 3, 5, 6, 7]
            assert set(found.labels.tolist()) == {1}
        db.undo("photos")
        db.undo("photos")
        assert in_force(db)[3] == (3, "human")

    def test_classes_never_end_up_in_each_other(self, db: LabelDatabase) -> None:
        first = db.merge("photos", "cat", "dog").revision
        with pytest.raises(LabelRefused, match="are one class already"):
            db.merge("photos", "dog", "cat")
        undone = db.undo("photos", first).revision
        db.merge("photos", "dog", "cat")
        with pytest.raises(LabelRefused, match="merged into each other"):
            db.undo("photos", undone)


class TestVersionsOfAnother:
    def test_they_come_in_their_order_and_again_as_nothing(self, db: LabelDatabase) -> None:
        there = [Announced(number, digest(number), f"net{number}", None) for number in (1, 2, 3)]
        there.append(Announced(9, digest(9), "other", digest(3)))
        for _ in range(2):
            found = db.announce_all(there, author="anna")
            assert found == db.models()
            assert [(one.digest, one.name, one.parent) for one in found] == [
                (one.digest, one.name, one.parent) for one in there
            ]

    def test_another_order_is_refused_and_none_is_announced(self, db: LabelDatabase) -> None:
        """A version from between the two that are known here would be newer than both."""
        there = [Announced(number, digest(number), f"net{number}", None) for number in (1, 5, 2)]
        with pytest.raises(LabelRefused, match=r"net2 00000000.* was announced here before net5"):
            db.announce_all(there)
        assert [one.digest for one in db.models()] == [digest(1), digest(2)]


class TestEnrolling:
    def test_a_dataset_brings_its_labels(self, db: LabelDatabase) -> None:
        done = db.enrol("photos", [5, 6, 7], [1, -1, 0], class_names=["cow", "bee"])
        assert (done.wrote, done.kept) == (2, 0)
        assert in_force(db) == {5: (1, "import"), 7: (4, "import")}
        again = db.enrol("photos", [5, 6, 7], [1, 1, 1], class_names=["cow", "bee"])
        assert again.wrote == 2
        assert in_force(db) == {5: (1, "import"), 6: (1, "import"), 7: (1, "import")}

    def test_parts_are_one_revision(self, db: LabelDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(writing, "ROWS_AT_ONCE", 3)
        samples = np.array([8, 3, 5, 1, 9, 2, 7])
        done = db.enrol("photos", samples, samples % 2, class_names=["cow", "bee"])
        (entry,) = db.log("photos")
        assert (entry.number, entry.wrote) == (done.revision, done.wrote) == (done.revision, 7)
        assert in_force(db) == {s: ((4, 1)[s % 2], "import") for s in samples.tolist()}
        with pytest.raises(WrongUse, match="sample 3 occurs twice"):
            db.enrol("photos", [1, 2, 3, 3], [0] * 4, class_names=["cow"])

    def test_many_rows_take_little_memory(
        self, label_templates: Templates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """No more than a few numbers of each row are held at once, beside one part of all columns."""
        monkeypatch.setattr(writing, "ROWS_AT_ONCE", 3000)
        samples, labels = np.arange(60_000)[::-1].copy(), np.zeros(60_000, np.int64)
        with closing(label_templates.sqlite_kind(tmp_path).open()) as db:
            tracemalloc.start()
            db.enrol("photos", samples, labels, class_names=["cow"])
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
        assert most < 5_000_000

    def test_none_of_them_need_have_one(self, db: LabelDatabase) -> None:
        assert db.enrol("photos", [5, 6], [-1, -1], class_names=[]).wrote == 0
        with pytest.raises(WrongUse, match="label 0 is no place in a list of 0"):
            db.enrol("photos", [5], [0], class_names=[])


@pytest.fixture
def filled(db: LabelDatabase) -> LabelDatabase:
    """200 samples: every fifth of a human, every seventh an import, every third of model 1, others of 2."""
    samples = np.arange(200)
    first, second = (db.model(digest(number)).number for number in (1, 2))
    spread = np.random.default_rng(3).random(200).astype(np.float32)
    labels = samples % 4
    some = samples % 3 == 0
    db.write(
        "photos", predicted(samples[some], labels[some], first, scores=spread[some], margins=spread[some])
    )
    rest = ~some
    db.write("photos", predicted(samples[rest], labels[rest], second, scores=0.9, margins=spread[rest]))
    db.write("photos", imported(samples[::7], labels[::7]))
    db.write("photos", human(samples[::5], labels[::5]))
    return db


def wanted(db: LabelDatabase, query: LabelQuery) -> list[int]:
    """What a search must find, looked for in all rows without a database."""
    numbers = {version.digest: version.number for version in db.models()}
    found = []
    for part in db.scan("photos"):
        for sample, label, score, margin, source, model, *_ in zip(*part.columns(), strict=True):
            fits = [not query.classes or NAMES[label] in query.classes]
            for value, bounds in ((score, query.scores), (margin, query.margins)):
                fits.append(bounds is None or bool(np.float32(bounds[0]) <= value <= np.float32(bounds[1])))
            fits.append(not query.sources or Source(source) in query.sources)
            fits.append(query.model is None or model == numbers[query.model])
            fits.append(query.older_than is None or 0 < model < numbers[query.older_than])
            found += [int(sample)] if all(fits) else []
    return found


QUERIES = {
    "all": LabelQuery(),
    "class": LabelQuery(classes=("bee",)),
    "classes": LabelQuery(classes=("bee", "dog")),
    "scores": LabelQuery(scores=(0.25, 0.75)),
    "exactly": LabelQuery(scores=(0.9, 0.9)),
    "margins": LabelQuery(margins=(0.0, 0.1)),
    "human": LabelQuery(sources=(Source.HUMAN,)),
    "sources": LabelQuery(sources=(Source.HUMAN, Source.IMPORT)),
    "version": LabelQuery(model=digest(2)),
    "older": LabelQuery(older_than=digest(2)),
    "together": LabelQuery(classes=("ant", "dog"), margins=(0.2, 0.8), sources=(Source.MODEL,)),
}


class TestSearching:
    @pytest.mark.parametrize("name", QUERIES)
    def test_finds_what_fits(self, filled: LabelDatabase, name: str) -> None:
        query = QUERIES[name]
        expected = wanted(filled, query)
        assert 0 < len(expected) <= 200
        assert filled.search("photos", query).samples.tolist() == expected
        assert [s for part in filled.scan("photos", query) for s in part.samples.tolist()] == expected

    @pytest.mark.parametrize("name", ["all", "classes", "sources"])
    def test_pages_follow_one_another(self, filled: LabelDatabase, name: str) -> None:
        found: list[int] = []
        while True:
            page = filled.search("photos", QUERIES[name], after=found[-1] if found else -1, limit=7)
            found += page.samples.tolist()
            if len(page) < 7:
                break
        assert found == wanted(filled, QUERIES[name])

    def test_an_impossible_range_is_wrong_use(self) -> None:
        with pytest.raises(WrongUse, match=r"the range of scores, 0\.9 to 0\.1, holds nothing"):
            LabelQuery(scores=(0.9, 0.1))

    def test_counts(self, filled: LabelDatabase) -> None:
        found = filled.counts("photos")
        expected = {name: dict.fromkeys(Source, 0) for name in NAMES}
        for label, source in in_force(filled).values():
            expected[NAMES[label]][Source[source.upper()]] += 1
        assert found == expected
        assert sum(sum(row.values()) for row in found.values()) == 200

    def test_looked_up_by_id(self, filled: LabelDatabase) -> None:
        found = filled.get("photos", [199, 5, 1000, 5])
        assert found.samples.tolist() == [5, 199]
        assert found.sources.tolist() == [Source.HUMAN, Source.MODEL]

    def test_an_unknown_dataset_is_named(self, filled: LabelDatabase) -> None:
        with pytest.raises(LabelError, match=r"of a dataset 'fotos'; of 1, such as 'photos'"):
            filled.search("fotos")
        assert filled.datasets() == ["photos"]

    def test_a_scan_sees_one_moment(self, filled: LabelDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headwater.store.labels.queries.FETCHED_AT_ONCE", 10)
        scan = filled.scan("photos")
        first = next(scan)
        filled.write("photos", human(range(200), [3] * 200))
        rest = np.concatenate([first.labels, *(part.labels for part in scan)])
        assert rest.tolist() == [sample % 4 for sample in range(200)]

    def test_the_log(self, filled: LabelDatabase) -> None:
        entries = filled.log("photos")
        assert [(e.kind, e.wrote) for e in entries] == [
            ("write", 40), ("write", 29), ("write", 133), ("write", 67),
        ]  # fmt: skip
        assert [e.number for e in filled.log(before=entries[0].number, limit=2)] == [
            e.number for e in entries[1:3]
        ]
        assert len(filled.log()) == 6


class TestColumns:
    """What a write says of its rows arrives, whether it is one value for all of them or not."""

    GIVEN: ClassVar[dict[str, dict[str, Any]]] = {
        "one of each": {"source": Source.MODEL, "scores": 0.25, "margins": 0.5, "times": 77},
        "each another": {
            "source": Source.MODEL,
            "scores": [0.1, np.nan, 0.3],
            "margins": [1.0, 2.0, np.nan],
            "times": [1, 2, 3],
        },
        "nothing": {"source": Source.HUMAN},
        "some of a model": {
            "source": [Source.MODEL, Source.HUMAN, Source.IMPORT],
            "scores": [0.5, np.nan, np.nan],
            "margins": np.float32(1e-30),
            "times": (1 << 45, 2, 3),
        },
    }

    @pytest.mark.parametrize("name", GIVEN)
    def test_what_was_written_is_read(self, db: LabelDatabase, name: str) -> None:
        given = self.GIVEN[name]
        model = np.where(np.asarray(given["source"]) == Source.MODEL, db.model(digest(1)).number, 0)
        rows = LabelRows.of([(1 << 63) - 1, 0, 7], [3, 0, 3], **given, model=model)
        db.write("photos", rows)
        found, expected = db.get("photos", rows.samples), rows.take(np.argsort(rows.samples))
        for column in ("samples", "labels", "scores", "margins", "sources", "models"):
            np.testing.assert_array_equal(getattr(found, column), getattr(expected, column), column)
        assert (found.times == expected.times).all() if "times" in given else (found.times > 0).all()

    def test_after_a_write_that_was_taken_back(self, kind: Kind) -> None:
        """The tables that it has made in passing are not there any more."""
        with closing(kind.open()) as database:
            database.adopt("photos", NAMES)
            with suppress(KeyboardInterrupt), database._writing() as connection:
                writing.stage_rows(connection, human([1], [0]), now=1)
                raise KeyboardInterrupt
            database.write("photos", human([2], [1]))
            assert in_force(database) == {2: (1, "human")}

    def test_classes_that_somebody_else_changes_are_seen(self, kind: Kind) -> None:
        place = kind.make()
        with closing(open_labels(place)) as one, closing(open_labels(place)) as other:
            numbers = one.adopt("photos", ["ant", "bee"])
            assert one.classes("photos").names == ("ant", "bee")
            other.adopt("photos", ["cat"])
            assert one.classes("photos").names == ("ant", "bee", "cat")
            other.merge("photos", "bee", "ant")
            assert one.classes("photos").roots.tolist() == [0, 0, 2]
            other.undo("photos")
            assert one.classes("photos").roots.tolist() == [0, 1, 2]
            other.rename("photos", "ant", "wasp")
            assert one.adopt("photos", ["ant", "wasp", "bee"]).tolist() == [0, 0, 1]
            assert one.classes("photos").former == {"ant": 0}
            one.adopt("others", ["bee", "ant"])
            assert one.classes("others").names == ("bee", "ant")
            assert numbers.tolist() == [0, 1]


class TestPages:
    def pages(self, db: LabelDatabase, query: LabelQuery, **options: Any) -> Iterator[LabelPage]:
        following: int | None = -1
        while following is not None:
            page = db.page("photos", query, after=following, **options)
            following = page.next
            yield page

    @pytest.mark.parametrize("name", ["all", "classes", "exactly", "human"])
    @pytest.mark.parametrize("looked_at", [4, 200])
    def test_all_that_fits_however_little_is_gone_through_for_a_page(
        self, filled: LabelDatabase, name: str, looked_at: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("headwater.store.labels.queries.LOOKED_AT", looked_at)
        pages = list(self.pages(filled, QUERIES[name], limit=7))
        assert max(len(page.rows) for page in pages) <= min(7, looked_at)
        assert [s for page in pages for s in page.rows.samples.tolist()] == wanted(filled, QUERIES[name])

    def test_a_page_is_what_a_search_finds(self, filled: LabelDatabase) -> None:
        found = filled.page("photos", QUERIES["sources"], after=50, limit=9)
        rows = filled.search("photos", QUERIES["sources"], after=50, limit=9)
        for one, other in zip(found.rows.columns(), rows.columns(), strict=True):
            np.testing.assert_array_equal(one, other)
        assert (found.next, found.opinions) == (rows.samples[-1], None)

    def test_what_its_numbers_mean(self, filled: LabelDatabase) -> None:
        filled.merge("photos", "dog", "cat")
        page = filled.page("photos")
        assert page.glossary.names == NAMES
        assert page.glossary.versions == {v.number: v.digest for v in filled.models()}
        assert page.glossary.digest == filled.glossary("photos").digest
        assert set(page.rows.labels.tolist()) == {0, 1, 2}, "dogs are cats"

    def test_opinions_are_those_of_its_rows(self, filled: LabelDatabase) -> None:
        page = filled.page("photos", QUERIES["human"], limit=4, opinions=True)
        assert page.rows.samples.tolist() == [0, 5, 10, 15]
        assert page.opinions is not None
        expected = filled.get("photos", page.rows.samples, opinions=True)
        assert page.opinions.samples.tolist() == expected.samples.tolist()
        assert len(expected)

    def test_the_state_is_another_after_each_write(self, filled: LabelDatabase) -> None:
        """Also after one that goes on with a revision that is there."""
        seen = [filled.page("photos").state]
        assert filled.page("photos", limit=1).state == seen[0]
        model = announce(filled, 3)
        for samples in (range(10), range(10, 20)):
            seen.append(filled.page("photos").state)
            rows = predicted(samples, [1] * 10, model)
            filled.write("photos", rows, key="job", chunk=samples[0])
        seen.append(filled.page("photos").state)
        filled.undo("photos")
        seen.append(filled.page("photos").state)
        assert len(set(seen)) == 5

    def test_an_unknown_dataset(self, filled: LabelDatabase) -> None:
        for call in (filled.page, filled.glossary):
            with pytest.raises(LabelError, match="of a dataset 'fotos'"):
                call("fotos")


class TestStale:
    def pages(self, db: LabelDatabase, version: int, **options: Any) -> list[int]:
        found: list[int] = []
        while True:
            page = db.stale("photos", digest(version), after=found[-1] if found else -1, limit=9, **options)
            found += page.tolist()
            if len(page) < 9:
                return found

    def test_rows_of_older_models_in_order(self, filled: LabelDatabase) -> None:
        by_first = wanted(filled, LabelQuery(model=digest(1)))
        assert self.pages(filled, 2) == by_first
        assert self.pages(filled, 1) == []
        announce(filled, 3)
        assert self.pages(filled, 3) == wanted(filled, LabelQuery(sources=(Source.MODEL,)))

    def test_given_labels_of_which_the_model_has_not_spoken(self, filled: LabelDatabase) -> None:
        announce(filled, 3)
        given = wanted(filled, LabelQuery(sources=(Source.HUMAN, Source.IMPORT)))
        everything = sorted([*given, *wanted(filled, LabelQuery(sources=(Source.MODEL,)))])
        assert self.pages(filled, 3, of=list(Source)) == everything == list(range(200))
        assert self.pages(filled, 3, of=[Source.HUMAN, Source.IMPORT]) == given
        model = filled.model(digest(3)).number
        filled.write("photos", predicted(given[:50], [0] * 50, model))
        assert self.pages(filled, 3, of=[Source.HUMAN, Source.IMPORT]) == given[50:]

    def test_samples_without_a_row_are_pending_too(self, filled: LabelDatabase) -> None:
        asked = np.arange(190, 230)[::-1]
        old = [s for s in wanted(filled, LabelQuery(model=digest(1))) if s >= 190]
        new = list(range(200, 230))
        assert filled.pending("photos", digest(2), asked).tolist() == old + new
        assert filled.pending("photos", digest(2), asked, of=()).tolist() == new
        assert filled.pending("photos", digest(1), asked).tolist() == new
        everything = filled.pending("photos", digest(2), asked, of=list(Source)).tolist()
        assert set(everything) > set(old + new)

    @pytest.mark.parametrize(
        "of", [(), (Source.MODEL,), (Source.MODEL, Source.IMPORT), tuple(Source)], ids=len
    )
    @pytest.mark.parametrize("version", [1, 2, 3])
    def test_what_is_recalled_of_what_is_pending(
        self, filled: LabelDatabase, version: int, of: tuple[Source, ...]
    ) -> None:
        """Against rows and opinions looked up one by one."""
        announce(filled, 3)
        filled.write(
            "photos", predicted(range(0, 200, 10), [3] * 20, filled.model(digest(2)).number, scores=np.nan)
        )
        filled.merge("photos", "dog", "cat")
        asked = np.arange(150, 230)[::-1]
        found = filled.recall("photos", digest(version), np.concatenate([asked, asked[:5]]), of=of)
        assert found.pending.tolist() == filled.pending("photos", digest(version), asked, of=of).tolist()
        number = filled.model(digest(version)).number
        pending, said = [], {}
        for sample in sorted(asked.tolist()):
            now, opinion = (filled.get("photos", [sample], opinions=layer) for layer in (False, True))
            source = Source(now.sources[0]) if len(now) else None
            row = now if source is Source.MODEL else opinion if source in of else opinion.take(slice(0))
            heard = int(row.models[0]) if len(row) else 0
            if source is None or (source in of and heard < number):
                pending.append(sample)
                said |= {sample: row} if heard else {}
        assert found.pending.tolist() == pending
        assert found.said.samples.tolist() == list(said)
        for name in ("labels", "scores", "margins", "sources", "models", "times"):
            expected = [getattr(row, name)[0] for row in said.values()]
            np.testing.assert_array_equal(getattr(found.said, name), expected, name)
        assert of != tuple(Source) or version < 3 or np.isnan(found.said.scores).any()

    def test_nothing_is_recalled_of_nobody(self, db: LabelDatabase) -> None:
        found = db.recall("photos", digest(1), [])
        assert (len(found.pending), len(found.said)) == (0, 0)
        found = db.recall("photos", digest(1), [5, 3])
        assert (found.pending.tolist(), len(found.said)) == ([3, 5], 0)

    def test_a_relabelling_ends_and_doubles_nothing(self, filled: LabelDatabase) -> None:
        model, before = announce(filled, 3), len(remembered(filled)["history"])
        stale = self.pages(filled, 3)
        for chunk, samples in enumerate(np.array_split(stale, 5)):
            for _ in range(2):
                filled.write("photos", predicted(samples, [1] * len(samples), model), key="j", chunk=chunk)
        assert self.pages(filled, 3) == []
        assert len(remembered(filled)["history"]) == before + len(stale)


class TestReviewing:
    def test_the_smallest_margin_first(self, filled: LabelDatabase) -> None:
        found, after = [], None
        while True:
            page = filled.review("photos", after=after, limit=11)
            found += list(zip(page.rows.margins.tolist(), page.rows.samples.tolist(), strict=True))
            after = page.next
            if after is None:
                break
        assert found == sorted(found)
        assert sorted(s for _, s in found) == wanted(filled, LabelQuery(sources=(Source.MODEL,)))

    def test_equal_margins_are_paged_by_id(self, db: LabelDatabase) -> None:
        db.write("photos", predicted(range(10), [0] * 10, db.model(digest(1)).number, margins=0.1))
        first = db.review("photos", limit=4)
        second = db.review("photos", after=first.next, limit=4)
        assert [*first.rows.samples, *second.rows.samples] == list(range(8))

    def test_a_model_against_humans_and_imports_the_surest_first(self, db: LabelDatabase) -> None:
        db.write("photos", human([1, 2, 3], [0, 0, 0]))
        db.write("photos", imported([4, 5], [1, 1]))
        sure = [0.5, 0.7, 0.9, 0.7, 0.3]
        model = db.model(digest(2)).number
        db.write("photos", predicted([1, 2, 3, 4, 5], [0, 1, 2, 0, 1], model, margins=sure))
        found = db.review("photos", "disagreement", limit=2)
        assert found.rows.samples.tolist() == [3, 2]
        assert found.others is not None
        assert found.others.labels.tolist() == [2, 1]
        assert found.rows.labels.tolist() == [0, 0]
        rest = db.review("photos", "disagreement", after=found.next, limit=2)
        assert (rest.rows.samples.tolist(), rest.next) == ([4], None)
        db.merge("photos", "cat", "ant")
        assert db.review("photos", "disagreement").rows.samples.tolist() == [2, 4]

    def test_the_last_two_models(self, db: LabelDatabase) -> None:
        first, second = (db.model(digest(number)).number for number in (1, 2))
        db.write("photos", predicted(range(6), [0, 0, 0, 1, 1, 1], first))
        with pytest.raises(LabelError, match="1 model versions have labelled"):
            db.review("photos", "models")
        db.write("photos", predicted(range(6), [0, 1, 0, 1, 2, 1], second))
        found = db.review("photos", "models", limit=1)
        assert found.others is not None
        assert (found.rows.samples.tolist(), found.others.labels.tolist()) == ([1], [0])
        rest = db.review("photos", "models", after=found.next, limit=5)
        assert rest.rows.samples.tolist() == [4]

    def test_no_such_queue(self, db: LabelDatabase) -> None:
        with pytest.raises(WrongUse, match="known: margin, disagreement, models"):
            db.review("photos", "luck")

    def test_a_diff_counts_and_lists_what_two_versions_said(self, db: LabelDatabase) -> None:
        first, second = (db.model(digest(number)).number for number in (1, 2))
        db.write("photos", human([5], [3]))
        db.write("photos", predicted(range(6), [0, 0, 0, 1, 1, 1], first))
        db.write("photos", predicted(range(1, 7), [1, 0, 1, 2, 1, 0], second))
        found = db.diff("photos", digest(1), digest(2))
        assert dict(found.matrix) == {
            ("ant", "ant"): 1, ("ant", "bee"): 1, ("bee", "bee"): 2, ("bee", "cat"): 1,
        }  # fmt: skip
        assert (found.samples, found.changed) == (5, 2)
        ((old, new),) = db.diff_rows("photos", digest(1), digest(2))
        assert old.samples.tolist() == new.samples.tolist() == [1, 4]
        assert (old.labels.tolist(), new.labels.tolist()) == ([0, 1], [1, 2])
        back = db.diff("photos", digest(2), digest(1))
        assert back.matrix["cat", "bee"] == 1
        db.merge("photos", "cat", "bee")
        assert db.diff("photos", digest(1), digest(2)).changed == 1

    def test_a_diff_remembers_what_was_undone(self, db: LabelDatabase) -> None:
        first, second = (db.model(digest(number)).number for number in (1, 2))
        db.write("photos", predicted([1, 2], [0, 0], first))
        db.write("photos", predicted([1, 2], [0, 1], second))
        before = db.diff("photos", digest(1), digest(2))
        db.undo("photos")
        assert db.diff("photos", digest(1), digest(2)) == before


def rows_of(db: LabelDatabase, sample: int) -> list[tuple[Any, ...]]:
    """All that is and was said of a sample; the third or fourth column is its id."""
    there, before = contents(db)["labels"], remembered(db)["history"]
    return [row for row in there if row[2] == sample] + [row for row in before if row[3] == sample]


class TestForgetting:
    def test_rows_and_their_history_are_gone_and_others_stay(self, db: LabelDatabase) -> None:
        for who, label in (("1", 0), ("2", 1), ("human", 2)):
            put(db, who, label, sample=7)
            put(db, who, label, sample=8)
        others = rows_of(db, 8)
        assert db.count_rows("photos", [7]) == len(rows_of(db, 7)) == db.forget("photos", [7]) > 2
        assert db.count_rows("photos", [7]) == len(rows_of(db, 7)) == db.forget("photos", [7]) == 0
        assert rows_of(db, 8) == others
        assert in_force(db) == {8: (2, "human")}

    def test_another_dataset_keeps_its_rows(self, db: LabelDatabase) -> None:
        put(db, "human", 1)
        db.adopt("others", NAMES)
        db.write("others", human([7], [2]))
        assert db.forget("others", [7]) > 0
        assert db.count_rows("photos", [7]) > 0
        assert db.forget("unheard of", [7]) == db.count_rows("unheard of", [7]) == 0

    def test_more_samples_than_one_statement_takes(self, db: LabelDatabase) -> None:
        ids = list(range(1, 1300))
        db.write("photos", human(ids, [1] * len(ids)))
        assert db.forget("photos", ids[:-1]) >= 1298
        assert db.count_rows("photos", ids) == db.count_rows("photos", ids[-1:]) > 0

    def test_an_undo_passes_over_what_is_forgotten(self, db: LabelDatabase) -> None:
        db.write("photos", human([7, 8], [1, 1]))
        db.write("photos", human([7, 8], [2, 2]))
        db.forget("photos", [7])
        db.undo("photos")
        assert in_force(db) == {8: (1, "human")}

    def test_labels_are_counted_by_who_gave_them(self, db: LabelDatabase) -> None:
        put(db, "1", 0, sample=7)
        put(db, "2", 0, sample=8)
        put(db, "2", 0, sample=9)
        assert db.count_by("photos", [digest(2)]) == 2
        assert db.count_by("photos", [digest(1), digest(2)]) == 3
        assert db.count_by("photos", []) == db.count_by("unheard of", [digest(1)]) == 0


def test_no_page_of_sqlite_holds_what_is_forgotten(tmp_path: Path, label_templates: Templates) -> None:
    db = label_templates.sqlite_kind(tmp_path).open()
    with closing(db):
        db.adopt("photos", NAMES)
        sample = 0x1234_5678_9ABC_DEF0
        for label in (0, 1, 2, 3):
            db.write("photos", human([*range(1, 400), sample], [label] * 400))
        needle = sample.to_bytes(8, "big")
        assert needle in b"".join(path.read_bytes() for path in tmp_path.iterdir())
        db.forget("photos", [sample])
        assert needle not in b"".join(path.read_bytes() for path in tmp_path.iterdir())
