"""Workers give what the chain gives in this process, and survive whatever kills one of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from headwater import transforms as T
from headwater.data import codecs
from headwater.data.image import Limits
from headwater.data.pipeline import Pipeline
from headwater.data.steps.base import Image, Row, Step
from headwater.data.steps.decode import Decode
from headwater.engine.chain import Chain
from headwater.errors import WrongUse
from headwater.store.fingerprints import thumbnail_steps
from headwater.store.server.workers import Done, Work, Workers, WorkersBusy, WorkersFailed
from headwater.store.wire.catalogue import digests
from pictures import jpeg, photo

LIMITS = Limits(pixels=100_000)
RESIZED = T.Compose([T.RandomResizedCrop(24), T.RandomHorizontalFlip()]).samplewise
PIPELINE = T.Compose([T.RandomCrop(24), T.RandomHorizontalFlip()]).samplewise  # needs no torch
THUMBNAIL = thumbnail_steps()
FATAL_HEIGHT = 29


@dataclass(frozen=True)
class Mine(Step):
    """Known to this side by its name only; what it does is in `PROGRAM`."""

    name: ClassVar[str] = "mine"
    exact: ClassVar[bool] = True
    marker: str = ""
    signal: int = signal.SIGSEGV

    def apply(self, image: Image, row: Row) -> Image:
        raise AssertionError("only a worker runs it")


PROGRAM = f"""
import os, sys
from dataclasses import dataclass
from typing import ClassVar
from headwater.data import steps
from headwater.store.server import frames, worker

@dataclass(frozen=True)
class Mine(steps.Step):
    name: ClassVar[str] = "mine"
    exact: ClassVar[bool] = True
    marker: str = ""
    signal: int = 0

    def apply(self, image, row):
        if image.shape[0] == {FATAL_HEIGHT} and not (self.marker and os.path.exists(self.marker)):
            if self.marker:
                open(self.marker, "w").close()
            os.kill(os.getpid(), self.signal)
        return image

known = steps.catalogue
steps.catalogue = lambda: {{**known(), "mine": Mine}}
worker.digests = dict
"""


@dataclass
class Lot:
    ids: Any
    epoch: int
    images: dict[int, Any] = field(default_factory=dict)
    sizes: dict[int, tuple[int, int]] = field(default_factory=dict)
    rows: dict[int, Sequence[Row]] = field(default_factory=dict)

    def emit(self, place: int, image: Image) -> None:
        self.images[place] = image

    def fail(self, place: int, stage: str, error: Exception) -> None:
        return None

    def note(self, place: int, header: Any, size: tuple[int, int], rows: Sequence[Row]) -> None:
        self.sizes[place], self.rows[place] = size, rows


@pytest.fixture(scope="module")
def shared() -> Iterator[Workers]:
    """Two healthy workers; a test that harms one makes its own."""
    workers = Workers(2, limits=LIMITS, arena_bytes=8 << 20)
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryFile() as file:
        for name in ("HEADWATER_TOKEN", "AWS_SECRET_ACCESS_KEY", "API_KEY"):
            patch.setenv(name, "do-not-tell")
        os.set_inheritable(file.fileno(), True)
        workers.start()
    yield workers
    assert not workers.restarts
    workers.close()


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Workers]]:
    """Workers of a program of our own: `PROGRAM`, more lines, and the real main."""
    made = []

    def start(more: str = "", **options: Any) -> Workers:
        path = tmp_path / "program.py"
        path.write_text(f"{PROGRAM}\n{more}\nworker.main()\n")
        options = {"limits": LIMITS, "arena_bytes": 8 << 20} | options
        workers = Workers(1, command=(sys.executable, str(path)), **options)
        made.append(workers)
        return workers

    yield start
    for workers in made:
        workers.close()


def photos(count: int) -> list[bytes]:
    return [jpeg(photo(40 + 3 * number, 90 - 2 * (number % 30), seed=number)) for number in range(count)]


def work(pipeline: Pipeline, count: int, cut: int | None = None, **changes: Any) -> Work:
    ids = np.arange(count, dtype=np.int64) * 1009 + 7
    cuts = np.full(count, cut or len(pipeline), np.uint8)
    options = {"seed": 5, "epoch": 3, "ids": ids, "cuts": cuts, "codecs": ["none"] * count} | changes
    return Work(pipeline, **options)


def referee(work: Work, files: Sequence[bytes], cut: int) -> Lot:
    lot = Lot(work.ids, work.epoch)
    Chain(work.pipeline.cut(cut)[0], work.seed).run(files, lot)
    return lot


def pixels(done: Done, place: int, codec: str = "none") -> Image:
    payload = done.payloads[place]
    assert payload is not None
    return codecs.decode(codec, payload, tuple(done.shapes[place].tolist()))


def assert_all_made(done: Done, asked: Work, files: Sequence[bytes], *, without: Sequence[int] = ()) -> None:
    images = referee(asked, files, len(asked.pipeline)).images
    for place in range(len(files)):
        if place in without:
            assert done.payloads[place] is None
        else:
            assert np.array_equal(pixels(done, place), images[place])


def mined(marker: str = "", signal: int = signal.SIGSEGV) -> Pipeline:
    """The usual steps with a mine behind decode that a picture of the fatal height sets off."""
    decode, *rest = PIPELINE.steps
    return Pipeline((decode, Mine(marker, signal), *rest))


def mined_files(count: int, *fatal: int) -> list[bytes]:
    files = photos(count)
    for place in fatal:
        files[place] = jpeg(photo(FATAL_HEIGHT, 50, seed=place))
    return files


def survivors(done: Done) -> list[int]:
    return [place for place, payload in enumerate(done.payloads) if payload is not None]


def test_every_cut_and_codec_gives_what_the_chain_gives_here(shared: Workers) -> None:
    files = photos(12)
    cuts = np.arange(12) % 4 + 1
    names = [("none", "zstd", "none")[place % 3] for place in range(12)]
    done = shared.run(work(RESIZED, 12, cuts=cuts.astype(np.uint8), codecs=names), files)
    for cut in (1, 2, 3, 4):
        lot = referee(work(RESIZED, 12), files, cut)
        for place in np.flatnonzero(cuts == cut).tolist():
            assert np.array_equal(pixels(done, place, names[place]), lot.images[place])
            assert tuple(done.source_sizes[place]) == lot.sizes[place]
            flat = [number for row in lot.rows[place] for number in row]
            assert np.frombuffer(done.drawn[place], "<f8").tolist() == flat
    assert done.cpu_seconds > 0
    assert not done.quarantined


def test_a_suffix_of_a_chain_draws_as_in_the_whole(shared: Workers) -> None:
    moved = Pipeline(PIPELINE.steps, offset=2)
    files = photos(6)
    done = shared.run(work(moved, 6), files)
    assert_all_made(done, work(moved, 6), files)
    assert any(
        not np.array_equal(pixels(done, place), pixels(shared.run(work(PIPELINE, 6), files), place))
        for place in range(6)
    )


def thumbnails(files: Sequence[bytes]) -> dict[int, Image]:
    lot = Lot(np.arange(len(files)), 0)
    Chain(THUMBNAIL, 0).run(files, lot)
    return lot.images


def test_one_decode_makes_several_things(shared: Workers) -> None:
    files = photos(12)
    files[3] = b"no picture"
    asked = work(PIPELINE, 12, also=(THUMBNAIL, Pipeline(THUMBNAIL.steps[:1])))
    done = shared.run(asked, files)
    assert_all_made(done, asked, files, without=[3])
    small, whole = done.further
    wanted = thumbnails(files)
    for place in range(12):
        if place == 3:
            assert small[place] is whole[place] is None
            continue
        assert np.array_equal(small[place], wanted[place])
        assert whole[place].shape[:2] == tuple(done.source_sizes[place])
    assert shared.run(work(PIPELINE, 2), photos(2)).further == []


def test_what_is_also_made_waits_for_room_with_its_sample(make: Callable[..., Workers]) -> None:
    workers = make(arena_bytes=90_000)
    files = photos(30)
    asked = work(PIPELINE, 30, also=(THUMBNAIL,))
    done = workers.run(asked, files)
    assert_all_made(done, asked, files)
    wanted = thumbnails(files)
    assert all(np.array_equal(done.further[0][place], wanted[place]) for place in range(30))


def test_what_decodes_otherwise_shares_no_decode() -> None:
    grey = Pipeline((Decode("L"), *THUMBNAIL.steps[1:]))
    with pytest.raises(WrongUse, match="do not begin as"):
        work(PIPELINE, 2, also=(grey,))


def test_any_buffer_is_a_file(shared: Workers) -> None:
    import pyarrow as pa

    files = photos(3)
    kinds = [pa.py_buffer(files[0]), memoryview(files[1]), np.frombuffer(files[2], np.uint8)]
    assert_all_made(shared.run(work(PIPELINE, 3), kinds), work(PIPELINE, 3), files)


def test_what_cannot_be_made_is_left_to_the_trainer(shared: Workers) -> None:
    files = photos(8)
    files[1], files[4], files[6] = b"", files[4][:300], b"no image"
    done = shared.run(work(PIPELINE, 8), files)
    assert_all_made(done, work(PIPELINE, 8), photos(8), without=(1, 4, 6))
    assert not done.quarantined
    assert not done.source_sizes[1].any()


def test_limits_hold_in_the_worker(shared: Workers) -> None:
    files = [jpeg(photo(30, 30)), jpeg(photo(400, 300))]
    assert survivors(shared.run(work(PIPELINE, 2), files)) == [0]


def test_nothing_to_do_starts_nothing() -> None:
    workers = Workers(1, limits=LIMITS)
    done = workers.run(work(PIPELINE, 0), [])
    assert (done.payloads, done.shapes.shape, workers.pids) == ([], (0, 3), [])
    workers.close()


def test_a_chunk_larger_than_the_arena_is_run_in_parts(make: Callable[..., Workers]) -> None:
    workers = make(arena_bytes=60_000)
    files = photos(40)
    images = referee(work(PIPELINE, 40), files, 1).images
    assert sum(map(len, files)) > 120_000
    assert sum(image.size for image in images.values()) > 400_000
    done = workers.run(work(PIPELINE, 40, cut=1), files)
    assert all(np.array_equal(pixels(done, place), images[place]) for place in range(40))
    assert_all_made(workers.run(work(PIPELINE, 40), files), work(PIPELINE, 40), files)

    large_file, large_picture = jpeg(photo(300, 300), quality=95), jpeg(np.zeros((200, 200, 3), np.uint8))
    assert len(large_file) > 60_000 > len(large_picture)
    mixed = [large_file, photos(1)[0], large_picture]
    assert survivors(workers.run(work(PIPELINE, 3, cut=1), mixed)) == [1]
    assert survivors(workers.run(work(PIPELINE, 3), mixed)) == [1, 2]
    assert not workers.restarts


def test_many_threads_share_few_workers(shared: Workers) -> None:
    files = photos(9)

    def run(epoch: int) -> tuple[Work, Done]:
        asked = work(PIPELINE, 9, epoch=epoch)
        return asked, shared.run(asked, files)

    with ThreadPoolExecutor(6) as pool:
        results = list(pool.map(run, range(24)))
    assert len(shared.pids) == 2
    for asked, done in results:
        assert_all_made(done, asked, files)


def test_the_catalogue_is_that_of_the_workers(shared: Workers) -> None:
    assert shared.catalogue == digests()
    assert "decode" in shared.catalogue


def test_a_crashing_sample_is_quarantined_and_the_others_are_made(make: Callable[..., Workers]) -> None:
    workers = make()
    asked, files = work(mined(), 12, cut=2), mined_files(12, 4, 9)
    culprits = asked.ids[[4, 9]].tolist()
    done = workers.run(asked, files)
    assert sorted(done.quarantined) == culprits
    assert survivors(done) == [place for place in range(12) if place not in (4, 9)]
    assert (workers.quarantined, workers.restarts) == (frozenset(culprits), 3)
    again = workers.run(asked, files)
    assert sorted(again.quarantined) == culprits
    assert survivors(again) == survivors(done)
    assert workers.restarts == 4  # the last to die was replaced when there was work again


def test_a_mended_file_leaves_quarantine_and_so_does_a_released_one(make: Callable[..., Workers]) -> None:
    workers = make()
    asked, files = work(mined(), 3, cut=2), mined_files(3, 1)
    assert workers.run(asked, files).quarantined == [asked.ids[1]]
    assert survivors(workers.run(asked, photos(3))) == [0, 1, 2]
    workers.release([int(asked.ids[1])])
    assert not workers.quarantined
    before = workers.restarts
    assert workers.run(asked, files).quarantined == [asked.ids[1]]
    assert workers.restarts > before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_one_accident_quarantines_nobody_and_loses_nothing(
    make: Callable[..., Workers], tmp_path: Path, number: int
) -> None:
    workers = make(patience_seconds=0.4)
    asked, files = work(mined(str(tmp_path / "happened"), number), 9, cut=2), mined_files(9, 3)
    done = workers.run(asked, files)
    assert survivors(done) == list(range(9))
    assert not done.quarantined
    assert workers.restarts == 1


def test_a_worker_that_talks_nonsense_is_replaced(make: Callable[..., Workers], tmp_path: Path) -> None:
    marker = str(tmp_path / "said")
    workers = make(
        f"real = worker.send\n"
        f"def send(link, frame):\n"
        f"    if isinstance(frame, frames.Hello) or os.path.exists({marker!r}):\n"
        f"        return real(link, frame)\n"
        f"    open({marker!r}, 'w').close()\n"
        f"    link.sendall(bytes([9, 0, 0, 0]) + b'no frame.')\n"
        f"worker.send = send"
    )
    done = workers.run(work(PIPELINE, 4), photos(4))
    assert_all_made(done, work(PIPELINE, 4), photos(4))
    assert (workers.restarts, workers.quarantined) == (1, frozenset())


def test_a_library_that_kills_whoever_loads_it_blames_no_sample(make: Callable[..., Workers]) -> None:
    workers = make("worker.LIBRARIES = {'decode': ('torch',)}\nworker.torch_module = os.abort")
    with pytest.raises(WorkersFailed, match="killed by SIGABRT"):
        workers.run(work(PIPELINE, 3), photos(3))
    assert (workers.restarts, workers.quarantined) == (2, frozenset())


def test_a_library_may_take_longer_to_load_than_any_sample(make: Callable[..., Workers]) -> None:
    workers = make(
        "import time\n"
        "worker.LIBRARIES = {'decode': ('torch',)}\n"
        "worker.torch_module = lambda: time.sleep(1.5)",
        patience_seconds=0.5,
    )
    assert_all_made(workers.run(work(PIPELINE, 2), photos(2)), work(PIPELINE, 2), photos(2))
    assert not workers.restarts


def test_a_job_that_no_worker_understands_blames_no_sample(shared: Workers) -> None:
    done = shared.run(work(mined(), 3), photos(3))
    assert done.payloads == [None] * 3
    assert (shared.restarts, shared.quarantined, len(shared.pids)) == (0, frozenset(), 2)


def test_signals_to_the_whole_group_leave_workers_alone(shared: Workers) -> None:
    before = shared.pids
    for pid in before:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    assert_all_made(shared.run(work(PIPELINE, 3), photos(3)), work(PIPELINE, 3), photos(3))
    assert shared.pids == before


def test_workers_that_do_not_start_say_why_and_are_not_tried_for_every_chunk(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    program = f"import sys; open({str(starts)!r}, 'a').write('x'); sys.exit('no such library')"
    workers = Workers(1, limits=LIMITS, command=(sys.executable, "-c", program))
    for _ in range(2):
        with pytest.raises(WorkersFailed, match=r"exit code 1; no such library"):
            workers.run(work(PIPELINE, 1), photos(1))
    assert starts.read_text() == "xxx"
    workers.close()


def test_a_program_that_is_not_there_is_a_failed_start() -> None:
    workers = Workers(1, limits=LIMITS, command=("/no/such/program",))
    with pytest.raises(WorkersFailed, match="No such file"):
        workers.start()
    workers.close()


def test_a_worker_sees_no_secret_and_no_file_of_the_daemon(shared: Workers) -> None:
    for pid in shared.pids:
        seen = Path(f"/proc/{pid}/environ").read_bytes()
        assert b"do-not-tell" not in seen
        assert b"OMP_NUM_THREADS=1" in seen
        links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        assert sum(link.startswith("socket:") for link in links) == 1
        assert len({link for link in links if link.endswith("(deleted)")}) == 2  # arena, and stderr


def test_workers_die_with_the_daemon(tmp_path: Path) -> None:
    program = (
        "import signal, sys\n"
        "from headwater.data.image import Limits\n"
        "from headwater.store.server.workers import Workers\n"
        f"workers = Workers(1, limits=Limits(), command=(sys.executable, {str(tmp_path / 'worker.py')!r}))\n"
        "workers.start()\n"
        "print(*workers.pids, flush=True)\n"
        "signal.pause()\n"
    )
    (tmp_path / "worker.py").write_text(f"{PROGRAM}\nworker.main()\n")
    daemon = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert daemon.stdout is not None
    pids = [int(pid) for pid in daemon.stdout.readline().split()]
    assert len(pids) == 1
    os.kill(pids[0], signal.SIGSTOP)  # this one cannot notice that its socket was closed
    daemon.kill()
    daemon.wait()
    daemon.stdout.close()
    deadline = time.monotonic() + 20
    while any(map(is_running, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    """Neither gone nor dead and waiting for somebody to ask how."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_hung_worker_keeps_others_waiting_for_a_second_only(make: Callable[..., Workers]) -> None:
    workers = make()
    workers.start()
    (pid,) = workers.pids
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(workers.run, work(PIPELINE, 2), photos(2))
        while workers._idle.qsize():
            time.sleep(0.001)
        begin = time.monotonic()
        with pytest.raises(WorkersBusy, match="within 1 s"):
            workers.run(work(PIPELINE, 2), photos(2))
        assert time.monotonic() - begin < 5  # a worker is taken for hung after ten
        os.kill(pid, signal.SIGCONT)
        assert_all_made(first.result(20), work(PIPELINE, 2), photos(2))


def test_a_library_that_is_loaded_is_waited_for_by_all(make: Callable[..., Workers]) -> None:
    workers = make(
        "import time\n"
        "worker.LIBRARIES = {'decode': ('torch',)}\n"
        "worker.torch_module = lambda: time.sleep(1.3)",
    )
    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(workers.run, work(PIPELINE, 2), photos(2)) for _ in range(3)]:
            assert_all_made(done.result(30), work(PIPELINE, 2), photos(2))


def test_the_cpu_of_a_worker_that_dies_is_told(make: Callable[..., Workers]) -> None:
    workers = make(
        "import time\n"
        "kill = os.kill\n"
        "def burn(pid, number):\n"
        "    end = time.process_time() + 0.3\n"
        "    while time.process_time() < end: pass\n"
        "    kill(pid, number)\n"
        "os.kill = burn"
    )
    files = [jpeg(photo(FATAL_HEIGHT, 50, seed=1))]
    done = workers.run(work(mined(), 1), files)
    assert len(done.quarantined) == 1
    assert 0.5 < done.cpu_seconds < 5


def test_close_ends_a_run_under_way_and_every_process(make: Callable[..., Workers]) -> None:
    workers = make()
    workers.start()
    (pid,) = workers.pids
    os.kill(pid, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as pool:
        runs = [pool.submit(workers.run, work(PIPELINE, 2), photos(2)) for _ in range(2)]
        workers.close()
        for run in runs:
            with pytest.raises(WorkersFailed, match="closed"):
                run.result(timeout=10)
    assert not is_running(pid)
    assert not workers.pids
    workers.close()


def test_restarts_leave_nothing_open(make: Callable[..., Workers]) -> None:
    workers = make()
    workers.start()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        os.kill(workers.pids[0], signal.SIGKILL)
        assert_all_made(workers.run(work(PIPELINE, 2), photos(2)), work(PIPELINE, 2), photos(2))
    assert len(os.listdir("/proc/self/fd")) == before


def test_impossible_work_is_refused(shared: Workers) -> None:
    with pytest.raises(WrongUse, match="1 to 3 steps"):
        work(PIPELINE, 2, cuts=np.array([1, 4], np.uint8))
    with pytest.raises(WrongUse, match="1 to 3 steps"):
        work(PIPELINE, 2, cuts=np.array([0, 2], np.uint8))
    with pytest.raises(WrongUse, match="1 codecs"):
        work(PIPELINE, 2, codecs=["none"])
    with pytest.raises(WrongUse, match="2 files"):
        shared.run(work(PIPELINE, 3), photos(2))
    with pytest.raises(WrongUse, match="0 workers"):
        Workers(0, limits=LIMITS)
