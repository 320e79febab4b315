"""Explain errors of S3 and of the connection to it. No message contains a key, a signature or a token."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from botocore import exceptions as aws
from urllib3.exceptions import HTTPError

from relaax.checkpoint.store import NotFound, StoreAway, StoreError
from relaax.configuration import ConfigurationError, nearest

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


@contextmanager
def explained_configuration(endpoint: str | None) -> Iterator[None]:
    """Turn errors of boto3's own configuration into ConfigurationError."""
    try:
        yield
    except aws.ProfileNotFound as error:
        name = error.kwargs["profile"]
        raise ConfigurationError(
            f"AWS_PROFILE: the profile {name!r} is neither in ~/.aws/config nor in ~/.aws/credentials: name another one"
        ) from None
    except aws.ConfigParseError as error:
        raise ConfigurationError(
            f"{error.kwargs['path']} is no configuration file of AWS: correct or remove it"
        ) from None
    except aws.PartialCredentialsError as error:
        provider, missing = error.kwargs["provider"], error.kwargs["cred_var"]
        raise ConfigurationError(f"half a pair of S3 keys ({provider}): set {missing}, too, or neither") from None
    except aws.InvalidRegionError as error:
        raise _no_region(error.kwargs["region_name"]) from None
    except aws.BotoCoreError as error:
        raise ConfigurationError(f"boto3 cannot use its configuration: {error}") from None
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


@contextmanager
def sentences(verb: str, bucket: str, where: str, endpoint: str | None) -> Iterator[None]:
    """Turn errors within into StoreError: `cannot read s3://bucket/key: ...`."""
    begun = f"cannot {verb} {where}"
    service = shown(endpoint)
    try:
        yield
    except aws.ClientError as error:
        raise _answered(error, begun, bucket, service) from None
    except _NO_KEYS:
        raise StoreError(
            f"{begun}: there are no keys for {service}; --aws-keys FILE gives them, and AWS_ACCESS_KEY_ID with "
            "AWS_SECRET_ACCESS_KEY, and ~/.aws/credentials"
        ) from None
    except aws.SSLError:
        raise StoreError(f"{begun}: {service} has no certificate that this machine trusts") from None
    except (aws.ReadTimeoutError, aws.ConnectTimeoutError):
        raise StoreAway(f"{begun}: {service} does not answer in time") from None
    except aws.EndpointConnectionError:
        raise StoreAway(f"{begun}: {service} cannot be reached") from None
    except (*UNREACHABLE, aws.ConnectionError) as error:
        raise StoreAway(f"{begun}: the connection to {service} broke ({type(error).__name__})") from None
    except aws.ParamValidationError:
        raise StoreError(f"{begun}: {bucket!r} cannot be the name of a bucket") from None
    except aws.BotoCoreError as error:
        raise StoreError(f"{begun}: boto3 gave up ({type(error).__name__})") from None


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
        return StoreAway(f"{begun}: {service} is not able to now ({code})")
    return StoreError(f"{begun}: {service} answers {code}")
