"""Types of configuration keys. They validate the values of files, variables and command lines."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Literal

import pydantic
from pydantic import Field

from relaax.configuration.validation import ConfigurationError


class UnknownHomeError(ConfigurationError, ValueError):
    """A path with an unknown home directory. A container may have neither HOME nor an entry for the user."""


def expand_home(path: str | Path, key: str = "") -> Path:
    """Replace `~` and `~USER` at the beginning of a path. Raises UnknownHomeError, whose message begins with `key`."""
    text = str(path)
    expanded = os.path.expanduser(text)
    if expanded.startswith("~"):
        user = text[1:].partition("/")[0]
        whose = f"of {user} is unknown" if user else "is unknown: set HOME"
        named = f"{key}: " if key else ""
        raise UnknownHomeError(f"{named}{text}: the home directory {whose}; or give an absolute path")
    return Path(expanded)


_ORIGIN = r"null|[a-z][a-z0-9+.-]*://[a-z0-9._:\[\]-]+"
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
LogLevel = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


def _address(value: str) -> str:
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError("an address is HOST:PORT, such as localhost:7001")
    return value


def _origin(value: str) -> str:
    if value.endswith(_DEFAULT_PORTS.get(value.partition(":")[0], " ")):
        raise ValueError("browsers omit the default port of a scheme: omit it here too")
    if re.fullmatch(_ORIGIN, value) is None:
        raise ValueError(
            "an origin is scheme://host or scheme://host:port in lower case, without a path, such as "
            "https://games.example.org; null means pages without an origin, such as files"
        )
    return value


def _server(value: str) -> str:
    return value if value.startswith("@") and value[1:] else _address(value)


def _check_single_file(value: list[str]) -> list[str]:
    if len(value) > 1 and any(address.startswith("@") for address in value):
        raise ValueError("@FILE lists all addresses, one on each line, and must be given alone")
    return value


def _device(value: str) -> str:
    kind, colon, index = value.partition(":")
    if value != "cpu" and (kind != "gpu" or (colon and not (index.isascii() and index.isdecimal()))):
        raise ValueError("a device is cpu, gpu (the first one) or gpu:I, such as gpu:1")
    return value


def _addresses(value: object) -> object:
    """Split a text of addresses at its commas; return a list unchanged."""
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _folder(value: str) -> str:
    if "://" in value:
        raise ValueError("the path of a folder is needed; for S3, use the key that ends in _aws_s3")
    return str(expand_home(value)) if value.startswith("~") else value


_AMOUNT = r"\d+(?:\.\d+)?"
_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_DURATION = "".join(rf"(?:({_AMOUNT}){unit})?" for unit in _UNITS)


def _seconds(value: object) -> object:
    """Convert a text such as 90s or 1h30m to seconds; return a number unchanged."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if re.fullmatch(_AMOUNT, text):
        return float(text)
    found = re.fullmatch(_DURATION, text)
    if found is None or not text:
        raise ValueError("a time is a number of seconds, or has units: 90s, 15m, 2h, 1h30m, 3d")
    return sum(float(amount) * unit for amount, unit in zip(found.groups(), _UNITS.values(), strict=True) if amount)


def _wrapper(value: object) -> object:
    """Check that a value is a name, or one name with arguments."""
    given = list(value.values()) if isinstance(value, dict) else [None]
    if isinstance(value, str | dict) and len(given) == 1 and isinstance(given[0], dict | None):
        return value
    raise ValueError("a wrapper is a name, or one name with its arguments: {ResizeObservation: {shape: [84, 84]}}")


def _word(value: object) -> object:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Address = Annotated[
    str, pydantic.AfterValidator(_address), pydantic.WithJsonSchema({"type": "string", "pattern": r"^.+:[0-9]{1,5}$"})
]
Origin = Annotated[
    str, pydantic.AfterValidator(_origin), pydantic.WithJsonSchema({"type": "string", "pattern": f"^({_ORIGIN})$"})
]
Device = Annotated[
    str,
    pydantic.AfterValidator(_device),
    pydantic.WithJsonSchema({"type": "string", "pattern": "^(cpu|gpu(:[0-9]+)?)$"}),
]
# The address of a server to connect to, or @FILE with it, which is read again when the server moves.
ServerAddress = Annotated[
    str,
    pydantic.AfterValidator(_server),
    pydantic.WithJsonSchema({"type": "string", "pattern": r"^(@.+|.+:[0-9]{1,5})$"}),
]
NoneOrAddresses = Annotated[
    list[ServerAddress],
    pydantic.BeforeValidator(_addresses),
    pydantic.AfterValidator(_check_single_file),
    pydantic.WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]
Addresses = Annotated[NoneOrAddresses, Field(min_length=1)]
Folder = Annotated[str, pydantic.AfterValidator(_folder)]
Duration = Annotated[
    float,
    Field(gt=0),
    pydantic.BeforeValidator(_seconds),
    pydantic.WithJsonSchema(
        {"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string", "pattern": f"^({_AMOUNT}[dhms]?)+$"}]}
    ),
]
# BUCKET and KEY: objects are stored under KEY/ in BUCKET.
S3Location = Annotated[list[str], Field(min_length=2, max_length=2)]
LogFormat = Literal["text", "json"]
Wrapper = Annotated[
    str | dict[str, dict[str, pydantic.JsonValue] | None],
    pydantic.BeforeValidator(_wrapper),
    pydantic.WithJsonSchema(
        {"anyOf": [{"type": "string"}, {"type": "object", "minProperties": 1, "maxProperties": 1}]}
    ),
]
# A word of a command line may look like a number in YAML.
Word = Annotated[
    str, pydantic.BeforeValidator(_word), pydantic.WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "number"}]})
]

# Keys that several sections have, each with its description.
LogLevelKey = Annotated[LogLevel, Field(description="Least severe level to log.")]
LogFormatKey = Annotated[LogFormat, Field(description="json: one object per line.")]
StatusBind = Annotated[Address | None, Field(description="Address of /healthz and /metrics (Prometheus).")]
TlsCertificate = Annotated[str | None, Field(description="This server's certificate (PEM file); enables TLS.")]
TlsKey = Annotated[str | None, Field(description="The certificate's private key (PEM file).")]
OwnKey = Annotated[str | None, Field(description="That certificate's private key (PEM file).")]
CheckpointDir = Annotated[Folder | None, Field(description="Folder of the checkpoints; null: none.")]
CheckpointAwsS3 = Annotated[S3Location | None, Field(description="Bucket and key for checkpoints in S3.")]
AwsKeysFile = Annotated[
    str | None,
    Field(description="YAML file with `access` and `secret` for S3; default: boto3's credentials."),
]
AwsEndpoint = Annotated[str | None, Field(description="URL of an S3-compatible store.")]
CheckpointInterval = Annotated[
    float,
    Field(
        gt=0,
        description="Seconds between checkpoints; the first four come sooner.",
    ),
]
ParameterServers = Annotated[
    Addresses,
    Field(description="Addresses of all parameter servers in the order of shards, or @FILE."),
]
ParameterServerTokenFile = Annotated[
    str | None,
    Field(description="File with the parameter server's token; default: the variable RELAAX_PARAMETER_SERVER_TOKEN."),
]
ParameterServerCa = Annotated[
    str | None,
    Field(description="CA (PEM file) of the parameter server's certificate; enables TLS."),
]
ReplayServerTokenFile = Annotated[
    str | None,
    Field(description="File with the replay servers' token; default: the variable RELAAX_REPLAY_SERVER_TOKEN."),
]
ReplayServerCa = Annotated[
    str | None,
    Field(description="CA (PEM file) of the replay servers' certificates; enables TLS."),
]
