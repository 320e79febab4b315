"""The clients of protocol/clients: their own tests, the golden conversations, conformance, TLS, and learning."""

from __future__ import annotations

import copy
import dataclasses
import re
import shutil
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from relaax.conformance import scripts
from relaax.conformance.client import check_client, client_rules
from relaax.conformance.client_session import ClientSession
from relaax.conformance.vectors import golden
from relaax.rlx.wire.encoding import CAPABILITIES
from support.client_languages import CLIENTS, FUZZ, LANGUAGES, ROOT, Language, cartpole, placed, require
from support.findings import not_passed
from support.golden_clients import Different, Player, playable
from support.keys import Keys
from support.machine import need
from support.processes import Processes, Running
from support.run import Runs

pytestmark = pytest.mark.checks(
    "protocol", "relaax/conformance", "tests/clients/conftest.py", "tests/support/client_languages.py"
)

Built = Callable[[str], tuple[Language, Path]]

PATIENCE = 240.0
AUTORESET_RULES = {
    "reconnect_between_episodes",
    "server_returns_count",
    "server_returns_range",
}  # each applies to one autoreset mode
ASKING_RULES = {"out_of_step", "chosen_actions", *(f"{capability}_refused" for capability in CAPABILITIES)}
ASKING_RULES |= {rule.name for rule in client_rules("server_*parameters_*")}
"""Rules that do not apply to a client that does not ask for the capability."""
JSON_RULES = {rule.name for rule in client_rules("server_malformed_json_*")}
MANY_FUZZ = 1_000_000
each_language = pytest.mark.parametrize("name", LANGUAGES)


def language_of(name: str) -> Language:
    """Return the language; skip the test if its tools are missing."""
    require(LANGUAGES[name])
    return LANGUAGES[name]


def test_every_client_folder_is_listed() -> None:
    assert sorted(path.name for path in CLIENTS.iterdir() if path.is_dir()) == sorted(
        {language.folder.name for language in LANGUAGES.values()}
    )
    for language in LANGUAGES.values():
        assert (language.folder / "README.md").is_file()
        lines, code = language.lines()
        assert 0 < code < lines


@pytest.mark.slow
@pytest.mark.timeout(900)
@each_language
def test_clients_own_tests_pass(built: Built, name: str) -> None:
    language, out = built(name)
    for command in language.tests:
        language.run(command, out)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_c_client_survives_a_million_fuzzed_answers(built: Built, short: bool) -> None:
    """ASan and UBSan end the program at the first finding."""
    language, out = built("c")
    count = FUZZ if short else MANY_FUZZ
    output = language.run(("{out}/fuzz", str(count), "7"), out)
    assert re.match(rf"{count} fuzzed answers: \d+ understood, .*; nothing else happened\n$", output)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_sanitizer_finding_fails_the_fuzzer(tmp_path: Path) -> None:
    """Remove the check of a length, which is the kind of error that the fuzzer must find."""
    language = language_of("c")
    header = (language.folder / "rlx.h").read_text("utf-8")
    check = "    if (size > (size_t)(in->end - in->at)) return -1;\n"
    assert header.count(check) == 1
    (tmp_path / "tests").mkdir()
    (tmp_path / "rlx.h").write_text(header.replace(check, ""), "utf-8")
    for file in ("fuzz.c", "memory.h"):
        (tmp_path / "tests" / file).write_bytes((language.folder / "tests" / file).read_bytes())
    options = ("-std=c99", "-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    language.run(("gcc", *options, str(tmp_path / "tests/fuzz.c"), "-o", "{out}/fuzz"), tmp_path)
    with pytest.raises(AssertionError, match="Sanitizer"):
        language.run(("{out}/fuzz", str(FUZZ)), tmp_path)


FAULTS = {
    "omits_first": ("next_step_protobuf", "    rlx__put_mask(c, 6, c->rows);\n", ""),
    "omits_idle": ("out_of_step_same_step_protobuf", "    rlx__put_mask(c, 8, idle);\n", ""),
    "first_while_idle": ("out_of_step_same_step_protobuf", "c->between[i] && !rlx__on(idle, i);", "c->between[i];"),
    "checks_void_rows": ("out_of_step_next_step_protobuf", "c->rows[i] = !rlx__on(idle, i) ||", "c->rows[i] = 1 ||"),
    "omits_chosen": ("chosen_actions_many_protobuf", "    rlx__put_chosen(c, 9, chosen, action);\n", ""),
    "omits_chosen_in_reset": ("chosen_actions_one_protobuf", "    rlx__put_chosen(c, 5, chosen, action);\n", ""),
    "takes_parameters_for_others": (
        "environment_parameters_many_protobuf",
        "to[i % size * n + i / size] = rlx__double(p);",
        "to[i % size * n + (rows ? n - 1 : i / size)] = rlx__double(p);",
    ),
    "unsorted_keys": (
        "key_order_protobuf",
        "least = s->kind == RLX_TUPLE ? i : s->parts;\n            for (j = 0; s->kind == RLX_DICT && j < s->parts;",
        "least = i;\n            for (j = 0; j < 0;",
    ),
    "accepts_any_action": ("server_action_range", "return integer >= s->start &&", "return 1 || "),
    "any_version": ("server_welcome_version", "    if (version != 1) return RLX__VERSION;\n", ""),
    "wrong_nonce": (
        "metrics_ping_bye_protobuf",
        "rlx__put_integer(c, 1, nonce);",
        "rlx__put_integer(c, 1, nonce + 1);",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_golden_conversation_finds_a_faulty_client(tmp_path: Path, fault: str) -> None:
    language = language_of("c")
    conversation, right, wrong = FAULTS[fault]
    header = (language.folder / "rlx.h").read_text("utf-8")
    assert header.count(right) == 1
    (tmp_path / "tests").mkdir()
    (tmp_path / "rlx.h").write_text(header.replace(right, wrong), "utf-8")
    (tmp_path / "tests/play.c").write_bytes((language.folder / "tests/play.c").read_bytes())
    language.run(("gcc", "-std=c99", "-O1", str(tmp_path / "tests/play.c"), "-o", "{out}/play"), tmp_path)
    with Player([str(tmp_path / "play")], tmp_path) as player, pytest.raises(Different):
        player.play(golden(conversation), one_by_one=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "file"), [("c", "page.c"), pytest.param("rust", "examples/page.rs", marks=pytest.mark.slow)]
)
def test_example_program_of_the_readme_compiles(tmp_path: Path, name: str, file: str) -> None:
    """The program is compiled but not run: without a server it would retry for minutes."""
    language = language_of(name)
    page = (language.folder / "README.md").read_text("utf-8")
    (program,) = re.findall(rf"```{name}\n(.*?)```", page, re.DOTALL)
    folder = tmp_path / name
    shutil.copytree(language.folder, folder, ignore=shutil.ignore_patterns("build", "target"))
    (folder / file).write_text(program, "utf-8")
    strict = ("gcc", "-std=c99", "-Wall", "-Wextra", "-Werror", str(folder / file), f"-I{folder}", "-o", "{out}/page")
    manifest = str(folder / "Cargo.toml")
    cargo = ("cargo", "build", "--quiet", "--manifest-path", manifest, "--example", "page", "--target-dir", "{out}")
    language.run(strict if name == "c" else cargo, tmp_path)


@pytest.mark.slow
def test_c_header_is_installed_for_pkg_config(tmp_path: Path) -> None:
    language = language_of("c")
    language.run(("make", "-s", "install", "DESTDIR={out}", "PREFIX=/opt/rlx"), tmp_path)
    found = (tmp_path / "opt/rlx/lib/pkgconfig/rlx.pc").read_text("utf-8")
    assert "prefix=/opt/rlx\n" in found
    for header in ("rlx.h", "rlx_policy.h"):
        assert (tmp_path / "opt/rlx/include" / header).read_bytes() == (language.folder / header).read_bytes()
    version = re.search(r'RLX_VERSION "(.*)"', (language.folder / "rlx.h").read_text("utf-8"))
    assert version is not None
    assert f"Version: {version[1]}\n" in found


@pytest.mark.slow
@pytest.mark.timeout(900)
@each_language
def test_client_plays_the_golden_conversations(built: Built, name: str) -> None:
    language, out = built(name)
    with Player(placed(language.play, out), language.folder) as player:
        for conversation in playable():
            for one_by_one in (False, True):
                player.play(conversation, one_by_one)


NAMES = ("act latency on client", "1st", "é (mm)", "/a", "//a/b", "a\tb", "a\n", "\U0001f40e 9%", "x" * 99, "è" * 99)


@pytest.mark.slow
@pytest.mark.timeout(900)
@each_language
def test_client_normalizes_metric_names(built: Built, name: str) -> None:
    """A character of several bytes, or of several code units of the language, becomes one `_`."""
    language, out = built(name)
    asked = copy.deepcopy(golden("metrics_names_json"))
    welcome, metrics, *others = (entry for entry in asked.entries[1:])
    welcome["message"]["welcome"]["limits"] |= {"maxMetricNameBytes": 99, "maxMetricNames": len(NAMES)}
    metrics["message"]["metrics"]["scalars"] = [{"name": one, "value": at} for at, one in enumerate(NAMES)]
    entries = [asked.entries[0], welcome, metrics, *(one for one in others if "metrics" not in one["message"])]
    with Player(placed(language.play, out), language.folder) as player:
        player.play(dataclasses.replace(asked, entries=entries), one_by_one=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
@each_language
def test_long_hello_has_no_bounds_of_observations(built: Built, name: str) -> None:
    """The observation is a box in a tuple in a dict. The bounds of actions are sent."""
    language, out = built(name)
    conversation = copy.deepcopy(golden("metrics_names_json"))
    hello, welcome = conversation.entries[:2]
    box = {"dtype": "DTYPE_FLOAT32", "shape": [9000]}
    spaces = [
        {"dict": {"entries": [{"key": "key", "space": {"tuple": {"spaces": [{"box": one}]}}}]}}
        for one in (box, box | {"low": [float(bound) for bound in range(9000)]})
    ]
    action = {"box": {"dtype": "DTYPE_FLOAT32", "shape": [2], "low": [-3, -2], "high": [4, 5]}}
    sent, asked = ({**hello["message"]["hello"], "observationSpace": one, "actionSpace": action} for one in spaces)
    welcome["message"]["welcome"]["limits"] |= {"maxFrameBytes": 1 << 20}
    entries = [hello | {"message": {"hello": sent}, "asked": {"hello": asked}}, welcome]
    with Player(placed(language.play, out), language.folder) as player:
        player.play(dataclasses.replace(conversation, entries=entries), one_by_one=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("autoreset", ["same_step", "next_step", "disabled"])
@each_language
def test_client_passes_the_conformance_check(built: Built, name: str, autoreset: str, short: bool) -> None:
    language, out = built(name)
    command = cartpole(language, out, "--environments", "3", "--autoreset", autoreset, "--episodes", "1000")
    rules = client_rules("*" if autoreset == "same_step" or not short else "[elrtv]*")
    report = check_client(command, 60.0, rules, jobs=4)
    assert not report.failed, not_passed(report)
    others = AUTORESET_RULES - ({"reconnect_between_episodes"} if autoreset == "next_step" else set())
    assert set(not_passed(report)) <= others | JSON_RULES | ASKING_RULES


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_client_written_from_the_specification_alone_passes(short: bool) -> None:
    """The client is in Perl, and its author used protocol/RLX.md only."""
    need("perl")
    if subprocess.run(["perl", "-MJSON::PP", "-e1"], capture_output=True, check=False).returncode:
        pytest.skip("this machine's Perl lacks its core modules: apt install perl")
    command = ["perl", str(ROOT / "tests/clients/stranger.pl"), "{address}"]
    report = check_client(command, 60.0, client_rules("[evlt][!n]*" if short else "*"), jobs=4)
    assert not report.failed, not_passed(report)
    assert set(not_passed(report)) == ({"reconnect_between_episodes"} | ASKING_RULES if not short else set())


def elliptic_keys(folder: Path) -> Path:
    """Return a folder with the keys of `relaax keys`."""
    return Keys(folder).folder


def rsa_keys(folder: Path) -> Path:
    """Return a folder with an authority and its certificate for localhost, both with RSA keys."""
    folder.mkdir()
    now = datetime.now(timezone.utc)
    authority, server = (rsa.generate_private_key(65537, 2048) for _ in range(2))
    for name, key, signs in (("ca", authority, True), ("server", server, False)):
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{folder.name} {name}")]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{folder.name} ca")]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(signs, None), critical=True)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        )
        certificate = builder.sign(authority, hashes.SHA256())
        (folder / f"{name}.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    pem = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "server-key.pem").write_bytes(server.private_bytes(*pem))
    return folder


class TlsServer:
    """A server of one client over TLS. `answers` is the number of its answers, or None if the TLS handshake fails."""

    def __init__(self, keys: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(keys / "server.pem", keys / "server-key.pem")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(PATIENCE)
        self.answers: int | None = None
        self.connections = 0
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        return f"localhost:{self._listener.getsockname()[1]}"

    def _serve(self) -> None:
        sock, _ = self._listener.accept()
        self.connections += 1
        sock.settimeout(PATIENCE)
        try:
            with self._context.wrap_socket(sock, server_side=True) as secure:
                session = ClientSession(secure, 0, PATIENCE)
                try:
                    scripts.serve()(session)
                finally:
                    self.answers = session.answers
        except (OSError, Exception):  # the client does not trust this server
            return

    def close(self) -> int:
        """Stop the server, and return the number of connections."""
        self._thread.join(PATIENCE)
        self._listener.settimeout(0.1)
        try:
            self._listener.accept()
            self.connections += 1
        except TimeoutError:
            pass
        self._listener.close()
        return self.connections


def keys_for(name: str, folder: Path) -> Path:
    """Return server keys that the language supports: Mono does not support elliptic curves."""
    return rsa_keys(folder) if name == "csharp" else elliptic_keys(folder)


def start_tls_client(processes: Processes, language: Language, out: Path, server: TlsServer, trusted: Path) -> Running:
    """Start a client that trusts the authority in the folder `trusted`."""
    words = cartpole(language, out, "--tls-ca", str(trusted / "ca.pem"))
    return processes.start(*(word.replace("{address}", server.address) for word in words))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [language.name for language in LANGUAGES.values() if language.tls])
def test_client_uses_tls_and_checks_the_authority(
    built: Built, name: str, tmp_path: Path, processes: Processes
) -> None:
    """It plays over TLS. If the authority is unknown, it sends no message and does not reconnect."""
    language, out = built(name)
    keys, other_keys = keys_for(name, tmp_path / "keys"), keys_for(name, tmp_path / "other")
    for trusted in (keys, other_keys):
        server = TlsServer(keys)
        client = start_tls_client(processes, language, out, server, trusted)
        code = client.wait(PATIENCE)
        assert server.close() == 1
        if trusted is keys:
            assert (code, server.answers) == (0, scripts.ANSWERS), client.report()
        else:
            assert code == 1, client.report()
            assert "TLS" in client.stderr
            assert not server.answers


class BreakingTlsServer(TlsServer):
    """A server that breaks three connections: in the handshake, after an answer, and with bytes that are not TLS.

    The fourth connection is served to its end.
    """

    served = 0

    def _serve(self) -> None:
        for last in (None, b"", bytes(64), None):
            sock, _ = self._listener.accept()
            self.connections += 1
            with sock:
                sock.settimeout(PATIENCE)
                if last is None and self.served == 0:
                    sock.recv(1 << 16)
                else:
                    self._play(sock, last)
            self.served += 1

    def _play(self, sock: socket.socket, last: bytes | None) -> None:
        with self._context.wrap_socket(sock, server_side=True) as secure:
            session = ClientSession(secure, 0, PATIENCE)
            if last is None:
                scripts.serve()(session)
                return
            session.welcome()
            session.answer()
            session.receive()
            with socket.socket(fileno=secure.detach()) as plain:
                plain.sendall(last)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [language.name for language in LANGUAGES.values() if language.tls])
def test_client_reconnects_after_a_broken_tls_connection(
    built: Built, name: str, tmp_path: Path, processes: Processes
) -> None:
    language, out = built(name)
    keys = keys_for(name, tmp_path / "keys")
    server = BreakingTlsServer(keys)
    client = start_tls_client(processes, language, out, server, keys)
    assert client.wait(PATIENCE) == 0, client.report()
    assert server.close() == 4
    assert server.served == 4


@pytest.mark.slow
@pytest.mark.timeout(900)
@each_language
def test_cartpole_is_learned_through_the_client(
    built: Built, runs: Runs, name: str, short: bool, tmp_path: Path
) -> None:
    """Four connections, each with four environments; random play returns 20."""
    language, out = built(name)
    target = 100 if short else 475
    document = yaml.safe_load((ROOT / "config/da3c_gym_cartpole.yaml").read_text("utf-8"))
    words = [word for word in cartpole(language, out) if word != "{address}"]
    document["relaax-run"] |= {
        "environment": str(ROOT / "tests/support/started_client.py"),
        "arguments": [str(tmp_path), *words],
        "target-return": target,
    }
    document["algorithm"]["path"] = str(ROOT / "algorithms/da3c")
    config = tmp_path / "cartpole.yaml"
    config.write_text(yaml.safe_dump(document), "utf-8")
    run = runs.start("--seed", "11", "--no-progress", config=config)
    assert run.running.wait(600) == 0, run.running.report()
    summary = run.summary
    print(name, "steps", summary["env_steps"], "return", summary["mean_return_100"])
    assert summary["status"] == "target_reached"
    assert summary["mean_return_100"] >= target
