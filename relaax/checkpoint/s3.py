"""Store checkpoints in a bucket of S3 or of a store that speaks S3. No error shows a key, signature or token."""

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
    InvalidValue,
    NotFound,
    Store,
    StoreError,
    StoreUnavailable,
    Value,
    buffers_of,
    check_key,
    is_key,
)
from relaax.configuration import ConfigurationError, nearest
from relaax.configuration.key_types import with_home
from relaax.configuration.validation import unknown
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


class BufferFile(io.RawIOBase):
    """A file that reads `buffers` as if they were one; only what is read is copied."""

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
    "InvalidAccessKeyId": "does not know the access key",
    "SignatureDoesNotMatch": "does not accept the secret key: it does not belong to the access key",
    "ExpiredToken": "does not accept the keys any more: they have expired",
    "ExpiredTokenException": "does not accept the keys any more: they have expired",
    "TokenRefreshRequired": "does not accept the keys any more: they have expired",
    "InvalidToken": "does not accept the session token",
    "RequestTimeTooSkewed": "does not accept the keys: this machine's clock is wrong",
    "AuthorizationHeaderMalformed": "does not accept the request: is it the bucket's region, or another endpoint?",
}
_NO_KEYS = (aws.NoCredentialsError, aws.PartialCredentialsError, aws.CredentialRetrievalError)
_FORBIDDEN = ("AccessDenied", "AllAccessDisabled", "AccountProblem", "InvalidObjectState", "403", "Forbidden")
_BUSY = ("SlowDown", "503", "ServiceUnavailable", "InternalError", "500", "RequestTimeout", "ThrottlingException")


def code_of(error: aws.ClientError) -> str:
    """Return S3's code of the error, or the status of the answer."""
    answer = error.response
    return str(answer.get("Error", {}).get("Code") or answer.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))


def status_of(error: aws.ClientError) -> int:
    """Return the HTTP status of the answer; 0 if it is unknown."""
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


def shown(endpoint: str | None) -> str:
    """Return a URL for display, without its password."""
    if endpoint is None:
        return "S3"
    if not is_url(endpoint):
        return repr(endpoint.rpartition("@")[2])
    parts = urlsplit(endpoint)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def is_url(endpoint: str) -> bool:
    """Return whether this is a URL of a store."""
    try:
        parts = urlsplit(endpoint)
        if any(character.isspace() for character in endpoint):
            return False
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and not parts.query
    except ValueError:  # of the host, or of the port
        return False


def are_keys_refused(error: Exception) -> bool:
    """Return whether the store refused the keys, or there were none, so that other keys may help."""
    if isinstance(error, aws.ClientError):
        return code_of(error) in _WRONG_KEYS
    return isinstance(error, _NO_KEYS)


_CONFIGURATIONS = {
    aws.ProfileNotFound: "AWS_PROFILE: the profile {profile!r} is neither in ~/.aws/config nor in ~/.aws/credentials: "
    "name another one",
    aws.ConfigParseError: "{path} is no configuration file of AWS: correct or remove it",
    aws.PartialCredentialsError: "half a pair of S3 keys ({provider}): set {cred_var}, too, or neither",
}


@contextmanager
def explained_configuration(endpoint: str | None) -> Iterator[None]:
    """Turn errors of boto3's own configuration into ConfigurationError."""
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
        where = "AWS_ENDPOINT_URL and ~/.aws/config" if endpoint is None else f"the endpoint {shown(endpoint)}"
        raise ConfigurationError(f"boto3 cannot use a value of its configuration: check {where}") from None


def require_region(session: Any, client: Any) -> None:
    """Raise ConfigurationError if requests go to a region of Amazon's that boto3 does not know."""
    region = client.meta.region_name
    if f".{region}.amazonaws." not in client.meta.endpoint_url:
        return  # another store, or no region is configured
    known = [name for part in session.get_available_partitions() for name in session.get_available_regions("s3", part)]
    if region not in known:
        raise _no_region(region, known)


def _no_region(name: str, known: Sequence[str] = ("eu-central-1",)) -> ConfigurationError:
    near = nearest(name, known) or known[0]
    return ConfigurationError(
        f"{name!r} is no region that boto3 knows, such as {near}: correct AWS_DEFAULT_REGION or ~/.aws/config; a newer "
        "region needs a newer boto3, or its endpoint"
    )


_TROUBLES: tuple[tuple[Any, type[StoreError], str], ...] = (
    (
        _NO_KEYS,
        StoreError,
        "there are no keys for {service}; --aws-keys FILE gives them, and AWS_ACCESS_KEY_ID with "
        "AWS_SECRET_ACCESS_KEY, and ~/.aws/credentials",
    ),
    (aws.SSLError, StoreError, "{service} has no certificate that this machine trusts"),
    ((aws.ReadTimeoutError, aws.ConnectTimeoutError), StoreUnavailable, "{service} does not answer in time"),
    (aws.EndpointConnectionError, StoreUnavailable, "{service} cannot be reached"),
    ((*UNREACHABLE, aws.ConnectionError), StoreUnavailable, "the connection to {service} broke ({name})"),
    (aws.ParamValidationError, StoreError, "{bucket!r} cannot be the name of a bucket"),
    (aws.BotoCoreError, StoreError, "boto3 gave up ({name})"),
)
"""What is raised for an error of boto3 or the connection: the first row that fits."""


@contextmanager
def sentences(verb: str, bucket: str, where: str, endpoint: str | None) -> Iterator[None]:
    """Turn errors within into StoreError: `cannot read s3://bucket/key: ...`."""
    begun = f"cannot {verb} {where}"
    service = shown(endpoint)
    try:
        yield
    except aws.ClientError as error:
        raise _answered(error, begun, bucket, service) from None
    except (aws.BotoCoreError, *UNREACHABLE) as error:
        kind, sentence = next((kind, text) for errors, kind, text in _TROUBLES if isinstance(error, errors))
        name = type(error).__name__
        raise kind(f"{begun}: {sentence.format(service=service, bucket=bucket, name=name)}") from None


def _answered(error: aws.ClientError, begun: str, bucket: str, service: str) -> StoreError:
    code = code_of(error)
    if code == "NoSuchBucket":
        return StoreError(f"{begun}: {service} has no bucket {bucket!r}; make it first, RELAAX makes none")
    if code in ("NoSuchKey", "404", "NotFound"):
        return NotFound(f"{begun}: it is not there")
    if code in _WRONG_KEYS:
        return StoreError(f"{begun}: {service} {_WRONG_KEYS[code]}")
    if code in _FORBIDDEN:
        return StoreError(f"{begun}: {service} forbids it to these keys ({code})")
    if code in _BUSY:
        return StoreUnavailable(f"{begun}: {service} is not able to now ({code})")
    return StoreError(f"{begun}: {service} answers {code}")


MAX_PUT_BYTES = 5 * 1024**3
"""The maximum of one request to S3."""
CONNECT_SECONDS = 5.0
READ_SECONDS = 10.0
ATTEMPTS = 4
_QUICK_SECONDS = 7.0  # of two attempts, the second still renews a lease of 15 s every 5 s if the first hangs
_QUICK_ATTEMPTS = 2
_READS = 4  # times that a value is asked for whose transfer breaks
_PAUSE = 0.2
_EXPIRATION = "NoncurrentVersionExpiration"
_PAGE = 1000  # keys in one answer; S3 gives no more


class S3Store(Store):
    """Objects below `key/` in `bucket`, which must exist. A failed request is repeated, with growing pauses.

    `keys` reads the account's keys; without it boto3 looks where it always looks. Keys that were refused are read again
    for the next request. `endpoint`: URL of a store that is not Amazon's. `quick`: for small values that are useless
    when they come late. Nothing is asked before a method is called; `check` asks whether the bucket can be used at all.
    Raises StoreError, and ConfigurationError if boto3 or `keys` cannot use the configuration.
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
            raise StoreError(f"the key in bucket {bucket!r} is empty: checkpoints stand below a key of their own")
        if endpoint is not None and not is_url(endpoint):
            raise StoreError(f"{shown(endpoint)} is no endpoint: a URL is needed, such as https://s3.example.org")
        self._keys = keys
        self._endpoint = endpoint
        self._conditional = True
        seconds, attempts = (_QUICK_SECONDS, _QUICK_ATTEMPTS) if quick else (READ_SECONDS, ATTEMPTS)
        self._config = Config(
            connect_timeout=min(seconds, CONNECT_SECONDS),
            read_timeout=seconds,
            retries={"mode": "standard", "total_max_attempts": attempts},
            tcp_keepalive=True,
            # Parts are read back and compared; checksums in trailers are refused by stores that are not Amazon's.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
        )
        self._client: Any = self._connect()  # None if its keys were refused

    def _connect(self) -> Any:
        """Return a client with the present keys. Raises ConfigurationError."""
        keys = None if self._keys is None else self._keys()
        with explained_configuration(self._endpoint):
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
            except ClientError:  # many keys may not ask, and a store may not have this
                return False
            try:
                rules = s3.get_bucket_lifecycle_configuration(Bucket=self._bucket)["Rules"]
            except ClientError:  # there are no rules, or the keys may not ask
                return True
            return not any(rule["Status"] == "Enabled" and _EXPIRATION in rule for rule in rules)

    def put(self, key: str, value: Value) -> None:
        name = self._name(key)
        body = BufferFile(buffers_of(value))
        if len(body) > MAX_PUT_BYTES:
            raise StoreError(f"{key} has {len(body):,} bytes; S3 takes {MAX_PUT_BYTES:,} at once: use more shards")
        with self._request("write", self._url(key)) as s3, BufferedReader(body, PIECE_BYTES) as file:
            s3.put_object(Bucket=self._bucket, Key=name, Body=file)

    def put_if(self, key: str, value: bytes, tag: str | None) -> str:
        name = self._name(key)
        with self._request("write", self._url(key)) as s3:
            for attempt in range(_READS):
                condition = {} if not self._conditional else {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
                try:
                    if not self._conditional:
                        self._compare(key, tag)
                    answer = s3.put_object(Bucket=self._bucket, Key=name, Body=value, **condition)
                    return str(answer["ETag"])
                except ClientError as error:
                    if status_of(error) == 501 and self._conditional:
                        self._do_without_conditions()
                    elif status_of(error) == 409 and attempt < _READS - 1:  # another one writes at this moment
                        time.sleep(_PAUSE)
                    elif status_of(error) == 412 or code_of(error) == "NoSuchKey":
                        return self._mine(key, value)
                    else:
                        raise
        raise Conflict(f"{self._url(key)} is being written by others")

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
                if is_key(entry["Key"].removeprefix(own))  # what a web console calls a folder is none
            )

    def delete(self, key: str) -> None:
        name = self._name(key)
        with self._request("delete", self._url(key)) as s3:
            s3.delete_object(Bucket=self._bucket, Key=name)

    def _pieces(self, key: str, tags: MutableSequence[str], longest: int | None = None) -> Iterator[bytes]:
        """Yield the value in pieces, resuming an interrupted transfer if it is unchanged. Raises InvalidValue beyond
        `longest`.
        """
        name, at, end, left = self._name(key), 0, -1, _READS
        with self._request("read", self._url(key)) as s3:
            while at != end:
                part = {"Range": f"bytes={at}-", "IfMatch": tags[0]} if at else {}
                answer = s3.get_object(Bucket=self._bucket, Key=name, **part)
                if not tags:
                    tags.append(str(answer["ETag"]))
                    end = int(answer["ContentLength"])
                    if longest is not None and end > longest:
                        answer["Body"].close()
                        raise InvalidValue(
                            f"{self._url(key)} has {end} bytes, and no manifest or lease has more than {longest}"
                        )
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

    def _compare(self, key: str, tag: str | None) -> None:
        """Compare the tag, for stores that cannot: another writer may write between this and the write."""
        try:
            there = self.get_with_tag(key)[1]
        except NotFound:
            there = None
        if there != tag:
            raise Conflict(f"{self._url(key)} {'is not what it was' if tag else 'is there already'}")

    def _mine(self, key: str, value: bytes) -> str:
        """Return the tag if the write had succeeded although its first answer was lost. Raises Conflict."""
        try:
            there, tag = self.get_with_tag(key)
        except NotFound:
            raise Conflict(f"{self._url(key)} is not there any more") from None
        if there != value:
            raise Conflict(f"{self._url(key)} is not what it was")
        return tag

    def _do_without_conditions(self) -> None:
        self._conditional = False
        _log.warning(
            "%s writes nothing on a condition: two parameter servers that come to %s at the same moment may not notice "
            "each other; start one only",
            shown(self._endpoint),
            self.location,
        )

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{check_key(key)}"

    def _url(self, key: str) -> str:
        return f"{self.location}/{key}"

    @contextmanager
    def _request(self, verb: str, where: str) -> Iterator[Any]:
        """Return a client; errors become StoreError."""
        with sentences(verb, self._bucket, where, self._endpoint):
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
