"""The scenarios of old.mjs with the Python package. Each line is one outcome, as JSON."""

import json
import socket
import time
import traceback

import httpx
from e2b import Sandbox

resolve = socket.getaddrinfo


def below_localhost(host, *args, **kwargs):
    """Names below localhost are this host (RFC 6761, section 6.3)."""
    name = host.decode() if isinstance(host, bytes) else host
    return resolve("127.0.0.1" if name and name.endswith(".localhost") else host, *args, **kwargs)


socket.getaddrinfo = below_localhost
create = getattr(Sandbox, "create", Sandbox)  # before 2.0 the class itself
box = None


def check(scenario, run):
    began, error = time.monotonic(), None
    try:
        run()
    except Exception:
        error = traceback.format_exc()
    print(json.dumps({"scenario": scenario, "ms": round(1000 * (time.monotonic() - began)), "error": error or ""}), flush=True)


def command():
    global box
    box = create(metadata={"by": "old"}, envs={"COLOUR": "blue"}, timeout=120)
    done = box.commands.run("id -un; echo $COLOUR")
    assert (done.stdout, done.exit_code) == ("user\nblue\n", 0), done


def files():
    box.files.write("/home/user/a/b", "text")
    assert box.files.read("a/b") == "text"
    box.files.remove("a/b")


def listing():
    box.files.write("/home/user/listed/b", "text")
    assert [e.name for e in box.files.list("/home/user/listed")] == ["b"]
    assert box.files.exists("listed/b") and not box.files.exists("listed/c")


def background():
    sleep = box.commands.run("sleep 60", background=True)
    assert sleep.pid in [p.pid for p in box.commands.list()]
    assert sleep.kill()
    pty = box.pty.create(size=pty_size(), timeout=30)
    box.pty.send_stdin(pty.pid, b"echo $((6*7)); exit\n")
    said = []
    pty.wait(on_pty=said.append)
    assert b"42" in b"".join(bytes(b) for b in said), said


def pty_size():
    try:
        from e2b import PtySize
    except ImportError:
        from e2b.sandbox.commands.command_handle import PtySize
    return PtySize(rows=24, cols=80)


def port():
    closed = httpx.get("https://" + box.get_host(3000) + "/")
    body = closed.json()
    assert (closed.status_code, body["port"]) == (502, 3000), closed.text
    assert box.sandbox_id.startswith(body["sandboxId"])


def life():
    assert box.is_running()
    box.set_timeout(60)
    listed = Sandbox.list()
    found = listed if isinstance(listed, list) else listed.next_items()
    assert any(s.sandbox_id == box.sandbox_id and s.metadata["by"] == "old" for s in found), found
    again = Sandbox.connect(box.sandbox_id)
    assert again.commands.run("echo here").stdout == "here\n"
    assert Sandbox.kill(box.sandbox_id)
    assert not Sandbox.kill(box.sandbox_id)
    assert not box.is_running()


check("create a sandbox through the domain and run a command", command)
check("files", files)
check("list and stat files", listing)
check("a background command and a terminal", background)
check("reach a port by its host name over TLS", port)
check("get information, change the timeout, connect again, kill", life)
