"""The clients of protocol/clients: their commands to build, test and start, and their length.

python -m support.client_languages      (in tests/) prints the lines of code
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CLIENTS = ROOT / "protocol" / "clients"
FUZZ = 20_000  # answers; the default of the C client is larger

Command = tuple[str, ...]


@dataclass(frozen=True)
class Language:
    """A client. Its commands run in its folder; in them, `{out}` is the folder of the build."""

    name: str
    compilers: tuple[str, ...]
    build: tuple[Command, ...]
    tests: tuple[Command, ...]
    play: Command
    cartpole: Command
    sources: tuple[str, ...]
    comments: tuple[str, ...]  # prefixes of comment lines
    tls: bool = True
    directory: str = ""  # of protocol/clients; empty: the name
    installer: str = "install-toolchains"

    @property
    def folder(self) -> Path:
        return CLIENTS / (self.directory or self.name)

    def lines(self) -> tuple[int, int]:
        """Return the number of lines of the sources, and the number of lines of code."""
        files = [file for glob in self.sources for file in self.folder.glob(glob)]
        found = [line.strip() for file in files for line in file.read_text("utf-8").splitlines()]
        return len(found), sum(bool(line) and not line.startswith(self.comments) for line in found)

    def run(self, command: Command, out: Path, timeout: float = 600) -> str:
        """Run a command and return its output. Raises AssertionError if it fails."""
        done = subprocess.run(
            placed(command, out),
            cwd=self.folder,
            env=environment(out),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=timeout,
        )
        assert done.returncode == 0, f"{' '.join(done.args)}: exit code {done.returncode}\n{done.stdout}"
        return done.stdout


def placed(command: Command, out: Path) -> list[str]:
    """Return the words of a command with `{out}` replaced."""
    return [word.replace("{out}", str(out)) for word in command]


def environment(out: Path) -> dict[str, str]:
    """Return variables that keep compilers from the network and from the home folder."""
    own = {"GOFLAGS": "-mod=mod", "GOPROXY": "off", "GOTOOLCHAIN": "local", "GOCACHE": str(out.parent / "go-cache")}
    return {**os.environ, **own, "RUSTFLAGS": "-D warnings", "CARGO_NET_OFFLINE": "true"}


_SLASHES = ("//", "/*", "*", "///")
_JAVA = "javac --release 17 -Xlint:all -Werror -d {out} -sourcepath src/main/java:src/test/java examples/CartPole.java"
_GODOT_3 = ("godot3-server", "--path", str(CLIENTS / "godot"))
_GODOT_4 = ("godot", "--headless", "--path", "{out}/project")
_GODOT_ENV = ("env", "LANG=en", "XDG_DATA_HOME={out}")
_GODOT_PLAY = (sys.executable, str(ROOT / "tests" / "support" / "godot_play.py"))
_MCS = ("mcs", "-warnaserror", "-langversion:7", "-recurse:src/*.cs")

LANGUAGES = {
    language.name: language
    for language in (
        Language(
            "c",
            ("gcc", "g++", "make"),
            build=(("make", "-s", "OUT={out}", "CC=gcc", "CXX=g++"),),
            tests=(("make", "-s", "OUT={out}", "CC=gcc", "CXX=g++", f"FUZZ={FUZZ}", "check"),),
            play=("{out}/play",),
            cartpole=("{out}/cartpole",),
            sources=("rlx.h",),
            comments=_SLASHES,
            tls=False,
        ),
        Language(
            "go",
            ("go",),
            build=(("go", "vet", "./..."), ("go", "build", "-o", "{out}/", "./cartpole", "./nim", "./play")),
            tests=(("go", "test", "."),),
            play=("{out}/play",),
            cartpole=("{out}/cartpole",),
            sources=("client.go", "spaces.go", "wire.go"),
            comments=_SLASHES,
        ),
        Language(
            "rust",
            ("cargo", "rustc"),
            build=(("cargo", "build", "--quiet", "--locked", "--release", "--examples", "--target-dir", "{out}"),),
            tests=(("cargo", "test", "--quiet", "--locked", "--release", "--target-dir", "{out}"),),
            play=("{out}/release/examples/play",),
            cartpole=("{out}/release/examples/cartpole",),
            sources=("src/*.rs",),
            comments=_SLASHES,
            tls=False,
        ),
        Language(
            "javascript",
            ("node",),
            build=tuple(
                ("node", "--check", file)
                for file in ("src/rlx.js", "src/tcp.js", "src/policy.js", "examples/cartpole.js")
            ),
            tests=(("node", "--test"),),
            play=("node", "play.js"),
            cartpole=("node", "examples/cartpole.js"),
            sources=("src/*.js",),
            comments=_SLASHES,
        ),
        Language(
            "ruby",
            ("ruby",),
            build=(("ruby", "-wc", "lib/rlx.rb", "lib/rlx/space.rb", "lib/rlx/wire.rb", "examples/cartpole.rb"),),
            tests=(("ruby", "-w", "test/test_rlx.rb"),),
            play=("ruby", "-w", "test/play.rb"),
            cartpole=("ruby", "examples/cartpole.rb"),
            sources=("lib/**/*.rb",),
            comments=("#",),
        ),
        Language(
            "java",
            ("javac", "java"),
            build=((*_JAVA.split(), "src/test/java/relaax/rlx/Play.java", "src/test/java/relaax/rlx/ClientTest.java"),),
            tests=(("java", "-cp", "{out}", "relaax.rlx.ClientTest"),),
            play=("java", "-cp", "{out}", "relaax.rlx.Play"),
            cartpole=("java", "-cp", "{out}", "CartPole"),
            sources=("src/main/java/relaax/rlx/*.java",),
            comments=_SLASHES,
        ),
        Language(
            "csharp",
            ("mcs", "mono"),
            build=tuple(
                (*_MCS, f"-out:{{out}}/{name}.exe", f"{folder}/{name}.cs")
                for folder, name in (("examples", "CartPole"), ("tests", "Play"), ("tests", "ClientTest"))
            ),
            tests=(("mono", "{out}/ClientTest.exe"),),
            play=("mono", "{out}/Play.exe"),
            cartpole=("mono", "{out}/CartPole.exe"),
            sources=("src/*.cs",),
            comments=_SLASHES,
        ),
        Language(
            "godot",
            ("godot3-server",),
            build=(
                ("mkdir", "-p", "{out}/godot/app_userdata/RELAAX"),  # else Godot reports that the folder is missing
                (*_GODOT_ENV, *_GODOT_3, "--script", "tests/check.gd"),
            ),
            tests=((*_GODOT_ENV, *_GODOT_3, "--script", "tests/test.gd"),),
            play=(*_GODOT_PLAY, *_GODOT_3),
            cartpole=(*_GODOT_ENV, *_GODOT_3, "--script", "examples/cartpole.gd"),
            sources=("addons/relaax/*.gd",),
            comments=("#",),
            tls=False,
        ),
        Language(
            "godot4",
            ("godot",),
            build=(
                (sys.executable, "for_godot_4.py", "{out}/project"),
                (*_GODOT_ENV, *_GODOT_4, "--script", "tests/check.gd"),
            ),
            tests=((*_GODOT_ENV, *_GODOT_4, "--script", "tests/test.gd"),),
            play=(*_GODOT_PLAY, *_GODOT_4),
            cartpole=(*_GODOT_ENV, *_GODOT_4, "--script", "{out}/project/examples/cartpole.gd"),
            sources=("for_godot_4.py",),
            comments=("#",),
            tls=False,
            directory="godot",
            installer="install-godot",
        ),
    )
}


def cartpole(language: Language, out: Path, *options: str) -> list[str]:
    """Return the command of the example. It runs in any folder."""
    words = placed(language.cartpole, out)
    words = [str(language.folder / word) if (language.folder / word).is_file() else word for word in words]
    return [*words, "{address}", *options]


def require(language: Language) -> None:
    """Install the compilers if possible. Otherwise skip the test, and name what is missing."""
    if all(map(shutil.which, language.compilers)):
        return
    installed = subprocess.run(
        [ROOT / "tests/support" / language.installer], capture_output=True, text=True, check=False, timeout=900
    )
    missing = [name for name in language.compilers if shutil.which(name) is None]
    if missing:
        reason = installed.stdout.strip() or installed.stderr.strip() or "the Debian packages do not contain them"
        pytest.skip(f"this machine lacks {', '.join(missing)}, and tests/support/{language.installer} failed: {reason}")


def main() -> None:
    """Print a table with a line for each client."""
    print(f"{'client':10} {'lines':>6} {'of code':>8}")
    for language in LANGUAGES.values():
        lines, code = language.lines()
        print(f"{language.name:10} {lines:6} {code:8}")


if __name__ == "__main__":
    main()
