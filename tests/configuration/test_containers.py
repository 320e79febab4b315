"""The compose file and the Dockerfiles are consistent. tests/integration/test_images.py runs them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from relaax.bundled import bundled_folder
from relaax.server.parameter_server import main as parameter_server
from relaax.server.rlx_server import main as rlx_server

ROOT = Path(__file__).parents[2]
FAMILIES = {path.parent.name: path.read_text("utf-8") for path in (ROOT / "environments").glob("*/Dockerfile")}
DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text("utf-8")
COMPOSE = (ROOT / "docker" / "compose.yaml").read_text("utf-8")
APPS = {"relaax-parameter-server": parameter_server.app, "relaax-rlx-server": rlx_server.app}


def title(dockerfile: str) -> str:
    """Return the image's name."""
    return str(re.findall(r'org.opencontainers.image.title="([\w-]+)"', dockerfile)[-1])


def services() -> dict[str, Any]:
    """Return the services of the compose file, with the defaults of its variables."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", COMPOSE)
    assert "${" not in text, "a variable without a default"
    found: dict[str, Any] = yaml.safe_load(text)
    for made in found["services"].values():
        assert set(made["networks"]) <= set(found["networks"])
        assert {volume.partition(":")[0] for volume in made.get("volumes", ())} <= set(found["volumes"])
        assert set(made.get("depends_on", {})) <= set(found["services"])
    return dict(found["services"])


def test_compose_file_uses_only_built_images() -> None:
    targets = set(re.findall(r"(?m)^FROM \S+ AS (\S+)$", DOCKERFILE))
    built = {"relaax", *map(title, FAMILIES.values())}
    assert {"relaax", "relaax-environment"} <= targets
    assert {made["image"] for made in services().values()} <= built
    for made in services().values():
        if "build" in made:
            assert made["build"]["target"] == made["image"]
            assert (ROOT / "docker" / made["build"]["context"] / made["build"]["dockerfile"]).is_file()


@pytest.mark.parametrize("name", ["parameter-server", "rlx-server"])
def test_servers_of_the_compose_file_check_their_configuration(name: str) -> None:
    program, *arguments = services()[name]["command"]
    arguments = [word.replace("/config/", f"{bundled_folder('config')}/") for word in arguments]
    result = CliRunner().invoke(APPS[program], [*arguments, "--check-config"])
    assert result.exit_code == 0, result.output


def test_client_of_the_compose_file_names_a_service_and_game() -> None:
    found = services()
    for name in ("environment", "display"):
        address, game, count = found[name]["command"]
        assert address in found
        assert game == "boxing"
        assert count == ("display" if name == "display" else "4")


@pytest.mark.parametrize("family", FAMILIES)
def test_family_image_is_based_on_environment_image(family: str) -> None:
    dockerfile = FAMILIES[family]
    assert re.findall(r"(?m)^FROM (.*)$", dockerfile)[-1] == "relaax-environment"
    assert re.findall(r"(?m)^USER (.*)$", dockerfile)[-1] == "relaax"
    entrypoint = json.loads(re.findall(r"(?m)^ENTRYPOINT (.*)$", dockerfile)[-1])
    assert entrypoint == ["tini", "-e", "143", "--", f"/environments/{family}/main"]
    assert (ROOT / "environments" / family / "main").is_file()


def test_each_family_has_its_own_image() -> None:
    assert {"ALE", "OpenAI_Gym"} <= set(FAMILIES)
    assert len({title(text) for text in FAMILIES.values()}) == len(FAMILIES)
