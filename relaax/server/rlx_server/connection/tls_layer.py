"""TLS between a socket and the protocol, without the socket: bytes in, bytes out.

Two threads must not use OpenSSL at once, and a worker's heartbeat sends while another thread waits to receive. So the
socket stays a plain one that any thread may wait for, and TLS is used under the lock that sending takes anyway.
"""

from __future__ import annotations

import contextlib
import ssl

from relaax.tls import reason_of

RECORDS_BYTES = 2**18


class TlsFailed(Exception):
    """TLS has failed. The message says why."""


class TlsLayer:
    """The server's end of one TLS connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.agreed = False
        """Whether the handshake is complete."""
        self.ended = False
        """Whether the peer has announced the end of its data."""

    def received(self, data: bytes | bytearray | memoryview) -> bytes:
        """Decrypt the peer's bytes, perhaps to nothing yet. Raises TlsFailed; send `to_send` in either case."""
        self._in.write(data)
        try:
            if not self.agreed:
                self._tls.do_handshake()
                self.agreed = True
            return self._read()
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLError as error:
            raise TlsFailed(_sentence(error)) from None

    def _read(self) -> bytes:
        said = bytearray()
        try:
            while piece := self._tls.read(RECORDS_BYTES):
                said += piece
            self.ended = True
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLWantReadError:
            pass
        return bytes(said)

    def sealed(self, data: bytes | memoryview) -> bytes:
        """Return the records that carry `data`. Raises TlsFailed if the connection has failed before."""
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise TlsFailed(_sentence(error)) from None
        return self._out.read()

    def to_send(self) -> bytes:
        """Return TLS's own bytes for the peer: handshake messages or an alert."""
        return self._out.read()

    def farewell(self) -> bytes:
        """Return the closing alert."""
        with contextlib.suppress(ssl.SSLError, ValueError):  # the peer's closing alert is not awaited
            self._tls.unwrap()
        return self._out.read()


def _sentence(error: ssl.SSLError) -> str:
    """Return a sentence for the server's log."""
    reason = error.reason or ""
    if "ALERT" in reason and "CERT" in reason.replace("CA", "CERT"):
        return f"the client does not accept this server's certificate ({reason.lower().replace('_', ' ')})"
    if reason in ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "VERSION_TOO_LOW"):
        return f"the client offers no version or cipher that this server supports ({reason.lower().replace('_', ' ')})"
    return f"the client's TLS cannot be understood ({(reason_of(error) or reason.lower().replace('_', ' ')) or error})"
