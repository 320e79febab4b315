"""Store checkpoints in a bucket of S3 or of a store that speaks S3."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, MutableSequence
from contextlib import closing, contextmanager
from io import BufferedReader
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from relaax.checkpoint.aws_keys import AwsKeys
from relaax.checkpoint.buffer_file import BufferFile
from relaax.checkpoint.s3_errors import (
    UNREACHABLE,
    are_keys_refused,
    code_of,
    explained_configuration,
    is_url,
    require_region,
    sentences,
    shown,
    status_of,
)
from relaax.checkpoint.store import (
    MAX_VALUE_BYTES,
    PIECE_BYTES,
    Conflict,
    NotFound,
    NoValue,
    Store,
    StoreError,
    Value,
    buffers_of,
    check_key,
    is_key,
)
from relaax.configuration import ConfigurationError

_log = logging.getLogger(__name__)

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
        """Yield the value in pieces; an interrupted transfer is resumed if the value is unchanged. Raises NoValue if it
        is longer than `longest`.
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
                        raise NoValue(
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
        """Compare the tag, for stores that cannot do so themselves. Another writer may write between this and the
        write.
        """
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
