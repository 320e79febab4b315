#!/usr/bin/env python3
"""Build the robot of TORCS: `build [--source FOLDER]`, once, before `main` can start races.

The robot is compiled against the headers of TORCS. Debian has them only in the source package: apt downloads it (400
MB; the machine's own lists need no source entries), and the headers are kept in driver/include. On other systems,
FOLDER is an unpacked source of TORCS.
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
"""Source folders with headers, and their place in driver/include."""
NEEDED = ("car.h", "osspec.h", "raceman.h", "robot.h", "robottools.h", "tgf.h", "tmath/linalg_t.h", "track.h")
FLAGS = ("-std=c++17", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared")


class NotBuiltError(Exception):
    """The error that the robot cannot be built. The message names what is missing and the way out."""


def main() -> None:
    """Get the headers if they are missing, and compile the robot."""
    parser = argparse.ArgumentParser(prog="TORCS/build", description="Build the robot of TORCS that an agent drives.")
    parser.add_argument(
        "--source", type=Path, metavar="FOLDER", help="an unpacked source of TORCS (default: Debian's source package)"
    )
    try:
        build(parser.parse_args().source)
    except NotBuiltError as error:
        sys.exit(f"TORCS/build: {error}")
    print(f"built {HERE / 'relaax.so'}")


def build(source: Path | None = None) -> None:
    """Build driver/relaax.so against the headers of an unpacked source, or of Debian's. Raises NotBuiltError."""
    if shutil.which("g++") is None:
        raise NotBuiltError("there is no g++: install it; Debian: apt-get install g++")
    if not Path("/usr/include/plib/sg.h").exists():
        raise NotBuiltError("there are no headers of plib: install them; Debian: apt-get install libplib-dev")
    if source is not None:
        write_headers(dict(headers_of_folder(source)))
    elif not all((INCLUDE / name).exists() for name in NEEDED):
        write_headers(dict(headers_of_debian()))
    with tempfile.TemporaryDirectory(dir=make_writable(HERE)) as folder:
        built = Path(folder) / "relaax.so"
        command = ["g++", *FLAGS, "-o", str(built), str(HERE / "relaax.cpp"), "-isystem", str(INCLUDE), "-I", str(RLX)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise NotBuiltError(f"g++ cannot build the robot:\n{done.stderr}")
        os.replace(built, HERE / "relaax.so")  # running races keep the old file


def write_headers(headers: dict[str, bytes]) -> None:
    """Write headers into driver/include. Raises NotBuiltError if a required header is missing."""
    missing = [name for name in NEEDED if name not in headers]
    if missing:
        raise NotBuiltError(f"the source of TORCS has no {missing[0]}: name the folder that has src/interfaces")
    for name, content in headers.items():
        path = make_writable(INCLUDE / Path(name).parent) / Path(name).name
        part = path.with_suffix(f".{os.getpid()}")
        part.write_bytes(content)
        os.replace(part, path)  # another build may be reading it


def make_writable(folder: Path) -> Path:
    """Create the folder if it is missing, and return it. Raises NotBuiltError if it is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotBuiltError(f"cannot write to {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise NotBuiltError(f"cannot write to {folder}: build as the user who installed RELAAX")
    return folder


def header_path(member: str) -> str | None:
    """Return the path in driver/include of a file of the source; None if it is not a header of `FOLDERS`."""
    folder, _, name = member.rpartition("/")
    return str(Path(FOLDERS[folder]) / name) if folder in FOLDERS and name.endswith(".h") else None


def headers_of_folder(source: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the path in driver/include and the content of each header of an unpacked source."""
    for folder in FOLDERS:
        for path in sorted((source / folder).glob("*.h")):
            target = header_path(f"{folder}/{path.name}")
            assert target is not None
            yield target, path.read_bytes()


def headers_of_debian() -> Iterator[tuple[str, bytes]]:
    """Yield the path in driver/include and the content of each header of Debian's source package.

    Raises NotBuiltError.
    """
    if shutil.which("apt-get") is None:
        raise NotBuiltError("there is no apt-get to download the headers: name an unpacked source with --source FOLDER")
    with tempfile.TemporaryDirectory(prefix="relaax-torcs-source-") as folder:
        print("downloading the source package of TORCS for its headers: 400 MB", flush=True)
        download(Path(folder))
        archives = list(Path(folder).glob("torcs_*.orig.tar.*"))
        if not archives:
            raise NotBuiltError("apt-get downloaded no source of TORCS: name an unpacked one with --source FOLDER")
        with tarfile.open(archives[0], "r|*") as archive:
            for member in archive:
                target = header_path(member.name.partition("/")[2])
                content = archive.extractfile(member) if target is not None else None
                if target is not None and content is not None:
                    yield target, content.read()


def download(folder: Path) -> None:
    """Download the source package into a folder with apt, using separate lists. Raises NotBuiltError."""
    targets = apt(folder, "indextargets", "--format", "$(SITE) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
    places = sorted(set(filter(None, targets.splitlines())))
    (folder / "sources.list").write_text("".join(f"deb-src {place}\n" for place in places), encoding="ascii")
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    own = (
        *("-o", f"Dir::Etc::SourceList={folder}/sources.list", "-o", "Dir::Etc::SourceParts=/dev/null"),
        *("-o", f"Dir::State::Lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache", "-o", "APT::Sandbox::User="),
    )
    apt(folder, *own, "update", may_fail=True)  # it fails if one archive has no sources
    apt(folder, *own, "source", "--download-only", "torcs")


def apt(folder: Path, *arguments: str, may_fail: bool = False) -> str:
    """Run apt-get in a folder and return its output. Raises NotBuiltError if it fails."""
    done = subprocess.run(["apt-get", "--quiet=2", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0 and not may_fail:
        last = (done.stderr.strip().splitlines() or ["no error message"])[-1]
        raise NotBuiltError(f"apt-get cannot get the source of TORCS: {last}")
    return done.stdout


if __name__ == "__main__":
    main()
