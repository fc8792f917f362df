"""Which ways there are to send a sample."""

from __future__ import annotations

from headwater import transforms as T
from headwater.data.codecs.excerpts import EXCERPTS
from headwater.data.pipeline import Pipeline
from headwater.plan.offload import Offload
from headwater.plan.offload.ways import list_ways

CODECS = ["none", "zstd", "jxl1", "jxl3", *EXCERPTS]


def ways(*steps: object, codecs: list[str] | None = None) -> list[Offload]:
    pipeline: Pipeline = T.Compose(list(steps)).samplewise
    return list(list_ways(pipeline, CODECS if codecs is None else codecs))


def test_every_cut_codecs_where_it_is_smallest_and_excerpts() -> None:
    found = ways(T.RandomResizedCrop(224), T.RandomHorizontalFlip())
    assert found[:5] == [Offload(cut) for cut in range(5)]
    assert found[5:9] == [Offload(3, "zstd"), Offload(3, "jxl1"), Offload(3, "jxl3"), Offload(2, "jxl1")]
    assert found[9:] == [Offload(2, name) for name in EXCERPTS]


def test_without_a_crop_there_is_no_excerpt() -> None:
    found = ways(T.Resize(64))
    assert {way.cut for way in found if way.codec != "none"} == {2}
    assert not {way.codec for way in found} & set(EXCERPTS)


def test_steps_that_are_not_exact_stay_at_the_trainer() -> None:
    found = ways(T.RandomCrop(32), T.ColorJitter(saturation=0.5), T.RandomHorizontalFlip())
    assert max(way.cut for way in found) == 2


def test_codecs_that_one_side_lacks_are_left_out() -> None:
    found = ways(T.RandomResizedCrop(224), codecs=["none", "zstd"])
    assert {way.codec for way in found} == {"none", "zstd"}


def test_a_large_crop_is_packed_where_the_image_is_smallest() -> None:
    """A resize to 2,000 pixels makes most images larger: the crop is what should cross."""
    found = ways(T.RandomResizedCrop(2000))
    assert Offload(2, "jxl1") in found
    assert Offload(3, "jxl1") not in found
