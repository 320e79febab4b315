"""Checks of hello and welcome, and the limit on the frames of a connection."""

from __future__ import annotations

import dataclasses
import math
import re

from relaax.rlx.errors import ErrorCode, ProtocolError, above_maximum, below_one, too_many_bytes
from relaax.rlx.leaf_checks import check_numbers
from relaax.rlx.messages import (
    MAX_ENVIRONMENT_PARAMETERS,
    MAX_ENVIRONMENTS,
    MAX_FRAME_SKIP,
    Autoreset,
    Hello,
    Limits,
    Welcome,
)
from relaax.rlx.spaces import Space
from relaax.rlx.wire.decoding import check_version
from relaax.rlx.wire.encoding import CAPABILITIES
from relaax.rlx.wire.framing import HANDSHAKE_FRAME_BYTES
from relaax.rlx.wire.space_encoding import check_space

MAX_TEXT_BYTES = 256  # of each name and version
MAX_TOKEN_BYTES = 4096
_LEAST_FRAME_BYTES = 2**20  # lowest result of `limits_for`: room for metrics and for fields of later versions
PARAMETER_BYTES = 32 * MAX_ENVIRONMENT_PARAMETERS
"""The longest parameters of an environment in a frame: a double takes less than 32 bytes of JSON."""
_SESSION_ID = re.compile(r"[A-Za-z0-9_-]{0,128}")


def check_hello(hello: Hello, max_frame_bytes: int, codec: str) -> None:
    """Raise ProtocolError if a hello is invalid, whatever the algorithm is."""
    check_version(hello.protocol_version, "the client speaks")
    for name in ("client_name", "client_version", "environment", "host"):
        _check_text(name, getattr(hello, name), MAX_TEXT_BYTES)
    _check_text("token", hello.token, MAX_TOKEN_BYTES)
    _check_session_id(hello.session_id)
    if hello.environments < 1:
        raise _invalid(below_one("environments", hello.environments))
    if hello.frame_skip < 0:
        raise _invalid(f"frame_skip must be at least 0, not {hello.frame_skip}")
    for name, most in (("environments", MAX_ENVIRONMENTS), ("frame_skip", MAX_FRAME_SKIP)):
        if getattr(hello, name) > most:
            raise ProtocolError(ErrorCode.LIMIT_EXCEEDED, above_maximum(name, getattr(hello, name), most))
    if len(hello.autoreset) not in (1, hello.environments):
        found = f"has {len(hello.autoreset)} entries" if hello.autoreset else "is missing"
        raise _invalid(f"autoreset {found}; {hello.environments} environments have 1 entry, or one each")
    check_space(hello.observation_space, "observation_space")
    check_space(hello.action_space, "action_space")
    least = _least_frame_bytes(hello, codec)
    if least > max_frame_bytes:
        raise ProtocolError(
            ErrorCode.LIMIT_EXCEEDED,
            f"{hello.environments} environments of these spaces need frames of more than {least} bytes;"
            f" the limit is {max_frame_bytes}",
        )


def check_welcome(welcome: Welcome, hello: Hello, codec: str) -> None:
    """Raise ProtocolError if a welcome is invalid as the answer to this hello."""
    check_version(welcome.protocol_version, "the server answers in")
    for name in ("server_version", "algorithm"):
        _check_text(name, getattr(welcome, name), MAX_TEXT_BYTES)
    _check_session_id(welcome.session_id)
    for name in CAPABILITIES:
        if getattr(welcome, name) and not getattr(hello, name):
            raise _invalid(f"{name} is true in the welcome, and the hello did not ask for it")
    check_first_parameters(welcome, hello.environments)
    limits = welcome.limits
    for name in ("idle_timeout_seconds", "heartbeat_seconds"):
        seconds = getattr(limits, name)
        if not 0 < seconds < math.inf:
            raise _invalid(f"limits.{name} must be positive and finite, not {seconds}")
    least = max(1, _least_frame_bytes(hello, codec))
    if limits.max_frame_bytes < least:
        raise ProtocolError(
            ErrorCode.LIMIT_EXCEEDED,
            f"limits.max_frame_bytes is {limits.max_frame_bytes}; these environments need more than {least}",
        )


def limits_for(hello: Hello, limits: Limits) -> Limits:
    """Return `limits` with `max_frame_bytes` reduced to what this client can need, to bound the memory that it uses."""
    observation, action = nbytes(hello.observation_space), nbytes(hello.action_space)
    # base64 turns 3 bytes into 4; an environment's numbers, masks and episodes take less than 256 bytes of JSON
    per_environment = 3 * max(2 * observation, action) // 2 + 256
    leaves = sum(1 for _ in hello.observation_space.elements()) + sum(1 for _ in hello.action_space.elements())
    if hello.chosen_actions:
        per_environment += 3 * action // 2
    if hello.environment_parameters:
        per_environment += PARAMETER_BYTES
    needed = hello.environments * per_environment + leaves * 512
    return dataclasses.replace(limits, max_frame_bytes=min(limits.max_frame_bytes, max(needed, _LEAST_FRAME_BYTES)))


def longest_welcome(hello: Hello) -> int:
    """Return the longest frame of a welcome to this hello, in bytes."""
    return HANDSHAKE_FRAME_BYTES + (PARAMETER_BYTES * hello.environments if hello.environment_parameters else 0)


def nbytes(space: Space) -> int:
    """Return the size of one value of a space, in bytes."""
    return sum(element.nbytes for element in space.elements())


def _least_frame_bytes(hello: Hello, codec: str) -> int:
    """Return the encoded size, in bytes, of the arrays in the largest message that these environments need."""
    copies = 2 if Autoreset.SAME_STEP in hello.autoreset else 1
    observation, action = copies * nbytes(hello.observation_space), nbytes(hello.action_space)
    data = hello.environments * (observation + action if hello.chosen_actions else max(observation, action))
    return 4 * data // 3 if codec == "json" else data


def check_first_parameters(welcome: Welcome, environments: int) -> None:
    """Raise ProtocolError if the parameters of environments in a welcome are invalid."""
    names, values = welcome.parameter_names, welcome.parameters
    if (names or values is not None) and not welcome.environment_parameters:
        raise _invalid("parameters came with a welcome without environment_parameters")
    if len(names) > MAX_ENVIRONMENT_PARAMETERS:
        raise ProtocolError(
            ErrorCode.LIMIT_EXCEEDED, above_maximum("parameter_names", len(names), MAX_ENVIRONMENT_PARAMETERS)
        )
    for index, name in enumerate(names):
        _check_text(f"parameter_names[{index}]", name, MAX_TEXT_BYTES)
        if not name or name in names[:index]:
            raise _invalid(f"parameter_names[{index}] {'appears twice' if name else 'is empty'}")
    check_numbers("parameters", values, len(names) * environments)


def _check_text(name: str, text: str, most: int) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > most:
        raise too_many_bytes(name, size, most)
    if not text.isprintable():
        raise _invalid(f"{name} must not contain control characters")


def _check_session_id(session_id: str) -> None:
    if _SESSION_ID.fullmatch(session_id) is None:
        raise _invalid("session_id is at most 128 letters, digits, _ and -")


def _invalid(message: str) -> ProtocolError:
    return ProtocolError(ErrorCode.INVALID_VALUE, message)
