#!/usr/bin/env python3
"""Build the robot of TORCS: `build [--source FOLDER]`, once, before `main` can start races.

It is compiled against the headers of TORCS. Debian has them in the source package alone: apt downloads that (400 MB,
whatever the machine's own lists say of sources), and the headers are kept in driver/include. FOLDER is an unpacked
source of TORCS, for other systems.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent / "driver"
INCLUDE = HERE / "include"
RLX = HERE.parents[2] / "protocol" / "clients" / "c"
FOLDERS = {
    "src/interfaces": "",
    "src/libs/tgf": "",
    "src/libs/robottools": "",
    "src/linux": "",
    "src/libs/math": "tmath",
}
"""Folders of the source that have headers, and where these are to be."""
NEEDED = ("car.h", "osspec.h", "raceman.h", "robot.h", "robottools.h", "tgf.h", "tmath/linalg_t.h", "track.h")
FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")


class NotBuiltError(Exception):
    """The robot cannot be built; the message says what is missing, and the way out."""


def main() -> None:
    """Get the headers if they are not there, and compile."""
    parser = argparse.ArgumentParser(prog="TORCS/build", description="Build the robot of TORCS that an agent drives.")
    parser.add_argument("--source", type=Path, metavar="FOLDER", help="an unpacked source of TORCS (Debian's)")
    try:
        build(parser.parse_args().source)
    except NotBuiltError as error:
        sys.exit(f"TORCS/build: {error}")
    print(f"built {HERE / 'relaax.so'}")


def build(source: Path | None = None) -> None:
    """Build driver/relaax.so, against the headers of an unpacked source or of Debian's. Raises NotBuiltError."""
    if shutil.which("g++") is None:
        raise NotBuiltError("there is no g++: install it; Debian: apt-get install g++")
    if not Path("/usr/include/plib/sg.h").exists():
        raise NotBuiltError("there are no headers of plib: install them; Debian: apt-get install libplib-dev")
    if source is not None:
        keep(dict(headers_of_folder(source)))
    elif not all((INCLUDE / name).exists() for name in NEEDED):
        keep(dict(headers_of_debian()))
    with tempfile.TemporaryDirectory(dir=writable(HERE)) as folder:
        built = Path(folder) / "relaax.so"
        command = ["g++", *FLAGS, "-o", str(built), str(HERE / "relaax.cpp"), "-isystem", str(INCLUDE), "-I", str(RLX)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotBuiltError(f"g++ cannot build the robot:\n{done.stderr}")
        os.replace(built, HERE / "relaax.so")  # races that are under way go on with what they have


def keep(headers: dict[str, bytes]) -> None:
    """Write headers into driver/include. Raises NotBuiltError if some that are needed are not among them."""
    missing = [name for name in NEEDED if name not in headers]
    if missing:
        raise NotBuiltError(f"the source of TORCS has no {missing[0]}: name the folder that has src/interfaces")
    for name, content in headers.items():
        path = writable(INCLUDE / Path(name).parent) / Path(name).name
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(content)
        os.replace(part, path)  # another build may be reading it


def writable(folder: Path) -> Path:
    """Return the folder, made if it was not there. Raises NotBuiltError if nothing can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotBuiltError(f"cannot write to {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise NotBuiltError(f"cannot write to {folder}: build as the user who installed RELAAX")
    return folder


def place_of(member: str) -> str | None:
    """Return where a file of the source belongs in driver/include; None if it is no header that is wanted."""
    folder, _, name = member.rpartition("/")
    return str(Path(FOLDERS[folder]) / name) if folder in FOLDERS and name.endswith(".h") else None


def headers_of_folder(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the headers of an unpacked source, with their places."""
    for folder in FOLDERS:
        for path in sorted((source / folder).glob("*.h")):
            place = place_of(f"{folder}/{path.name}")
            assert place is not None
            yield place, path.read_bytes()


def headers_of_debian() -> Iterator[tuple[str, bytes]]:
    """Yield the headers of Debian's source package, with their places. Raises NotBuiltError."""
    if shutil.which("apt-get") is None:
        raise NotBuiltError("there is no apt-get to get the headers with: name an unpacked source by --source FOLDER")
    with tempfile.TemporaryDirectory(prefix="relaax-torcs-source-") as folder:
        print("downloading the source package of TORCS for its headers: 400 MB", flush=True)
        download(Path(folder))
        archives = list(Path(folder).glob("torcs_*.orig.tar.*"))
        if not archives:
            raise NotBuiltError("apt-get has brought no source of TORCS: name an unpacked one by --source FOLDER")
        with tarfile.open(archives[0], "r|*") as archive:
            for member in archive:
                place = place_of(member.name.partition("/")[2])
                content = archive.extractfile(member) if place is not None else None
                if place is not None and content is not None:
                    yield place, content.read()


def download(folder: Path) -> None:
    """Let apt bring the source package into a folder, with lists of its own. Raises NotBuiltError."""
    targets = apt(folder, "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
    places = sorted(set(filter(None, targets.splitlines())))
    (folder / "sources.list").write_text("".join(f"deb-src {place}\n" for place in places), encoding="ascii")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    own = (
        *("-o", f"Dir::Etc::SourceList={folder}/sources.list", "-o", "Dir::Etc::SourceParts=/dev/null"),
        *("-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache", "-o", "APT::Sandbox::User="),
    )
    apt(folder, *own, "update", may_fail=True)  # of some place that has no sources
    apt(folder, *own, "source", "--download-only", "torcs")


def apt(folder: Path, *arguments: str, may_fail: bool = False) -> str:
    """Return what apt-get says, run in a folder. Raises NotBuiltError if it fails."""
    done = subprocess.run(["apt-get", "--quiet=2", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 and not may_fail:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise NotBuiltError(f"apt-get cannot get the source of TORCS: {last}")
    return done.stdout


if __name__ == "__main__":
    main()
