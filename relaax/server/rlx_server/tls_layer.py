"""TLS between a socket and the protocol, without the socket: bytes in, bytes out.

OpenSSL must not be used by two threads at a time, and a worker's heartbeat sends while another thread waits to receive.
So the socket stays a plain one that anybody may wait for, and this is used under the lock that sending takes anyhow.
"""

from __future__ import annotations

import contextlib
import ssl

from relaax.tls import reason_of

RECORDS_BYTES = 2**18


class TlsFailed(Exception):
    """There will be no connection over TLS. The message says why."""


class TlsLayer:
    """The server's end of one connection."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        self.agreed = False
        """Whether the handshake is over."""
        self.ended = False
        """Whether the peer said that it will say no more."""

    def received(self, data: bytes | bytearray | memoryview) -> bytes:
        """What the peer's bytes say, which may be nothing yet. Raises TlsFailed; see `to_send` in either case."""
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
        """The records that carry `data`. Raises TlsFailed where the connection has failed before."""
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise TlsFailed(_sentence(error)) from None
        return self._out.read()

    def to_send(self) -> bytes:
        """What TLS itself has to tell the peer: of the handshake, or why it failed."""
        return self._out.read()

    def farewell(self) -> bytes:
        """That there will be no more."""
        with contextlib.suppress(ssl.SSLError, ValueError):  # it wants to hear the same, which is not waited for
            self._tls.unwrap()
        return self._out.read()


def _sentence(error: ssl.SSLError) -> str:
    """In the words of a server."""
    reason = error.reason or ""
    if "ALERT" in reason and "CERT" in reason.replace("CA", "CERT"):
        return f"the client does not accept this server's certificate ({reason.lower().replace('_', ' ')})"
    if reason in ("UNSUPPORTED_PROTOCOL", "NO_SHARED_CIPHER", "VERSION_TOO_LOW"):
        return f"the client offers nothing that this server speaks ({reason.lower().replace('_', ' ')})"
    return f"the client's TLS cannot be understood ({(reason_of(error) or reason.lower().replace('_', ' ')) or error})"
