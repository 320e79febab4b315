"""A missing library is named with the extra that installs it."""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

import pytest
import tomllib
from packaging.requirements import Requirement

from relaax.libraries import EXTRAS, missing, named


def not_found(name: str) -> ModuleNotFoundError:
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_known_extras_are_those_of_package() -> None:
    extras = importlib.metadata.metadata("relaax").get_all("Provides-Extra") or []
    assert {extra for known in EXTRAS.values() for extra in known} == set(extras) - {"dev"}


@pytest.mark.parametrize("extra", ["server", "policy"])
def test_every_library_of_an_extra_is_known(extra: str) -> None:
    lines = [line for line in importlib.metadata.requires("relaax") or [] if f'extra == "{extra}"' in line]
    known = {
        "grpcio": "grpc",
        "grpcio-health-checking": "grpc_health",
        "grpcio-reflection": "grpc_reflection",
        "prometheus-client": "prometheus_client",
        "pyyaml": "yaml",
    }
    libraries = {re.split(r"[^\w-]", line, maxsplit=1)[0] for line in lines}
    assert {known.get(library, library) for library in libraries} == {
        library for library, extras in EXTRAS.items() if extra in extras
    }


def test_boto3_extra_excludes_versions_before_1_36() -> None:
    """`request_checksum_calculation` and `response_checksum_validation` were added in botocore 1.36.0."""
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (boto3,) = map(Requirement, project["optional-dependencies"]["s3"])
    assert boto3.name == "boto3"
    assert not boto3.specifier.contains("1.35.99")
    assert boto3.specifier.contains("1.36.0")


def test_missing_library_is_found_in_submodule_and_cause() -> None:
    assert missing(not_found("grpc.aio")) == "grpc is not installed; pip install 'relaax[server]'"
    assert missing(not_found("yaml")) == "yaml is not installed; pip install 'relaax[server]'"
    assert missing(not_found("yaml"), "policy") == "yaml is not installed; pip install 'relaax[policy]'"
    assert missing(not_found("grpc"), "policy") == "grpc is not installed; pip install 'relaax[server]'"
    try:
        try:
            raise not_found("Box2D")
        except ModuleNotFoundError as error:
            raise ValueError("cannot make it") from error
    except ValueError as error:
        assert missing(error) == "Box2D is not installed; pip install 'relaax[box2d]'"


@pytest.mark.parametrize("error", [not_found("relaax.cli.run"), not_found("scipy"), ValueError("grpc"), OSError()])
def test_other_errors_give_no_install_hint(error: Exception) -> None:
    assert missing(error) is None


def test_command_exits_with_install_hint(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, named("relaax"):
        raise not_found("tensorflow")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "relaax: tensorflow is not installed; pip install 'relaax[tensorflow]'\n"
    with pytest.raises(ModuleNotFoundError, match="scipy"), named("relaax"):
        raise not_found("scipy")
