"""Exported policies act in C, JavaScript and GDScript like in Python, and damaged files are refused."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import relaax.policy
from relaax.algorithm_base import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, load_algorithm
from relaax.algorithm_base.acting.masks import mask_part
from relaax.nn.distributions import LEAST_VALID, MASKED
from relaax.nn.numpy_actor import NumpyActor
from relaax.policy import Policy
from relaax.policy.game_export import game_file_of
from relaax.rlx.action_masks import choices_of
from support.client_languages import CLIENTS, LANGUAGES, Language, placed, require
from support.pages import block
from support.policy_files import bundled, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.checks(
        "protocol/clients/c",
        "protocol/clients/javascript",
        "protocol/clients/godot",
        "relaax/policy",
        "relaax/algorithm_base",
        "relaax/nn",
        "algorithms",
        "tests/support/client_languages.py",
        "tests/support/policy_files.py",
        "tests/support/godot_policy.py",
        "tests/support/policy_program.mjs",
    ),
]

Built = Callable[[str], tuple[Language, Path]]

STEPS = 25
SMALL = 50_000  # bytes: GDScript needs a microsecond for each byte of a checksum
TOLERANCE = 1e-5
NOISE = 0.1  # of parameters: with more of it, outputs of large networks are many thousands
VECTOR, IMAGE, COLORED = Box(shape=(3,)), Box(0, 255, (36, 36), np.uint8), Box(0, 255, (36, 36, 3), np.uint8)
SCREEN = Box(0, 255, (84, 84), np.uint8)
PIXELS = Box(False, True, (10, 10, 4), np.bool_)
PARTS = Dict({"a": Discrete(4, 2), "b": Box(shape=(2,), dtype=np.float64), "c": Box(0, 255, (16, 20), np.uint8)})
INTEGERS = Tuple(
    [
        *(Box(-9, 9, (2,), dtype) for dtype in (np.int8, np.int16, np.int32, np.int64)),
        *(Box(0, 9, (3,), dtype) for dtype in (np.uint8, np.uint16, np.uint32, np.uint64)),
        *(MultiDiscrete([3, 2]), MultiBinary(3), Box(False, True, (2,), np.bool_)),
    ]
)
BESIDE = Dict({"at": Discrete(3, 1), "camera": COLORED, "speed": Box(shape=(2,), dtype=np.float64)})
MIXED = Tuple([Discrete(3, 5), Box(-1, 2, (2,)), MultiBinary(3), MultiDiscrete([2, 4])])
LSTM = {"lstm": True, "network": {"lstm_size": 8, "dense": [16]}}
MASKED_SPACE = Dict({"action_mask": MultiBinary(9), "seen": VECTOR})
MASKED_CAMERA = Dict({"action_mask": Box(0, 1, (5,), np.float32), "camera": IMAGE, "speed": VECTOR})

POLICIES: dict[str, tuple[str, Space, Space, dict[str, Any]]] = {
    "dense": ("da3c", VECTOR, Discrete(3, 2), {"normalize_observations": True}),
    "plain": ("da3c", VECTOR, Discrete(3), {"network": {"dense": [16, 8], "activation": "tanh"}}),
    "lstm": ("da3c", VECTOR, Discrete(3), LSTM),
    "two-lstms": ("da3c", VECTOR, Discrete(3), {"lstm": True, "network": {"lstm_size": 8, "separate": True}}),
    "frames": ("da3c", IMAGE, Discrete(4), {}),
    "screen": ("da3c", SCREEN, Discrete(6), {}),
    "frames-lstm": ("da3c", IMAGE, Discrete(4), LSTM),
    "colors": ("da3c", COLORED, Discrete(4), {"history_len": 2, "network": {"activation": "tanh"}}),
    "mean-image": ("da3c", COLORED, Discrete(4), {"history_len": 2, "subtract_mean_image": True}),
    "bools": ("da3c", PIXELS, Discrete(6), {}),
    "parts": (
        "da3c", PARTS, Box(shape=(2,)), {"normalize_observations": True, "network": {"flatten_images": True}}
    ),
    "integers": ("da3c", INTEGERS, Discrete(3), {}),
    "choices-beside": ("da3c", BESIDE, MultiDiscrete([2, 3]), {"normalize_observations": True}),
    "bits": ("da3c", VECTOR, MultiBinary([2, 2]), {}),
    "mixed": ("da3c", VECTOR, MIXED, {"normalize_observations": True}),
    "mask": ("da3c", MASKED_SPACE, MultiDiscrete([3, 2, 4]), {}),
    "mask-camera": ("da3c", MASKED_CAMERA, Discrete(5, -2), {}),
    "gaussian": ("da3c_cont", VECTOR, Box(-2, 2, (2,)), {"normalize_observations": True, "lstm": False}),
    "unbounded": ("da3c_cont", VECTOR, Box(-1e6, 3.4e38, (2,)), {"lstm": False}),
    "half": ("da3c_cont", VECTOR, Box(np.array([-1, -np.inf]), np.array([3, 0.1]), (2,)), {"lstm": False}),
    "tuple": ("da3c_cont", VECTOR, Tuple([Box(-1, 1, (2, 2)), Box(0, 5, (1,), np.float64)]), LSTM),
    "ppo": ("ppo", VECTOR, Box(-2, 2, (2,)), {"normalize_observations": True, **LSTM}),
    "async_q": ("async_q", PIXELS, Discrete(4, -1), {"dueling": True, "network": {"dense": [16]}}),
    "async_sarsa": ("async_sarsa", VECTOR, Discrete(3), {"normalize_observations": True}),
    "n_step_q": ("n_step_q", BESIDE, Discrete(9), {"dueling": True, "subtract_mean_image": True, **LSTM}),
    "gorila": ("gorila", IMAGE, Discrete(4), {"network": {"dense": [16]}}),
    "apex": ("apex", IMAGE, Discrete(6), {"network": {"dense": [16]}}),
    "sac": ("sac", VECTOR, Tuple([Box(-1, 3, (2, 2)), Box(0, 5, (1,), np.float64)]), {"normalize_observations": True}),
    "sac-beside": ("sac", BESIDE, Box(-1, 1, (2,)), {"network": {"dense": [8], "activation": "tanh"}}),
    "apex_dpg": ("apex_dpg", IMAGE, Box(-1, 1, (2,)), {"network": {"dense": [8]}}),
}  # fmt: skip


@pytest.fixture(scope="session")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    require(LANGUAGES["c"])
    program = tmp_path_factory.getbasetemp() / "policy-c"
    options = "-std=c99 -pedantic -Wall -Wextra -Werror -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all"
    build("gcc", *options.split(), CLIENTS / "c" / "tests" / "policy.c", "-o", program, "-lm")
    return [str(program)]


@pytest.fixture(scope="session")
def javascript_program() -> list[str]:
    require(LANGUAGES["javascript"])
    module = CLIENTS / "javascript" / "src" / "policy.js"
    return ["node", str(Path(__file__).parent.parent / "support" / "policy_program.mjs"), str(module)]


def godot_of(built: Built, name: str) -> list[str]:
    """Return the program with the Godot that plays a client."""
    language, out = built(name)
    start = placed(language.play[2:], out)
    return [sys.executable, str(Path(__file__).parent.parent / "support" / "godot_policy.py"), " ".join(start)]


@pytest.fixture(scope="session")
def godot_program(built: Built) -> list[str]:
    return godot_of(built, "godot")


@pytest.fixture(scope="session")
def godot4_program(built: Built) -> list[str]:
    return godot_of(built, "godot4")


@pytest.fixture(params=["c", "javascript", "godot", "godot4"])
def program(request: pytest.FixtureRequest) -> list[str]:
    command: list[str] = request.getfixturevalue(f"{request.param}_program")
    return command


def build(*command: Any) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def run(command: list[str], given: bytes, folder: Path | None = None) -> tuple[bytes, str]:
    done = subprocess.run(command, input=given, capture_output=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout, done.stderr.decode()


def is_godot(program: list[str]) -> bool:
    return len(program) > 1 and program[1].endswith("godot_policy.py")


def policy_of(folder: Path, name: str) -> Policy:
    algorithm, observation, action, keys = POLICIES[name]
    path, *_ = write(folder, bundled(algorithm), observation, action, noise=NOISE, **keys)
    return relaax.policy.load(path, greedy=True)


def drawn_leaves(space: Space, action: Space, rng: np.random.Generator) -> list[npt.NDArray[Any]]:
    """Return a random observation. Masks have at least one valid action for each choice."""
    drawn: list[npt.NDArray[Any]] = []
    for element in space.elements():
        if isinstance(element, Discrete):
            value: Any = rng.integers(element.start, element.start + element.n)
        elif isinstance(element, MultiDiscrete):
            value = rng.integers(0, element.nvec)
        elif element.dtype.kind == "f":
            value = rng.normal(2, 9, element.shape)
        elif isinstance(element, Box):
            most = {"bool": 2, "uint8": 256}.get(str(element.dtype), 10)
            value = rng.integers(-9 if element.dtype.kind == "i" else 0, most, element.shape)
        else:
            value = rng.integers(0, 2, element.shape)
        drawn.append(np.asarray(value, element.dtype))
    mask = mask_part("action_mask", space)
    if mask is not None:
        parts = [rng.random(count) < 0.3 for count in choices_of(action)]
        for part in parts:
            part[rng.integers(0, len(part))] = True
        drawn[mask] = np.concatenate(parts).reshape(drawn[mask].shape).astype(drawn[mask].dtype)
    return drawn


def recorded_outputs(policy: Policy) -> list[dict[str, npt.NDArray[np.float32]]]:
    """Return a list to which each action of the policy appends the outputs of its network."""
    actor, found = policy._agent._actor, []  # type: ignore[union-attr]
    assert isinstance(actor, NumpyActor)
    act = actor.act

    def recording(*arguments: Any) -> Any:
        outputs, state = act(*arguments)
        found.append({name: values[0].copy() for name, values in outputs.items()})
        return outputs, state

    actor.act = recording  # type: ignore[method-assign,assignment]
    return found


def masked_outputs(policy: Policy, leaves: list[npt.NDArray[Any]], outputs: npt.NDArray[Any]) -> npt.NDArray[Any]:
    graph = policy.graph()
    if graph.mask is None:
        return outputs
    masked: npt.NDArray[Any] = np.where(leaves[graph.mask].reshape(-1) != 0, np.maximum(outputs, LEAST_VALID), MASKED)
    return masked


def compare(policy: Policy, program: list[str], file: Path, steps: int = STEPS) -> float:
    """Compare a program with the policy over several episodes.

    Return the largest difference of an output. Outputs above 1 count in proportion to the largest of their head.
    """
    observation, action, heads = policy.observation_space, policy.action_space, policy.graph().heads
    outputs, rng = recorded_outputs(policy), np.random.default_rng(3)
    given, wanted, seen = b"", [], []
    for _ in range(steps):
        if rng.random() < 0.2:
            policy.reset()
            given += b"r"
        leaves = drawn_leaves(observation, action, rng)
        wanted.append(action.flatten(policy.act(observation.unflatten(leaves))))
        given += b"a" + b"".join(leaf.tobytes() for leaf in leaves)
        seen.append(leaves)
    answer, errors = run([*program, "act", str(file), *heads], given)
    assert not errors
    largest, at = 0.0, 0

    def part(dtype: npt.DTypeLike, count: int) -> npt.NDArray[Any]:
        nonlocal at
        array = np.frombuffer(answer, dtype, count, at)
        at += array.nbytes
        return array

    for leaves, expected, computed in zip(seen, wanted, outputs, strict=True):
        assert part(np.uint8, 1)[0] == 0
        for leaf in expected:
            np.testing.assert_allclose(part(leaf.dtype, leaf.size), leaf.reshape(-1), rtol=1e-5, atol=TOLERANCE)
        for head in heads:
            right = computed[head] if head.startswith("mean") else masked_outputs(policy, leaves, computed[head])
            found = part(np.float32, right.size)
            scale = max(1.0, float(np.abs(computed[head]).max()))
            largest = max(largest, float(np.abs(found - right).max()) / scale)
    assert at == len(answer)
    actions = np.stack([expected[0] for expected in wanted])
    assert len(np.unique(actions)) > 1, "the test needs more than one action"
    return largest


@pytest.mark.parametrize("name", POLICIES)
def test_policy_acts_like_in_python(tmp_path: Path, program: list[str], name: str) -> None:
    policy, file = policy_of(tmp_path, name), tmp_path / "policy.rlxp"
    file.write_bytes(game_file_of(policy))
    if is_godot(program) and b"\nconvolution " in file.read_bytes():
        assert "a convolution, which GDScript computes too slowly" in run([*program, "act", str(file)], b"")[1]
        return
    largest = compare(policy, program, file)
    print(f"{name}: {largest:.1e}")
    assert largest < TOLERANCE


@pytest.mark.parametrize("both", [False, True])
def test_dueling_streams_act_like_in_python(tmp_path: Path, program: list[str], both: bool) -> None:
    source = str(Path(__file__).parent.parent / "support" / "dueling_algorithm.py")
    path, *_ = write(tmp_path, load_algorithm(source, tmp_path), IMAGE, Discrete(4, 2), noise=NOISE, both=both)
    policy, file = relaax.policy.load(path, algorithm=source), tmp_path / "policy.rlxp"
    file.write_bytes(game_file_of(policy))
    if is_godot(program):
        pytest.skip("GDScript evaluates no convolutions, and this policy has some")
    assert compare(policy, program, file) < TOLERANCE


def test_header_compiles_as_cpp_and_with_fast_math(tmp_path: Path, c_program: list[str]) -> None:
    policy, file = policy_of(tmp_path, "half"), tmp_path / "policy.rlxp"
    file.write_bytes(game_file_of(policy))
    source, fast, other = CLIENTS / "c" / "tests" / "policy.c", tmp_path / "fast", tmp_path / "other"
    build("gcc", "-std=c99", "-O3", "-ffast-math", "-Wall", "-Wextra", "-Werror", source, "-o", fast, "-lm")
    build("g++", "-std=c++11", "-O2", "-Wall", "-Wextra", "-Werror", "-x", "c++", source, "-o", other)
    assert compare(policy, [str(fast)], file) < TOLERANCE
    given = b"a" + np.ones(3, np.float32).tobytes() + b"a" + np.array([1, np.nan, 2], np.float32).tobytes()
    answers = {run([*command, "act", str(file), "mean"], given)[0][-1] for command in ([str(fast)], [str(other)])}
    assert answers == {1}, "NaN is refused"


def test_both_headers_fit_in_one_program(tmp_path: Path, c_program: list[str]) -> None:
    text = '#define _POSIX_C_SOURCE 200809L\n#define RLX_IMPLEMENTATION\n#include "rlx.h"\n'
    text += '#define RLX_POLICY_IMPLEMENTATION\n#include "rlx_policy.h"\nint main(void) { return 0; }\n'
    (tmp_path / "game.c").write_text(text, "utf-8")
    build(
        "gcc",
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{CLIENTS / 'c'}",
        tmp_path / "game.c",
        "-c",
        "-o",
        "/dev/null",
    )


INVALID: dict[str, tuple[str, list[Any], str]] = {
    "nan": ("dense", [np.array([1, np.nan, 2], np.float32)], "leaf 0"),
    "infinity": ("dense", [np.array([1, -np.inf, 2], np.float32)], "leaf 0"),
    "choice": ("parts", [np.array(6), np.zeros(2), np.zeros((16, 20), np.uint8)], "leaf 0 .*2.* 5.* 6"),
    "mask": ("mask", [np.array([1, 0, 0, 0, 0, 1, 1, 1, 1], np.int8), np.zeros(3, np.float32)], "allows no action"),
}


@pytest.mark.parametrize("case", INVALID)
def test_invalid_observation_is_refused_without_effect(tmp_path: Path, program: list[str], case: str) -> None:
    name, invalid, sentence = INVALID[case]
    policy, file = policy_of(tmp_path, name), tmp_path / "policy.rlxp"
    file.write_bytes(game_file_of(policy))
    rng = np.random.default_rng(1)
    valid, wrong = (
        b"a" + b"".join(leaf.tobytes() for leaf in leaves)
        for leaves in (drawn_leaves(policy.observation_space, policy.action_space, rng), invalid)
    )
    command = [*program, "act", str(file)]
    (once, _), (answer, errors) = run(command, valid), run(command, wrong + valid)
    assert answer == b"\x01" + once
    assert re.search(sentence, errors), errors


def packed(files: list[bytes]) -> bytes:
    return b"".join(struct.pack("<I", len(file)) + file for file in files)


def signed(file: bytes) -> bytes:
    """Return the file with a correct checksum."""
    return file[:12] + struct.pack("<I", zlib.crc32(file[16:])) + file[16:]


def test_each_prefix_of_file_is_refused(tmp_path: Path, program: list[str]) -> None:
    file = game_file_of(policy_of(tmp_path, "plain"))
    prefixes = [file[:size] for size in range(len(file))]
    files = [*prefixes, *(signed(prefix) for prefix in prefixes[16:]), file + b"\0" * 4, signed(file + b"\0" * 4), file]
    lines = run([*program, "load"], packed(files))[0].decode().splitlines()
    assert lines[-1] == "loaded"
    assert "loaded" not in lines[:-1]
    assert lines[0].startswith("this is not a policy: `relaax checkpoints export LOCATION FILE.rlxp`")
    assert lines[100] == "the policy is damaged: its checksum differs"


def test_each_changed_byte_is_refused(tmp_path: Path, program: list[str]) -> None:
    file = game_file_of(policy_of(tmp_path, "plain"))
    files = [file[:at] + bytes([file[at] ^ 1 << at % 8]) + file[at + 1 :] for at in range(len(file))]
    lines = run([*program, "load"], packed(files))[0].decode().splitlines()
    assert len(lines) == len(file)
    assert "loaded" not in lines
    assert lines[4].startswith("the policy has version 17 of the format, and this ")


def changed(file: bytes, rng: np.random.Generator) -> bytes:
    """Return a file with a correct checksum and another header, or with NaN in an array."""
    size = struct.unpack_from("<I", file, 8)[0]
    lines, arrays = file[16 : 16 + size].decode().split("\n"), bytearray(file[16 + size :])
    for _ in range(rng.integers(1, 3)):
        at = int(rng.integers(0, len(lines)))
        words = lines[at].split(" ")
        kind = int(rng.integers(0, 8))
        if kind < 4:
            numbers = ["0", "1", "2", "-1", "7", "256", "65536", "67108864", "67108865", "9007199254740992"]
            other = ["99999999999999999999", "relu", "lstm", "float64", "int8", "", "a" * 70, "1e3", "0x1", "+1"]
            words[int(rng.integers(0, len(words)))] = str(rng.choice(numbers + other))
            lines[at] = " ".join(words)
        elif kind == 4:
            lines[at] = str(
                rng.choice(["", " ", f"{lines[at]} ", f" {lines[at]}", f"{lines[at]} 1", "# comment", "\t"])
            )
        elif kind == 5:
            lines.insert(at, lines[int(rng.integers(0, len(lines)))])
        elif kind == 6:
            lines.pop(at)
            lines = lines or [""]
        else:
            at = int(rng.integers(0, len(arrays) // 4)) * 4
            arrays[at : at + 4] = rng.choice(np.array([np.nan, np.inf, -1, 0], np.float32)).tobytes()
    header = "\n".join(lines).encode("ascii")
    return signed(file[:8] + struct.pack("<I", len(header)) + bytes(4) + header + bytes(arrays))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["dense", "lstm", "bools", "parts", "mask", "half"])
def test_languages_refuse_the_same_changed_files(
    tmp_path: Path, name: str, c_program: list[str], javascript_program: list[str], godot_program: list[str]
) -> None:
    """The sanitizers end the C program at the first finding."""
    file, rng = game_file_of(policy_of(tmp_path, name)), np.random.default_rng(5)
    files = [changed(file, rng) for _ in range(400)]
    programs = [c_program, javascript_program]
    if b"\nconvolution " not in file and len(file) < SMALL:
        programs.append(godot_program)
    answers = [run([*program, "load"], packed(files))[0].decode().splitlines() for program in programs]
    loaded = [[line == "loaded" for line in lines] for lines in answers]
    different = [at for at, given in enumerate(zip(*loaded, strict=True)) if len(set(given)) > 1]
    assert not different, [(files[at][:800], *(lines[at] for lines in answers)) for at in different[:3]]
    assert 0 < sum(loaded[0]) < len(files) / 2
    assert all(line.startswith(("loaded", "the policy is damaged: ")) for lines in answers for line in lines)


def cartpole_file(folder: Path) -> None:
    path, *_ = write(folder, bundled("da3c"), Box(shape=(4,)), Discrete(2))
    (folder / "cartpole.rlxp").write_bytes(game_file_of(relaax.policy.load(path)))


def test_c_program_of_readme_acts(tmp_path: Path, c_program: list[str]) -> None:
    (tmp_path / "game.c").write_text(block(CLIENTS / "c" / "README.md", "act"), "utf-8")
    build(
        "gcc", "-std=c99", "-Wall", "-Werror", f"-I{CLIENTS / 'c'}", tmp_path / "game.c", "-o", tmp_path / "game", "-lm"
    )
    missing = subprocess.run([tmp_path / "game"], cwd=tmp_path, capture_output=True, text=True)
    assert (missing.returncode, missing.stdout[:22]) == (2, "this is not a policy: ")
    cartpole_file(tmp_path)
    done = subprocess.run([tmp_path / "game"], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_javascript_program_of_readme_acts(tmp_path: Path, javascript_program: list[str]) -> None:
    cartpole_file(tmp_path)
    (tmp_path / "node_modules").mkdir()
    (tmp_path / "node_modules" / "relaax-rlx").symlink_to(CLIENTS / "javascript")
    (tmp_path / "act.mjs").write_text(block(CLIENTS / "javascript" / "README.md", "act.mjs"), "utf-8")
    assert run(["node", str(tmp_path / "act.mjs")], b"", tmp_path) == (b"", "")
