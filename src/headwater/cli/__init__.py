"""The command line: one file per verb, which parses, calls and prints. Here they become one program.

Exit codes: 0 ok, 1 failed, 2 wrong use, 3 unreachable, 4 refused; 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer

from headwater.cli import (
    bench,
    demo,
    doctor,
    explain,
    finetune,
    forget,
    labels,
    ls,
    models,
    plan,
    predict,
    profile,
    relabel,
    release,
    select,
    serve,
    top,
)
from headwater.cli.printing import print_json
from headwater.errors import HeadwaterError

# typer carries a click of its own in newer versions; this finds the class in all of them.
UsageError = typer.BadParameter.__base__ or typer.BadParameter

app = typer.Typer(
    name="headwater",
    help="Near-storage training for PyTorch.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("ls")(ls.ls)
app.command("doctor")(doctor.doctor)
app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("top")(top.top)
app.command("release")(release.release)
app.command("finetune")(finetune.finetune)
app.command("relabel")(relabel.relabel)
app.command("forget")(forget.forget)
app.command("predict")(predict.predict)
app.command("profile")(profile.profile)
app.command("plan")(plan.plan)
app.command("explain")(explain.explain)
app.command("select")(select.select)
app.add_typer(bench.app, name="bench")
app.add_typer(models.app, name="models")
app.add_typer(labels.app, name="labels")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headwater {version('headwater')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Near-storage training for PyTorch."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; an error is one line on standard error, or a JSON document."""
    sys.exit(run(sys.argv[1:] if arguments is None else list(arguments)))


def run(words: Sequence[str]) -> int:
    """Run the command line; the exit code."""
    try:
        return app(list(words), prog_name="headwater", standalone_mode=False) or 0
    except UsageError as error:  # type: ignore[misc]
        return _report_usage(error, as_json="--json" in words)
    except HeadwaterError as error:
        return _report(error, as_json="--json" in words)


def _report(error: HeadwaterError, *, as_json: bool) -> int:
    notes = getattr(error, "__notes__", [])
    if as_json:
        _print_error(type(error).__name__, str(error), error.exit_code, notes)
    else:
        print("\n  ".join([f"headwater: {error}", *notes]), file=sys.stderr)
    if os.environ.get("HEADWATER_DEBUG") == "1":
        traceback.print_exception(error)
    return error.exit_code


def _report_usage(error: Exception, *, as_json: bool) -> int:
    if as_json:
        _print_error("WrongUse", error.format_message(), 2)  # type: ignore[attr-defined]
    else:
        error.show()  # type: ignore[attr-defined]
    return 2


def _print_error(kind: str, message: str, exit_code: int, notes: Sequence[str] = ()) -> None:
    print_json({"error": {"kind": kind, "message": message, "exit_code": exit_code, "notes": notes}})
