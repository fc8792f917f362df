"""What is known of samples: columns that grow from reports, rows that ranks exchange, a file of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headwater.data.index import Index, write_batch
from headwater.errors import StateMismatch, WrongUse
from headwater.measure.signalfile import as_batch, read_signals
from headwater.measure.signals import COLUMNS, WINDOW, Signals


def make_index(count: int = 12, size: int = 100) -> Index:
    return Index.build([f"{number:03d}.jpg" for number in range(count)], np.full(count, size))


@pytest.fixture
def index() -> Index:
    return make_index()


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def test_columns_take_no_memory_until_something_is_told(index: Index) -> None:
    signals = Signals(index)
    assert signals.nbytes == 0
    signals.record(index.ids[:1], floats(1), epoch=0)
    assert not signals.has("margin")
    assert signals.nbytes < len(index) * 40
    with pytest.raises(AttributeError, match="no column 'los'"):
        _ = signals.los


def test_the_last_loss_a_running_mean_and_the_largest_of_a_few(index: Index) -> None:
    signals = Signals(index)
    told = [4.0, 2.0, 1.0, 1.0, 1.0, 0.5, 0.25]
    for epoch, loss in enumerate(told):
        signals.record(index.ids[3:4], floats(loss), epoch=epoch, model=10 * epoch)
    assert signals.loss[3] == 0.25
    expected = told[0]
    for loss in told[1:]:
        expected = 0.7 * expected + 0.3 * loss
    assert signals.smoothed[3] == pytest.approx(expected, rel=1e-5)
    assert signals.peak[3] == max(told[-WINDOW:])
    assert signals.seen[3] == len(told)
    assert (signals.epoch[3], signals.model[3]) == (6, 60)
    assert np.isnan(np.delete(signals.loss, 3)).all()
    assert np.isnan(np.delete(signals.peak, 3)).all()
    assert (np.delete(signals.epoch, 3) == -1).all()


def test_the_deviation_is_that_of_the_history(index: Index) -> None:
    signals = Signals(index)
    told = floats(0.1, 0.5, 0.7, 0.2)
    assert np.isnan(signals.deviation).all()
    for epoch, chance in enumerate(told):
        signals.record(index.ids[:1], floats(1), epoch=epoch, probability=floats(chance))
        if epoch == 0:
            assert np.isnan(signals.deviation[0])
    assert signals.deviation[0] == pytest.approx(float(np.std(told, ddof=1)), rel=1e-5)
    assert np.isnan(signals.deviation[1:]).all()


def test_reports_without_a_probability_leave_its_history_alone(index: Index) -> None:
    signals = Signals(index)
    signals.record(index.ids[:1], floats(1), epoch=0)  # without logits
    for epoch, chance in enumerate((0.25, np.nan, 0.75), start=1):
        signals.record(index.ids[:2], floats(1, 1), epoch=epoch, probability=floats(chance, np.nan))
    assert signals.probability_mean[0] == 0.5
    assert signals.deviation[0] == pytest.approx(float(np.std([0.25, 0.75], ddof=1)))
    assert np.isnan(signals.deviation[1]), "it was never told"
    assert signals.probability_count[:3].tolist() == [2, 0, 0]
    assert signals.seen[0] == 4


def test_what_logits_told_has_stamps_of_its_own(index: Index) -> None:
    signals, chance = Signals(index), floats(0.5)
    signals.record(index.ids[:1], floats(1), epoch=2, model=20, probability=chance, margin=chance)
    signals.record(index.ids[:1], floats(3), epoch=4, model=40)
    assert (signals.loss[0], signals.epoch[0], signals.model[0]) == (3, 4, 40)
    assert (signals.margin[0], signals.probability[0]) == (0.5, 0.5), "what is known stays"
    assert (signals.logits_epoch[0], signals.logits_model[0]) == (2, 20)
    assert (signals.logits_epoch[1:] == -1).all()


def test_a_model_without_a_number_has_that_of_its_epoch(index: Index) -> None:
    signals = Signals(index)
    signals.record(index.ids[:2], floats(1, 1), epoch=3, margin=floats(0, 0))
    assert signals.model[:3].tolist() == [3, 3, -1]
    assert signals.logits_model[:3].tolist() == [3, 3, -1]


def test_versions_are_numbered_as_they_come_and_after_a_file_too(index: Index, tmp_path: Path) -> None:
    signals = Signals(index)
    assert [signals.number_model(digest) for digest in ("aa", "bb", "aa")] == [0, 1, 0]
    batch, _ = as_batch(signals, dataset=index.version)
    write_batch(tmp_path / "table.arrow", batch)
    again = read_signals(tmp_path / "table.arrow", index)
    assert [again.number_model(digest) for digest in ("bb", "cc")] == [1, 2]


def test_a_sample_that_comes_twice_in_a_batch_counts_once(index: Index) -> None:
    signals = Signals(index)
    signals.record(index.ids[[5, 1, 5]], floats(9, 2, 3), epoch=0)
    assert signals.loss[[1, 5]].tolist() == [2, 3]
    assert signals.seen[[1, 5]].tolist() == [1, 1]


def test_what_is_no_loss_per_sample_is_refused_and_changes_nothing(index: Index) -> None:
    signals = Signals(index)
    with pytest.raises(WrongUse, match="reduction='none'"):
        signals.record(index.ids[:3], floats(1), epoch=0)
    with pytest.raises(WrongUse, match="no sample with id"):
        signals.record(np.array([1]), floats(1), epoch=0)
    assert not signals.has("seen")


def test_a_loss_that_is_no_number_is_unknown(index: Index) -> None:
    signals = Signals(index)
    signals.record(index.ids[:2], floats(np.nan, 1), epoch=0)
    signals.record(index.ids[:2], floats(3, np.nan), epoch=1)
    assert signals.smoothed[0] == 3
    assert np.isnan(signals.loss[1])
    assert signals.peak[:2].tolist() == [3, 1]


def test_an_infinite_loss_does_not_stay(index: Index) -> None:
    signals = Signals(index)
    for epoch, loss in enumerate((2, np.inf, 4, 4)):
        signals.record(index.ids[:1], floats(loss), epoch=epoch)
    assert signals.smoothed[0] == 4


def test_loads_are_running_means_with_the_epoch_of_the_last(index: Index) -> None:
    signals = Signals(index)
    at = np.array([2])
    signals.note_load(at, seconds=floats(1), bytes=floats(100), epoch=0)
    signals.note_load(at, seconds=floats(0), bytes=floats(0), epoch=4)
    assert signals.seconds[2] == pytest.approx(0.7)
    assert signals.bytes[2] == pytest.approx(70)
    assert signals.read[2] == 4


def test_ranks_that_tell_each_other_what_they_touched_know_the_same(index: Index) -> None:
    first, second = Signals(index), Signals(index)
    first.record(index.ids[:4], floats(1, 2, 3, 4), epoch=0, probability=floats(0.1, 0.2, 0.3, 0.4))
    second.record(index.ids[6:9], floats(5, 6, 7), epoch=0, vectors=np.ones((3, 2), np.float32))
    rows = [first.take_touched(), second.take_touched()]
    for table in (first, second):
        table.put(rows)
    batches = [as_batch(table, dataset="")[1] for table in (first, second)]
    assert batches[0] == batches[1]
    assert second.loss[[0, 3, 6]].tolist() == [1, 4, 5]
    assert not len(first.take_touched().positions)


def test_what_other_ranks_are_not_told_yet_is_told_after_a_resume(index: Index, tmp_path: Path) -> None:
    table = Signals(index)
    table.record(index.ids[:4], floats(1, 2, 3, 4), epoch=0)
    table.take_touched()
    table.record(index.ids[2:3], floats(5), epoch=1)
    write_batch(tmp_path / "table", as_batch(table, dataset=index.version)[0])
    found = read_signals(tmp_path / "table", index)
    found.record(index.ids[6:7], floats(6), epoch=1)
    rows = found.take_touched()
    assert rows.positions.tolist() == [2, 6]
    assert rows.columns["loss"].tolist() == [5, 6]


def filled(index: Index) -> Signals:
    signals = Signals(index)
    vectors = np.arange(9, dtype=np.float32).reshape(3, 3)
    signals.record(index.ids[2:5], floats(1, 2, 3), epoch=1, margin=floats(0, 1, 0), vectors=vectors)
    signals.column("bucket")[7] = 1
    signals.notes["selection"] = {"epoch": 1}
    return signals


def test_a_file_holds_every_column_and_the_notes(index: Index, tmp_path: Path) -> None:
    signals = filled(index)
    batch, digest = as_batch(signals, dataset=index.version)
    write_batch(tmp_path / "table", batch)
    found = read_signals(tmp_path / "table", index)
    assert set(found.columns()) == set(signals.columns())
    for name, values in signals.columns().items():
        assert np.array_equal(found.column(name), values, equal_nan=True), name
        assert values.dtype == COLUMNS[name].dtype
    assert found.notes == signals.notes
    assert as_batch(found, dataset=index.version)[1] == digest
    found.record(index.ids[2:3], floats(5), epoch=2)  # columns that were read can be written to
    assert as_batch(found, dataset=index.version)[1] != digest


def test_another_run_begins_with_what_is_known_of_samples_and_nothing_else(index: Index) -> None:
    signals = filled(index)
    signals.note_load(np.array([2]), seconds=floats(1), bytes=floats(100), epoch=7)
    signals.renew()
    assert signals.loss[2:5].tolist() == [1, 2, 3]
    assert signals.bytes[2] == 100
    assert not any(signals.has(name) for name in ("epoch", "model", "read", "bucket", "weight"))
    assert not signals.notes
    assert not len(signals.take_touched().positions)


def test_a_file_of_other_data_or_that_is_damaged_is_refused(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "table"
    write_batch(path, as_batch(filled(index), dataset=index.version)[0])
    with pytest.raises(StateMismatch, match="dataset version"):
        read_signals(path, make_index(size=101))
    data = bytearray(path.read_bytes())
    at = data.find(floats(1, 2, 3).tobytes())
    data[at] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(StateMismatch, match="digest"):
        read_signals(path, index)
    path.write_bytes(bytes(data[: len(data) // 2]))
    with pytest.raises(StateMismatch, match="cannot be used"):
        read_signals(path, index)
