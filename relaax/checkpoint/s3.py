"""A store of checkpoints in a bucket of S3 or a compatible store. Errors never show a key, signature or token."""

from __future__ import annotations

import bisect
import functools
import io
import itertools
import logging
import os
import stat
import time
from collections.abc import Callable, Iterator, Mapping, MutableSequence, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore import exceptions as aws
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from relaax.checkpoint.store import (
    MAX_VALUE_BYTES,
    PIECE_BYTES,
    Conflict,
    NotFound,
    Store,
    StoreError,
    StoreUnavailable,
    Value,
    buffers_of,
    check_key,
    check_value_size,
    conflict,
    is_key,
)
from relaax.configuration import ConfigurationError, nearest
from relaax.configuration.key_types import expand_home
from relaax.configuration.validation import unknown
from relaax.configuration.yaml_file import read_yaml

_log = logging.getLogger(__name__)

_NAMES = ("access", "secret")


@dataclass(frozen=True, slots=True)
class AwsKeys:
    """The credentials of an account. `repr` shows neither of them."""

    access: str = field(repr=False)
    secret: str = field(repr=False)


def read_keys(path: Path | str) -> AwsKeys:
    """Read the keys from a file. Raises ConfigurationError, whose message contains no value of the file."""
    file = expand_home(path, "aws_keys")
    try:
        value = read_yaml(file)
    except ConfigurationError as error:
        raise ConfigurationError(f"aws_keys: {error}") from None
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"aws_keys: {file}: the file must have two lines, `access: ...` and `secret: ...`")
    for name in value:
        if name not in _NAMES:
            raise ConfigurationError(f"aws_keys: {file}: {unknown('key', str(name), _NAMES)}")
    for name in _NAMES:
        if not isinstance(value.get(name), str) or not value[name]:
            what = "is missing" if name not in value else "is not a text; put it in quotes"
            raise ConfigurationError(f"aws_keys: {file}: the value of {name!r} {what}")
    if file.stat().st_mode & (stat.S_IROTH | stat.S_IWOTH):
        _warn_readable_keys(file)
    return AwsKeys(value["access"], value["secret"])


@functools.cache  # after each refusal the keys are read again: warn only once
def _warn_readable_keys(file: Path) -> None:
    _log.warning("all users of this machine can read %s, which contains secret keys: chmod 600 %s", file, file)


class BufferFile(io.RawIOBase):
    """A file that reads `buffers` as if they were one buffer. Only the bytes that are read are copied."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = [buffer for buffer in buffers if buffer.nbytes]
        self._ends = list(itertools.accumulate(buffer.nbytes for buffer in self._buffers))
        self._at = 0

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = max(0, offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: len(self)}[whence])
        return self._at

    def readinto(self, target: object) -> int:
        view = memoryview(target).cast("B")  # type: ignore[arg-type]
        index = bisect.bisect_right(self._ends, self._at)
        if index == len(self._buffers):
            return 0
        buffer = self._buffers[index]
        piece = buffer[buffer.nbytes - (self._ends[index] - self._at) :][: view.nbytes]
        view[: piece.nbytes] = piece
        self._at += piece.nbytes
        return piece.nbytes


UNREACHABLE = (
    aws.HTTPClientError,  # refused, reset, timed out, no such host, no valid certificate
    aws.ResponseStreamingError,
    aws.IncompleteReadError,
    HTTPError,
    OSError,
)
_WRONG_KEYS = {
    "InvalidAccessKeyId": "rejects the access key as unknown",
    "SignatureDoesNotMatch": "rejects the secret key: it does not belong to the access key",
    "ExpiredToken": "rejects the keys: they have expired",
    "ExpiredTokenException": "rejects the keys: they have expired",
    "TokenRefreshRequired": "rejects the keys: they have expired",
    "InvalidToken": "rejects the session token",
    "RequestTimeTooSkewed": "rejects the keys: this machine's clock is wrong",
    "AuthorizationHeaderMalformed": "rejects the request: check the bucket's region and the endpoint",
}
_NO_KEYS = (aws.NoCredentialsError, aws.PartialCredentialsError, aws.CredentialRetrievalError)
_FORBIDDEN = ("AccessDenied", "AllAccessDisabled", "AccountProblem", "InvalidObjectState", "403", "Forbidden")
_BUSY = ("SlowDown", "503", "ServiceUnavailable", "InternalError", "500", "RequestTimeout", "ThrottlingException")


def code_of(error: aws.ClientError) -> str:
    """Return S3's code of the error, or else the HTTP status of the answer."""
    answer = error.response
    return str(answer.get("Error", {}).get("Code") or answer.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))


def status_of(error: aws.ClientError) -> int:
    """Return the HTTP status of the answer; 0 if it is unknown."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def display_url(endpoint: str | None) -> str:
    """Return a URL for display, without its password."""
    if endpoint is None:
        return "S3"
    if not is_url(endpoint):
        return repr(endpoint.rpartition("@")[2])
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def is_url(endpoint: str) -> bool:
    """Return whether `endpoint` is a valid URL of a store."""
    try:
        parts = urlsplit(endpoint)
        if any(character.isspace() for character in endpoint):
            return False
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.query
    except ValueError:  # an invalid host or port
        return False


def are_keys_refused(error: Exception) -> bool:
    """Return whether the store refused the keys, or no keys were found, so that other keys may help."""
    if isinstance(error, aws.ClientError):
        return code_of(error) in _WRONG_KEYS
    return isinstance(error, _NO_KEYS)


_CONFIGURATIONS = {
    aws.ProfileNotFound: "AWS_PROFILE: the profile {profile!r} is neither in ~/.aws/config nor in ~/.aws/credentials: "
    "name another one",
    aws.ConfigParseError: "{path} is not a valid configuration file of AWS: correct or remove it",
    aws.PartialCredentialsError: "incomplete S3 keys ({provider}): also set {cred_var}, or set neither",
}


@contextmanager
def configuration_errors(endpoint: str | None) -> Iterator[None]:
    """Convert errors of boto3's own configuration to ConfigurationError."""
    try:
        yield
    except aws.InvalidRegionError as error:
        raise _no_region(error.kwargs["region_name"]) from None
    except aws.BotoCoreError as error:
        sentence = _CONFIGURATIONS.get(type(error), "boto3 cannot use its configuration: {}")
        raise ConfigurationError(sentence.format(error, **error.kwargs)) from None
    except OSError as error:
        raise ConfigurationError(f"boto3 cannot get keys: {error.filename}: {error.strerror}") from None
    except ValueError:
        where = "AWS_ENDPOINT_URL and ~/.aws/config" if endpoint is None else f"the endpoint {display_url(endpoint)}"
        raise ConfigurationError(f"boto3 cannot use a value of its configuration: check {where}") from None


def require_region(session: Any, client: Any) -> None:
    """Raise ConfigurationError if requests go to an Amazon region that boto3 does not list."""
    region = client.meta.region_name
    if f".{region}.amazonaws." not in client.meta.endpoint_url:
        return  # another store, or no region is configured
    known = [name for part in session.get_available_partitions() for name in session.get_available_regions("s3", part)]
    if region not in known:
        raise _no_region(region, known)


def _no_region(name: str, known: Sequence[str] = ("eu-central-1",)) -> ConfigurationError:
    near = nearest(name, known) or known[0]
    return ConfigurationError(
        f"{name!r} is not a region of boto3, such as {near}: correct AWS_DEFAULT_REGION or ~/.aws/config; "
        "for a newer region, install a newer boto3 or set the endpoint"
    )


_ERRORS: tuple[tuple[Any, type[StoreError], str], ...] = (
    (
        _NO_KEYS,
        StoreError,
        "there are no keys for {service}; set --aws-keys FILE, or AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials",
    ),
    (aws.SSLError, StoreError, "{service} has no certificate that this machine trusts"),
    ((aws.ReadTimeoutError, aws.ConnectTimeoutError), StoreUnavailable, "{service} does not answer in time"),
    (aws.EndpointConnectionError, StoreUnavailable, "{service} cannot be reached"),
    ((*UNREACHABLE, aws.ConnectionError), StoreUnavailable, "the connection to {service} broke ({name})"),
    (aws.ParamValidationError, StoreError, "{bucket!r} cannot be the name of a bucket"),
    (aws.BotoCoreError, StoreError, "boto3 failed with {name}"),
)
"""Errors of boto3 and of the connection, with the error to raise and its text. The first match applies."""


@contextmanager
def store_errors(verb: str, bucket: str, where: str, endpoint: str | None) -> Iterator[None]:
    """Convert errors of the `with` block to StoreError: `cannot read s3://bucket/key: ...`."""
    begun = f"cannot {verb} {where}"
    service = display_url(endpoint)
    try:
        yield
    except aws.ClientError as error:
        raise _to_store_error(error, begun, bucket, service) from None
    except (aws.BotoCoreError, *UNREACHABLE) as error:
        kind, sentence = next((kind, text) for errors, kind, text in _ERRORS if isinstance(error, errors))
        name = type(error).__name__
        raise kind(f"{begun}: {sentence.format(service=service, bucket=bucket, name=name)}") from None


def _to_store_error(error: aws.ClientError, begun: str, bucket: str, service: str) -> StoreError:
    code = code_of(error)
    if code == "NoSuchBucket":
        return StoreError(
            f"{begun}: {service} has no bucket {bucket!r}; create it first, because RELAAX does not create buckets"
        )
    if code in ("NoSuchKey", "404", "NotFound"):
        return NotFound(f"{begun}: it does not exist")
    if code in _WRONG_KEYS:
        return StoreError(f"{begun}: {service} {_WRONG_KEYS[code]}")
    if code in _FORBIDDEN:
        return StoreError(f"{begun}: {service} denies it for these keys ({code})")
    if code in _BUSY:
        return StoreUnavailable(f"{begun}: {service} cannot do it now ({code})")
    return StoreError(f"{begun}: {service} answers with the error {code}")


MAX_PUT_BYTES = 5 * 1024**3
"""Limit of one request to S3."""
CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
ATTEMPTS = 4
_QUICK_SECONDS = 7.0  # if the first attempt hangs, the second still renews a lease of 15 s in time
_QUICK_ATTEMPTS = 2
_MAX_ATTEMPTS = 4  # attempts to transfer one value
_PAUSE = 0.2
_EXPIRATION = "NoncurrentVersionExpiration"
_PAGE = 1000  # keys in one answer; the maximum of S3


class S3Store(Store):
    """Objects below `key/` in `bucket`, which must exist. A failed request is repeated, with growing pauses.

    `keys` reads the account's keys; without it, boto3 uses its standard search. After a refusal the keys are read again
    for the next request. `endpoint`: URL of a store that is not Amazon's. `quick`: short timeouts, for small values
    that are useless when late. The constructor sends no request; `check` tests whether the bucket can be used. Raises
    StoreError, and ConfigurationError if boto3 or `keys` cannot use the configuration.
    """

    def __init__(
        self,
        bucket: str,
        key: str,
        keys: Callable[[], AwsKeys] | None = None,
        endpoint: str | None = None,
        quick: bool = False,
    ) -> None:
        self._bucket = bucket
        self._prefix = key.strip("/")
        if not self._prefix:
            raise StoreError(f"the key in bucket {bucket!r} is empty: choose a key for the checkpoints")
        if endpoint is not None and not is_url(endpoint):
            raise StoreError(f"{display_url(endpoint)} is not an endpoint: use a URL, such as https://s3.example.org")
        self._keys = keys
        self._endpoint = endpoint
        self._conditional = True
        seconds, attempts = (_QUICK_SECONDS, _QUICK_ATTEMPTS) if quick else (READ_SECONDS, ATTEMPTS)
        self._config = Config(
            connect_timeout=min(seconds, CONNECT_SECONDS),
            read_timeout=seconds,
            retries={"mode": "standard", "total_max_attempts": attempts},
            tcp_keepalive=True,
            # Parts are verified by reading them. Stores that are not Amazon's refuse checksums in trailers.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        self._client: Any = self._connect()  # None after its keys were refused

    def _connect(self) -> Any:
        """Return a client with the present keys. Raises ConfigurationError."""
        keys = None if self._keys is None else self._keys()
        with configuration_errors(self._endpoint):
            session = boto3.Session(keys.access, keys.secret) if keys else boto3.Session()
            client = session.client("s3", endpoint_url=self._endpoint, config=self._config)
            require_region(session, client)
        return client

    @property
    def location(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}"

    def check(self) -> None:
        """Check whether bucket, keys and endpoint can be used. Raises StoreError."""
        with self._request("list", self.location) as s3:
            s3.list_objects_v2(Bucket=self._bucket, Prefix=f"{self._prefix}/", MaxKeys=1)

    def keeps_old_versions(self) -> bool:
        with self._request("look at", self.location) as s3:
            try:
                if s3.get_bucket_versioning(Bucket=self._bucket).get("Status") != "Enabled":
                    return False
            except ClientError:  # the keys may lack the permission, or the store the feature
                return False
            try:
                rules = s3.get_bucket_lifecycle_configuration(Bucket=self._bucket)["Rules"]
            except ClientError:  # there are no rules, or the keys lack the permission
                return True
            return not any(rule["Status"] == "Enabled" and _EXPIRATION in rule for rule in rules)

    def put(self, key: str, value: Value) -> None:
        name = self._name(key)
        body = BufferFile(buffers_of(value))
        if len(body) > MAX_PUT_BYTES:
            raise StoreError(f"{key} has {len(body):,} bytes; the limit of S3 is {MAX_PUT_BYTES:,}: use more shards")
        with self._request("write", self._url(key)) as s3, BufferedReader(body, PIECE_BYTES) as file:
            s3.put_object(Bucket=self._bucket, Key=name, Body=file)

    def put_if(self, key: str, value: bytes, tag: str | None) -> str:
        name = self._name(key)
        with self._request("write", self._url(key)) as s3:
            for attempt in range(_MAX_ATTEMPTS):
                condition = {} if not self._conditional else {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
                try:
                    if not self._conditional:
                        self._check_tag(key, tag)
                    answer = s3.put_object(Bucket=self._bucket, Key=name, Body=value, **condition)
                    return str(answer["ETag"])
                except ClientError as error:
                    if status_of(error) == 501 and self._conditional:
                        self._disable_conditions()
                    elif (
                        status_of(error) == 409 and attempt < _MAX_ATTEMPTS - 1
                    ):  # another process writes at this moment
                        time.sleep(_PAUSE)
                    elif status_of(error) == 412 or code_of(error) == "NoSuchKey":
                        return self._tag_if_written(key, value)
                    else:
                        raise
        raise Conflict(f"{self._url(key)} is being written by other processes")

    def get(self, key: str) -> bytes:
        return self.get_with_tag(key)[0]

    def get_with_tag(self, key: str) -> tuple[bytes, str]:
        tags: MutableSequence[str] = []
        value = b"".join(self._pieces(key, tags, MAX_VALUE_BYTES))
        return value, tags[0]

    def size(self, key: str) -> int:
        name = self._name(key)
        with self._request("read", self._url(key)) as s3:
            return int(s3.head_object(Bucket=self._bucket, Key=name)["ContentLength"])

    def pieces(self, key: str) -> Iterator[bytes]:
        check_key(key)
        return self._pieces(key, [])

    def list(self, prefix: str = "") -> list[str]:
        own = f"{self._prefix}/"
        with self._request("list", self.location) as s3:
            pages = s3.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=own + prefix, PaginationConfig={"PageSize": _PAGE}
            )
            return sorted(
                entry["Key"].removeprefix(own)
                for page in pages
                for entry in page.get("Contents", [])
                if is_key(entry["Key"].removeprefix(own))  # a "folder" of a web console is an object, but not a value
            )

    def delete(self, key: str) -> None:
        name = self._name(key)
        with self._request("delete", self._url(key)) as s3:
            s3.delete_object(Bucket=self._bucket, Key=name)

    def _pieces(self, key: str, tags: MutableSequence[str], longest: int | None = None) -> Iterator[bytes]:
        """Yield the value in pieces. An interrupted transfer is resumed if the value is unchanged.

        Raises InvalidValue if it has more than `longest` bytes.
        """
        name, at, end, left = self._name(key), 0, -1, _MAX_ATTEMPTS
        with self._request("read", self._url(key)) as s3:
            while at != end:
                part = {"Range": f"bytes={at}-", "IfMatch": tags[0]} if at else {}
                answer = s3.get_object(Bucket=self._bucket, Key=name, **part)
                if not tags:
                    tags.append(str(answer["ETag"]))
                    end = int(answer["ContentLength"])
                    if longest is not None and end > longest:
                        answer["Body"].close()
                        check_value_size(self._url(key), end, longest)
                try:
                    with closing(answer["Body"]) as body:
                        while piece := body.read(PIECE_BYTES):
                            at += len(piece)
                            yield piece
                except UNREACHABLE:
                    left -= 1
                    if not left:
                        raise
                    time.sleep(_PAUSE)

    def _check_tag(self, key: str, tag: str | None) -> None:
        """Compare the tag, for stores without conditional writes. Another process may still write before this one."""
        try:
            there = self.get_with_tag(key)[1]
        except NotFound:
            there = None
        if there != tag:
            raise conflict(self._url(key), tag)

    def _tag_if_written(self, key: str, value: bytes) -> str:
        """Return the tag if an earlier attempt had written the value, but its answer was lost. Raises Conflict."""
        try:
            there, tag = self.get_with_tag(key)
        except NotFound:
            raise Conflict(f"{self._url(key)} no longer exists") from None
        if there != value:
            raise Conflict(f"{self._url(key)} contains the value of another writer")
        return tag

    def _disable_conditions(self) -> None:
        self._conditional = False
        _log.warning(
            "%s does not support conditional writes: two parameter servers that start at %s at the same moment may not "
            "detect each other; start only one",
            display_url(self._endpoint),
            self.location,
        )

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{check_key(key)}"

    def _url(self, key: str) -> str:
        return f"{self.location}/{key}"

    @contextmanager
    def _request(self, verb: str, where: str) -> Iterator[Any]:
        """Yield a client. Errors become StoreError."""
        with store_errors(verb, self._bucket, where, self._endpoint):
            try:
                client = self._client or self._connect()
                self._client = client
                yield client
            except ConfigurationError as error:
                raise StoreError(f"cannot {verb} {where}: {error}") from None
            except (ClientError, BotoCoreError) as error:
                if are_keys_refused(error):
                    self._client = None
                raise
