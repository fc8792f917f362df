from __future__ import annotations

import gc
import sys
import threading
import weakref

import pytest

from headwater.data.image import turbojpeg


@pytest.mark.skipif(sys.platform != "linux", reason="names a library of Linux")
def test_a_library_that_is_absent_or_lacks_the_calls_is_passed_over() -> None:
    assert turbojpeg.load_first([]) is None
    assert turbojpeg.load_first(["libabsent-turbojpeg.so.9", "libc.so.6"]) is None


@pytest.mark.skipif(turbojpeg.load() is None, reason="no library with the TurboJPEG 3 calls")
def test_a_thread_keeps_one_decoder_and_takes_it_along() -> None:
    seen: list[weakref.ref[turbojpeg.Decoder]] = []

    def work() -> None:
        first = turbojpeg.decoder()
        assert first is not None
        assert first is turbojpeg.decoder()
        seen.append(weakref.ref(first))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert len(seen) == 3
    assert all(reference() is None for reference in seen)
