"""`headwater profile`: what link, store and trainer can do with this data, and what holds them up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.explain import describe, print_chapters
from headwater.cli.forecast import address_of
from headwater.cli.linking import Ca, Cert, Key, TokenFile
from headwater.cli.presets import PRESETS, find_preset
from headwater.cli.printing import JsonFlag, print_json, say
from headwater.cli.sampling import spread
from headwater.cli.steps import Step, find_step
from headwater.data.pipeline import Pipeline
from headwater.errors import MissingExtra, WrongUse
from headwater.measure.logbook import Logbook
from headwater.measure.verdict import Verdict
from headwater.report.offload import explain
from headwater.store import Dataset, Link, open


def profile(
    uri: Annotated[
        list[str],
        typer.Argument(
            metavar="URI...",
            help="Address of a dataset behind a store, grpc+tls://HOST:PORT/NAME, or several.",
        ),
    ],
    transform: Annotated[str, typer.Option(help=f"One of {', '.join(PRESETS)}.")] = "imagenet",
    samples: Annotated[int, typer.Option(min=1, help="How many samples to measure with.")] = 1024,
    batch_size: Annotated[int, typer.Option(min=1)] = 64,
    trainer_rate: Annotated[
        float | None, typer.Option(min=0.001, help="Samples per second that training takes; else no limit.")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION", help="Training step, a function of a batch, from the current folder."
        ),
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the logbook to this file too.")] = None,
    token_file: TokenFile = None,
    ca: Ca = None,
    cert: Cert = None,
    key: Key = None,
    json: JsonFlag = False,
) -> None:
    """Measure trainer, link, disk, both CPUs and every way to send a sample; name the bottleneck."""
    pipeline, train = find_preset(transform), choose_step(step, trainer_rate)
    dataset = open(address_of(uri), token=token_file, link=Link(ca=ca, cert=cert, key=key))
    try:
        verdict, logbook = measure(dataset, pipeline, samples=samples, batch_size=batch_size, step=train)
    finally:
        dataset.close()
    if save is not None:
        logbook.save(save)
    if json:
        print_json({**describe(logbook), "verdict": verdict.to_dict()})
    else:
        print(verdict)
        print_chapters(explain(logbook))


def choose_step(step: str | None, trainer_rate: float | None) -> Step:
    """The user's own, or one that takes the time that was given, or none."""
    if step is not None and trainer_rate is not None:
        raise WrongUse("--step measures the rate that --trainer-rate gives; leave one out")
    if step is not None:
        return find_step(step)

    def pause(batch: Any) -> None:
        if trainer_rate is not None:
            time.sleep(len(batch) / trainer_rate)

    return pause


def measure(
    dataset: Dataset, pipeline: Pipeline, *, samples: int, batch_size: int, step: Step
) -> tuple[Verdict, Logbook]:
    """Load so many samples as a training run would, over several epochs if there are fewer."""
    if not dataset.store.remote:
        raise WrongUse(
            f"{dataset.uri} is read in this process, so there is no store to do a part of the work; "
            "give the address of one, grpc+tls://HOST:PORT/NAME"
        )
    try:
        from headwater.loader import Auto, DataLoader
        from headwater.loader.probe import profile as probe
    except ImportError as error:
        raise MissingExtra(f"the loader needs torch ({error}); pip install 'headwater[torch]'") from error
    some = spread(dataset, samples)
    say(f"{samples:,} samples of {dataset.uri.replace(chr(10), ', ')}: {pipeline}")
    loader = DataLoader(
        some, pipeline, batch_size=batch_size, shuffle=True, offload=Auto(fresh=True), progress=False
    )
    # whole epochs: the logbook is kept at the end of each
    verdict = probe(loader, step, samples=-(-samples // len(some)) * len(some))
    loader.close()
    assert loader.logbook is not None
    return verdict, loader.logbook
