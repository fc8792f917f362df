"""`headwater doctor`: is this machine ready, and what would make it faster?"""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from headwater.cli.printing import JsonFlag, format_bytes, print_json, print_table
from headwater.data.image import decode, read_header, region_available
from headwater.data.indexcache import cache_folder
from headwater.data.synthetic import make_photos
from headwater.engine.crew import available_cores
from headwater.errors import HeadwaterError

OK, NOTE, BROKEN = "ok", "note", "broken"
_PACKAGES = ("numpy", "pyarrow", "simplejpeg", "pillow", "msgspec", "obstore")
_OPTIONAL = ("torchvision", "turbojpeg", "plotly")
_MODELS = ("onnx", "onnxruntime", "safetensors", "zstandard")


@dataclass(frozen=True)
class Check:
    """One finding: `note` is worth knowing, `broken` keeps something from working."""

    name: str
    status: str
    value: str
    remedy: str = ""


def doctor(
    state: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Also check the state folder of a store.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Check Python, packages, cores, memory, torch, the JPEG library, the cache and the environment."""
    checks = [check() for check in CHECKS]
    if state is not None:
        checks.append(check_state(state))
    healthy = all(check.status != BROKEN for check in checks)
    if json:
        print_json({"ok": healthy, "checks": [asdict(check) for check in checks]})
    else:
        print_table(
            ("check", "status", "found", "remedy"), [tuple(asdict(check).values()) for check in checks]
        )
    if not healthy:
        raise typer.Exit(1)


def check_python() -> Check:
    found = (
        f"{platform.python_implementation()} {platform.python_version()}, headwater {version('headwater')}"
    )
    old = sys.version_info < (3, 11)
    return Check("python", BROKEN if old else OK, found, "install Python 3.11 or newer" if old else "")


def check_packages() -> Check:
    found = {name: _version_of(name) for name in (*_PACKAGES, *_OPTIONAL)}
    missing = [name for name in _PACKAGES if found[name] is None]
    text = ", ".join(f"{name} {number or 'absent'}" for name, number in found.items())
    remedy = f"pip install {' '.join(missing)}" if missing else ""
    return Check("packages", BROKEN if missing else OK, text, remedy)


def check_cores() -> Check:
    usable, present = available_cores(), os.cpu_count() or 1
    return Check("cores", OK, f"{usable} usable of {present}")


def check_memory() -> Check:
    total, free = (
        os.sysconf(name) * os.sysconf("SC_PAGE_SIZE") for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES")
    )
    return Check("memory", OK, f"{format_bytes(total)}, {format_bytes(free)} unused")


def check_torch() -> Check:
    if _version_of("torch") is None:
        return Check("torch", NOTE, "absent: no DataLoader and no resize", "pip install 'headwater[torch]'")
    try:
        import torch
    except (ImportError, OSError) as error:
        return Check("torch", BROKEN, f"cannot be imported: {error}", "install torch anew")
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "no CUDA device"
    return Check("torch", OK, f"{torch.__version__}, {torch.get_num_threads()} threads, {device}")


def check_models() -> Check:
    """What a store needs to take models in and to run them."""
    found = {name: _version_of(name) for name in _MODELS}
    missing = [name for name, number in found.items() if number is None]
    if missing:
        remedy = "pip install 'headwater[models]'"
        return Check("models", NOTE, f"{', '.join(missing)} absent: no models at a store", remedy)
    return Check("models", OK, ", ".join(f"{name} {number}" for name, number in found.items()))


def check_state(folder: Path) -> Check:
    """Whether what a store keeps can be read, and every model in force verified."""
    from headwater.models.registry import Registry
    from headwater.store.server.state import State, is_taken

    if not folder.is_dir():
        return Check("state", NOTE, f"{folder} is not there", "`headwater serve --state` makes it")
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return Check("state", BROKEN, f"{folder} cannot be written to", "run this as the store does")
    registry = Registry(State(folder).models)
    try:
        names = registry.names()
        for name in names:
            registry.get(name)
    except HeadwaterError as error:
        return Check("state", BROKEN, str(error), "send the version again with `headwater models sync`")
    used = "in use by a store" if is_taken(folder) else "no store uses it now"
    return Check("state", OK, f"{folder}, {used}; {len(names)} models in force, verified")


def check_decoder() -> Check:
    """Decode a photo that is made on the spot."""
    photo = next(make_photos(np.array([0]), classes=2, seed=0))
    try:
        height, width, _ = decode(photo, read_header(photo)).shape
    except Exception as error:
        return Check("JPEG decoder", BROKEN, f"{type(error).__name__}: {error}", "install simplejpeg anew")
    return Check("JPEG decoder", OK, f"decoded {height} x {width} pixels")


def check_region() -> Check:
    if region_available():
        return Check("partial decode", OK, "a libturbojpeg that can decode a part of a file was found")
    remedy = "pip install 'headwater[region]', or install libturbojpeg 3"
    return Check("partial decode", NOTE, "no libturbojpeg 3: crops decode whole files", remedy)


def check_cache() -> Check:
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=folder):
            pass
        used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError as error:
        remedy = "set HEADWATER_CACHE to a folder that can be written to"
        return Check("cache", BROKEN, f"{folder} cannot be written to: {error.strerror}", remedy)
    return Check("cache", OK, f"{folder}, {format_bytes(used)}")


def check_start_method() -> Check:
    """Loaders use threads; only the user's own processes are concerned."""
    method = multiprocessing.get_start_method()
    if method != "fork":
        return Check("process start", OK, method)
    return Check("process start", NOTE, "fork: make loaders in the child, not before it is started")


def check_credentials() -> Check:
    """Names only: a value never leaves the environment."""
    names = sorted(name for name in os.environ if name.startswith("AWS_"))
    return Check("S3 settings", OK, ", ".join(names) if names else "no AWS_ variables set")


CHECKS: tuple[Callable[[], Check], ...] = (
    check_python,
    check_packages,
    check_cores,
    check_memory,
    check_torch,
    check_models,
    check_decoder,
    check_region,
    check_cache,
    check_start_method,
    check_credentials,
)


def _version_of(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
