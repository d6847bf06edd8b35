# Written by glasshouse. An agent starts this before and after each tool, with what it
# is about to do on standard input. The gateway of the jail decides; status 2 is a no,
# and what stands on standard error is what the model reads. Whatever goes wrong is a no.
import json
import os
import socket
import sys
import time
from urllib.parse import quote, urlsplit

DOOR = os.environ.get("GLASSHOUSE_DOOR", "http://localhost:4097")
BULKY = ("content", "new_string", "old_string", "new_source")  # nothing is decided by these
MOST = 32 * 1024
AGAIN = 30  # seconds that it is tried again for


class No(Exception):
    pass


# An agent waits for this at every tool: the libraries that speak HTTP take longer to
# load than all else takes. An answer of version 1.0 ends with its connection.
def exchange(request):
    door = urlsplit(DOOR)
    with socket.create_connection((door.hostname, door.port or 80)) as connection:
        connection.sendall(request)
        return b"".join(iter(lambda: connection.recv(65536), b""))  # it waits while a person is asked


# A connection breaks off when the jail is written down, or the gateway begins anew: what
# was asked is asked again. Where nothing listens at all there is no gateway.
def asked(request):
    end = 0
    while True:
        began = time.monotonic()
        try:
            answer = exchange(request)
            if not answer:
                raise ConnectionResetError("it hung up")
            return answer
        except OSError as error:
            now = time.monotonic()
            if now - began > AGAIN:  # it was there until now
                end = now + AGAIN
            if isinstance(error, ConnectionRefusedError) and not end or end and now > end:
                raise
            end = end or now + AGAIN
            time.sleep(0.25)


def call(path, body=None):
    data = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{'GET' if body is None else 'POST'} {path} HTTP/1.0\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    try:
        head, _, text = asked(head.encode() + data).partition(b"\r\n\r\n")
        status = int(head.split(None, 2)[1])
        answer = json.loads(text or b"{}")
    except (OSError, ValueError, IndexError) as error:
        raise No(f"the gateway at {DOOR} does not answer: {error}")
    if status // 100 != 2:
        raise No(answer.get("detail") or f"the gateway answered {path} with {status}")
    return answer


def shown(args):
    if not isinstance(args, dict):
        return args
    return {
        key: f"{value[:MOST]}… ({len(value) - MOST} more)"
        if key in BULKY and isinstance(value, str) and len(value) > MOST
        else value
        for key, value in args.items()
    }


def decide(tool, args):
    answer = call("/decide", {"tool": tool, "args": args})
    if answer.get("effect") == "allow":
        return
    rule = f" [{answer['rule']}]" if answer.get("rule") else ""
    remedy = f" {answer['remedy']}" if answer.get("remedy") else ""
    raise No(f"refused: {answer.get('reason') or 'not allowed'}{rule}{remedy}")


def record(phase, tool, args, event):
    sandbox = os.environ.get("SANDBOX_ID") or call("/whoami")["jail"]
    entry = {
        "tool": tool,
        "args": args,
        "timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "phase": phase,
        "call": event.get("tool_use_id", ""),
    }
    call(f"/sandbox/{quote(sandbox, safe='')}/decisions", entry)


def main():
    phase = sys.argv[1]
    event = json.load(sys.stdin)
    tool, args = event["tool_name"], shown(event.get("tool_input"))
    if phase == "before":
        decide(tool, args)
    record(phase, tool, args, event)


try:
    main()
except No as error:
    print(error, file=sys.stderr)
    sys.exit(2)
except BaseException as error:
    print(f"the gateway could not be asked: {error!r}", file=sys.stderr)
    sys.exit(2)
