"""Read the file with the S3 keys of an account: YAML with `access` and `secret`, and nothing else."""

from __future__ import annotations

import functools
import logging
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from relaax.configuration import ConfigurationError
from relaax.configuration.home import with_home
from relaax.configuration.keys import unknown
from relaax.configuration.yaml_file import read_yaml

_log = logging.getLogger(__name__)
_NAMES = ("access", "secret")


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """The credentials of an account. Neither is ever shown."""

    access: str = field(repr=False)
    secret: str = field(repr=False)


def read_keys(path: Path | str) -> AwsKeys:
    """Read the keys from a file. Raises ConfigurationError, whose message contains no value of the file."""
    file = with_home(path, "aws_keys")
    try:
        value = read_yaml(file)
    except ConfigurationError as error:
        raise ConfigurationError(f"aws_keys: {error}") from None
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"aws_keys: {file}: two lines are needed, `access: ...` and `secret: ...`")
    for name in value:
        if name not in _NAMES:
            raise ConfigurationError(f"aws_keys: {file}: {unknown('key', str(name), _NAMES)}")
    for name in _NAMES:
        if not isinstance(value.get(name), str) or not value[name]:
            what = "is missing" if name not in value else "is no text; put it into quotes"
            raise ConfigurationError(f"aws_keys: {file}: {name!r} {what}")
    if file.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        _warn(file)
    return AwsKeys(value["access"], value["secret"])


@functools.cache  # keys that were refused are read again and again
def _warn(file: Path) -> None:
    _log.warning("everybody on this machine can read %s, which holds secret keys: chmod 600 %s", file, file)
