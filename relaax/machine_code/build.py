"""Build of the libraries of kernels, one for each level of this kind of processor.

    python -m relaax.machine_code.build

numba compiles the kernels for each level, in a separate process. A C compiler compiles their entries and links both:
`cc`, or that of the package ziglang. The build needs no header of Python or numpy. The libraries work with each version
of Python and numpy that RELAAX supports.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from relaax.machine_code.declarations import DECLARED, Declaration
from relaax.machine_code.entries import code_of, parameters_of
from relaax.machine_code.fingerprint import fingerprint
from relaax.machine_code.prebuilt import FOLDER, MODULE, levels, library_path

MODULES = (
    "relaax.nn.host.convolution",
    "relaax.nn.host.dense",
    "relaax.nn.host.kernels",
    "relaax.nn.host.lstm",
    "relaax.optim.host_optimizers",
    "relaax.optim.vector",
    "relaax.parameters.precision",
    "relaax.replay.table.frame_store",
    "relaax.replay.table.items",
    "relaax.replay.table.trees",
    "relaax.replay.table.writers",
)
"""Modules whose kernels the libraries contain."""

_EXTERNAL = {"exp", "expf", "log", "logf", "memcpy", "memmove", "memset", "sqrt", "sqrtf", "NRT_MemInfo_call_dtor"}
"""Functions of the C library and of `entries` that kernels may call. numba's own exist only where it is loaded."""


class BuildError(RuntimeError):
    """The libraries cannot be built. The message is a sentence."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the libraries that are missing or stale, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m relaax.machine_code.build", description="Build compiled kernels.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="the folder of the libraries (%(default)s)")
    parser.add_argument("--level", help=argparse.SUPPRESS)  # of the child process
    options = parser.parse_args(arguments)
    try:
        if options.level:
            _build_level(options.level, options.folder)
        else:
            build(options.folder)
    except BuildError as error:
        print(f"kernels: {error}", file=sys.stderr)
        return 1
    return 0


def build(folder: Path = FOLDER) -> None:
    """Build the libraries that are missing or stale. Raises BuildError."""
    stale = [level for level in levels() if not is_current(library_path(level, folder))]
    if not stale:
        return
    _compiler()
    print(f"kernels: compiling for {', '.join(stale)}; this takes a minute", file=sys.stderr)
    command = (sys.executable, "-m", "relaax.machine_code.build", "--folder", str(folder), "--level")
    with tempfile.TemporaryDirectory() as cache:
        variables = {
            **os.environ,
            "NUMBA_CPU_FEATURES": "",
            "ZIG_GLOBAL_CACHE_DIR": cache,
            "ZIG_LOCAL_CACHE_DIR": cache,
        }
        children = [subprocess.Popen((*command, level), env={**variables, "NUMBA_CPU_NAME": level}) for level in stale]
        failed = [level for level, child in zip(stale, children, strict=True) if child.wait()]
    if failed:
        raise BuildError(f"no library was built for {', '.join(failed)}: see the messages above")


def is_current(library: Path) -> bool:
    """Return whether a library exists and contains all kernels in their present version."""
    try:
        data = library.read_bytes()
    except FileNotFoundError:
        return False
    return all(name.encode() in data for name in (_mark(), *map(fingerprint, declared())))


def declared() -> list[Declaration]:
    """Return the declared kernels of all MODULES."""
    for module in MODULES:
        importlib.import_module(module)
    return [kernel for kernel in DECLARED if kernel.function.__module__ in MODULES]


def _mark() -> str:
    """Return a text that changes with the build itself. Each library contains it."""
    texts = (Path(__file__).with_name(name).read_bytes() for name in ("build.py", "entries.py", "just_in_time.py"))
    return hashlib.sha256(b"".join(texts)).hexdigest()


def _build_level(level: str, folder: Path) -> None:
    """Build the library of one level. numba must have been configured for it, by environment variables."""
    kernels = [(fingerprint(kernel), f"kernel_{i}", kernel) for i, kernel in enumerate(declared())]
    with tempfile.TemporaryDirectory() as temporary:
        object_file, source, library = (Path(temporary) / name for name in ("kernels.o", "entries.c", "library.so"))
        object_file.write_bytes(_machine_code(level, {symbol: kernel for _, symbol, kernel in kernels}))
        source.write_text(code_of(kernels, MODULE, _mark()), "utf-8")
        link = ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else ["-s"]
        options = ["-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-Wall", *link]
        command = [*_compiler(), *options, str(source), str(object_file), "-o", str(library), "-lm"]
        if subprocess.run(command).returncode:
            raise BuildError(f"the C compiler {' '.join(_compiler())} failed: install cc, or name a compiler by CC")
        target = library_path(level, folder)
        unfinished = target.with_suffix(".part")
        shutil.copyfile(library, unfinished)  # processes may have mapped the earlier file
        unfinished.chmod(0o755)
        unfinished.replace(target)


def _compiler() -> list[str]:
    """Return the command of a C compiler. Raises BuildError if there is none."""
    for name in (os.environ.get("CC"), "cc"):
        if name and (found := shutil.which(name)):
            return [found]
    if importlib.util.find_spec("ziglang") is None:
        raise BuildError("this machine has no C compiler: pip install ziglang, or install cc")
    # Stubs of an old C library, so that the result loads on every system that numba supports.
    glibc = ["-target", f"{platform.machine()}-linux-gnu.2.17"] if platform.libc_ver()[0] == "glibc" else []
    return [sys.executable, "-m", "ziglang", "cc", *glibc]


def _machine_code(level: str, kernels: dict[str, Declaration]) -> bytes:
    """Return an object file with numba's function of each kernel, by symbol, for a library at any address."""
    import llvmlite.binding as llvm
    import numba

    from relaax.machine_code.just_in_time import options_of, signature_of

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    together = llvm.parse_assembly("")
    for symbol, declaration in kernels.items():
        options = {**options_of(declaration), "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        dispatcher = numba.njit(signature_of(declaration), **options)(declaration.function)
        (result,) = dispatcher.overloads.values()
        module = llvm.parse_assembly(result.library.get_llvm_str())
        for value in (*module.functions, *module.global_variables):
            if value.name == result.fndesc.llvm_func_name and value.is_function:
                if len(list(value.arguments)) != len(parameters_of(declaration)):
                    raise BuildError(f"this numba passes arguments of {declaration.function.__name__} in another way")
                value.name, value.linkage, value.visibility = symbol, "external", "hidden"
            elif not value.is_declaration:
                value.linkage = "internal"
        together.triple, together.data_layout = module.triple, module.data_layout
        together.link_in(module)
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=level, features="", opt=3, reloc="pic", codemodel="default")
    passes = llvm.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(together, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    needed = {function.name for function in together.functions if function.is_declaration}
    foreign = {name for name in needed if not name.startswith("llvm.")} - _EXTERNAL
    if foreign:
        raise BuildError(f"kernels call {', '.join(sorted(foreign))}, which only a process with numba has")
    code: bytes = machine.emit_object(together)
    return code


if __name__ == "__main__":
    sys.exit(main())
