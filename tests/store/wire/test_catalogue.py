"""What both sides compare at connect: the same on every CPU, and different as soon as a byte is."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater import transforms as T
from headwater.data.pipeline import library_versions
from headwater.data.steps import catalogue
from headwater.store.wire.catalogue import (
    EXAMPLES,
    LIBRARIES,
    Comparison,
    compare,
    digests,
    longest,
    said_once,
)

PRINT = """
import json
from headwater.store.wire.catalogue import digests
print(json.dumps(digests()))
"""
NO_TORCH = "import sys; sys.modules['torch'] = None\n"
OTHER_JPEG = """
import functools, simplejpeg
simplejpeg.decode_jpeg = functools.partial(simplejpeg.decode_jpeg, fastupsample=True)
"""
OTHER_RESIZE = """
import torch
kernel = torch.nn.functional.interpolate
torch.nn.functional.interpolate = lambda *args, **options: kernel(*args, **options).clamp(max=254)
"""
EXACT = {name for name, kind in catalogue().items() if kind.exact}
CHAIN = T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToDtype("float32", scale=True)])


def digests_of(program: str, path: Path | None = None, **environment: str) -> dict[str, str]:
    """What another process says."""
    paths = [str(path)] if path else []
    environment = os.environ | environment | {"PYTHONPATH": os.pathsep.join(paths + sys.path)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def between(theirs: dict[str, str], versions: dict[str, str] | None = None) -> Comparison:
    mine = library_versions()
    return compare(digests(), theirs, my_versions=mine, their_versions=mine if versions is None else versions)


def test_every_exact_step_has_examples_and_a_digest() -> None:
    assert set(EXAMPLES) == EXACT
    assert all(EXAMPLES.values())
    assert set(digests()) == EXACT
    assert len(set(digests().values())) == len(EXACT)
    assert set(LIBRARIES) <= EXACT


def test_the_examples_set_every_parameter() -> None:
    for name, examples in EXAMPLES.items():
        fields = {field.name for field in dataclasses.fields(catalogue()[name])}  # type: ignore[arg-type]
        assert {field for example in examples for field in example} == fields, name


def test_the_digests_are_computed_once_and_belong_to_the_caller() -> None:
    first = digests()
    first.clear()
    assert digests()


def test_releases_agree_on_steps_that_need_no_library() -> None:
    """A change of an example or a built-in image ends offloading between releases: do it on purpose."""
    own = [f"{name} {digest}" for name, digest in sorted(digests().items()) if name not in LIBRARIES]
    assert hashlib.blake2b("\n".join(own).encode(), digest_size=8).hexdigest() == "bd30b4bbbd5905e5"


@pytest.mark.slow
def test_a_processor_of_another_kind_says_the_same() -> None:
    assert digests_of(PRINT, ATEN_CPU_CAPABILITY="default", JSIMD_FORCENONE="1") == digests()


def test_without_torch_there_is_no_resize_and_the_rest_is_the_same() -> None:
    theirs = digests_of(NO_TORCH + PRINT)
    assert theirs == {name: digest for name, digest in digests().items() if name != "resize"}
    found = between(theirs)
    assert found.agreed == EXACT - {"resize"}
    assert found.reasons == {"resize": "the store has no resize"}


@pytest.mark.parametrize("fault", ["ImportError", "OSError"])
def test_with_a_torch_that_does_not_load_there_is_no_resize(tmp_path: Path, fault: str) -> None:
    (tmp_path / "torch.py").write_text(f"raise {fault}('libtorch_cpu.so: cannot open shared object file')")
    assert set(digests_of(PRINT, tmp_path)) == EXACT - {"resize"}


def test_a_jpeg_library_of_other_pixels_is_noticed() -> None:
    theirs = digests_of(OTHER_JPEG + NO_TORCH + PRINT)
    assert between(theirs).agreed == EXACT - {"resize", "decode"}


@pytest.mark.slow
def test_a_resize_of_other_pixels_is_noticed() -> None:
    assert between(digests_of(OTHER_RESIZE + PRINT)).agreed == EXACT - {"resize"}


def test_equal_sides_agree_on_everything_and_nothing_is_said() -> None:
    found = between(digests())
    assert found == Comparison(frozenset(EXACT), {})
    assert said_once("stor-a:7077", found) == ""


@pytest.mark.parametrize("name", sorted(EXACT))
def test_a_tampered_digest_takes_the_step_away(name: str) -> None:
    found = between(digests() | {name: "0" * 32})
    assert found.agreed == EXACT - {name}
    assert set(found.reasons) == {name}


def test_the_reason_names_the_libraries_that_differ() -> None:
    here = library_versions()
    theirs = digests() | {"resize": "1", "decode": "2", "pad": "3"}
    reasons = between(theirs, {**here, "torch": "2.10.0", "pillow": "11.0.0"}).reasons
    assert reasons == {
        "resize": f"its bytes differ: store torch 2.10.0, here {here['torch']}",
        "decode": f"its bytes differ: store pillow 11.0.0, here {here['pillow']}",
        "pad": "its bytes differ",
    }
    assert between(theirs).reasons["resize"] == f"its bytes differ, although both have torch {here['torch']}"
    assert "store torch none, here" in between(theirs, {}).reasons["resize"]


def test_a_version_from_the_other_side_cannot_write_to_the_terminal() -> None:
    versions = library_versions() | {"torch": "2.1\x1b[2J\n" + "x" * 1000}
    (reason,) = between(digests() | {"resize": "1"}, versions).reasons.values()
    assert reason.isprintable()
    assert len(reason) < 120


def test_steps_that_only_the_store_has_are_no_difference() -> None:
    assert between(digests() | {"sharpen": "1"}) == between(digests())


@pytest.mark.parametrize(
    ("missing", "cut"),
    [
        ((), 4),
        (("random_horizontal_flip",), 3),
        (("resize",), 2),
        (("random_area", "resize"), 1),
        (("decode",), 0),
    ],
)
def test_the_longest_prefix_ends_before_the_first_step_without_agreement(
    missing: tuple[str, ...], cut: int
) -> None:
    names = [step.name for step in CHAIN.steps]
    assert names == ["decode", "random_area", "resize", "random_horizontal_flip", "to_dtype"]
    agreed = frozenset(names) - set(missing)
    assert longest(CHAIN, agreed) == cut, "a float step stays at the trainer, whatever was agreed"


def test_a_difference_is_said_in_one_line() -> None:
    one = Comparison(frozenset(), {"resize": "the store has no resize"})
    assert said_once("stor-a:7077", one) == (
        "store stor-a:7077 and this trainer differ in resize (the store has no resize);"
        " that step and those after it stay at the trainer"
    )
    two = Comparison(frozenset(), {"resize": "its bytes differ", "decode": "its bytes differ"})
    assert said_once("stor-a:7077", two) == (
        "store stor-a:7077 and this trainer differ in decode (its bytes differ), resize (its bytes differ);"
        " each of these and the steps after it stay at the trainer"
    )
