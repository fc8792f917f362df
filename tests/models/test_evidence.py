"""What a manifest says of int8 layers, and what may come into force."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from graphs import make_int8, make_model
from headwater.errors import ModelRefused
from headwater.models.evidence import BOUND, Evidence, find_evidence, require_measured
from headwater.models.registry import Registry
from headwater.models.version import ModelVersion

DATA = "5" * 32


def made(folder: Path, **words: Any) -> ModelVersion:
    return Registry(folder).put(make_int8(), name="wrens", made=words)


@pytest.mark.parametrize(
    ("words", "evidence"),
    [
        (
            {"by": "quantise", "agreement": 0.98, "images": 256, "bound": 0.9, "data": DATA},
            Evidence(0.98, 0.9, 256, DATA),
        ),
        (
            {"by": "finetune", "data": DATA, "int8": {"agreement": 1, "images": 99, "bound": 0.5}},
            Evidence(1.0, 0.5, 99, DATA),
        ),
        ({"by": "quantise", "agreement": 0.96}, Evidence(0.96)),
        ({"by": "quantise", "agreement": 0.96, "images": -1, "bound": "low", "data": 7}, Evidence(0.96)),
        ({"by": "finetune", "data": DATA, "int8": {"of": None, "agreement": None}}, None),
        ({"by": "push", "agreement": 0.99}, None),
        ({"by": "quantise"}, None),
        ({"by": "quantise", "agreement": 1.01}, None),
        ({"by": "quantise", "agreement": True}, None),
        ({"by": "quantise", "agreement": [1.0]}, None),
        ({"by": "quantise", "agreement": 0.99, "int8": {}}, None),
    ],
)
def test_what_a_manifest_says(tmp_path: Path, words: dict[str, Any], evidence: Evidence | None) -> None:
    assert find_evidence(made(tmp_path, **words)) == evidence


def test_enough_is_the_bound_that_was_stated_and_else_the_usual_one(tmp_path: Path) -> None:
    trunk = make_int8().trunk
    require_measured(made(tmp_path, by="quantise", agreement=BOUND), trunk)
    require_measured(made(tmp_path, by="quantise", agreement=0.6, bound=0.6), trunk)
    few = made(tmp_path, by="quantise", agreement=0.949, images=64, data=DATA)
    with pytest.raises(ModelRefused, match=rf"94.9% of 64 images of data {DATA[:12]} keep .*, bound 95.0%"):
        require_measured(few, trunk)


def test_a_refusal_names_version_bound_and_remedy(tmp_path: Path) -> None:
    version = made(tmp_path, by="push")
    with pytest.raises(ModelRefused) as refused:
        require_measured(version, make_int8().trunk)
    assert str(refused.value) == (
        f"the layers of 'wrens' {version.digest[:12]} are int8, and nothing says that 95.0% of labels stay: "
        "it may be held, and does not come into force; have int8 layers made of its fp32 version, and "
        "measured, by `headwater models quantise`, or say --unmeasured"
    )


def test_of_fp32_layers_nothing_is_asked(tmp_path: Path) -> None:
    require_measured(Registry(tmp_path).put(make_model(), name="larks"), make_model().trunk)
