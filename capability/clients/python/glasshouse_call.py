"""Call other capabilities from a program in a Glasshouse sandbox.

    from glasshouse_call import call, CallError

    found = call("places.resolve", {"location_text": "Soho, London"})

What may be called, with what and how often, the kernel decides anew for each
call; it sees the caller as the capability that runs here.
"""

import http.client
import json
import os
import socket
import urllib.parse

__all__ = ["call", "CallError"]

SOCKET = os.environ.get("GLASSHOUSE_CALL_SOCKET", "/run/glasshouse/call.sock")


class CallError(Exception):
    """A call that failed. kind says how, in one word or two: "denied", "timeout"."""

    def __init__(self, kind, message):
        super().__init__(f"{kind}: {message}")
        self.kind = kind
        self.message = message


class _Connection(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(SOCKET)


def call(capability, input=None, timeout=None):
    """Call a capability with an input that json can write, and return its output.

    timeout is in seconds; without one a call may take as long as the call that is
    being served here.
    """
    body = json.dumps({} if input is None else input).encode()
    connection = _Connection("sandbox", timeout=timeout)
    try:
        path = "/call/" + urllib.parse.quote(capability, safe="")
        connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
    except socket.timeout:
        raise CallError("timeout", f"{capability} did not answer in {timeout} s") from None
    except (OSError, http.client.HTTPException) as e:
        raise CallError("unavailable", f"{SOCKET}: {e}") from e
    finally:
        connection.close()
    try:
        answer = json.loads(text)
    except ValueError:
        raise CallError("garbled", f"status {response.status} and no JSON") from None
    if response.status != 200:
        said = answer if isinstance(answer, dict) else {}
        raise CallError(said.get("kind", "failed"), said.get("message", f"status {response.status}"))
    return answer
