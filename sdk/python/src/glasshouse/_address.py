"""The daemon's address."""

from __future__ import annotations

import os
import ssl
from typing import NamedTuple, Optional
from urllib.parse import urlsplit

from .errors import Invalid

DEFAULT = "http://127.0.0.1:8082"


class Address(NamedTuple):
    path: Optional[str]  # of a unix socket
    host: str
    port: int
    tls: Optional[ssl.SSLContext]

    @property
    def authority(self) -> str:
        """The value of the Host header."""
        if self.path:
            return "glasshouse"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def find(address: Optional[str]) -> Address:
    """Parse address. Without one, use $GLASSHOUSE_ADDR, the socket in the data directory if
    it exists, or the default port."""
    address = address or os.environ.get("GLASSHOUSE_ADDR") or _socket() or DEFAULT
    if address.startswith("unix://"):
        address = address[len("unix://") :]
        if not address.startswith("/"):
            raise Invalid(f"unix://{address} is not an absolute path after unix://", field="address")
    if address.startswith("/"):
        return Address(address, "", 0, None)
    url = urlsplit(address if "://" in address else "http://" + address)
    if url.scheme not in ("http", "https") or not url.hostname or url.path.strip("/"):
        raise Invalid(f"invalid address {address!r}: want unix:///path, http://host:port or https://host:port", field="address")
    tls = ssl.create_default_context() if url.scheme == "https" else None
    return Address(None, url.hostname, url.port or (443 if tls else 80), tls)


def _socket() -> Optional[str]:
    data = os.environ.get("GLASSHOUSE_DATA")
    if not data:
        data = "/var/lib/glasshouse" if os.geteuid() == 0 else os.path.expanduser("~/.local/share/glasshouse")
    path = os.path.join(data, "glasshouse.sock")
    return "unix://" + path if os.path.exists(path) else None
