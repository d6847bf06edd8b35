"""Output and results of commands."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple, Union, cast

from . import wire
from .errors import CommandFailed, Invalid

CommandLine = Union[str, Sequence[str]]
Input = Union[str, bytes]


@dataclass(frozen=True)
class Output:
    """A piece of a command's output. Offsets count the bytes of both streams together."""

    stream: str  # "stdout" or "stderr"
    data: bytes
    offset: int
    lost: int = 0  # bytes before it that are no longer stored

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Result:
    """The exit code and the output of a command."""

    exit_code: int  # 128 plus the number of the signal that terminated it
    stdout_bytes: bytes
    stderr_bytes: bytes
    info: wire.Exec

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def timed_out(self) -> bool:
        return self.info.get("timed_out", False)

    @property
    def truncated(self) -> bool:
        """Report whether output was dropped because of the storage limit."""
        return self.info.get("truncated", False)

    def check(self) -> Result:
        """Raise CommandFailed unless the exit code is 0."""
        if not self.ok:
            said = self.stderr.strip().rpartition("\n")[2]
            why = "timed out" if self.timed_out else f"exit code {self.exit_code}"
            raise CommandFailed(": ".join(filter(None, (" ".join(self.info.get("argv", [])), why, said))), self)
        return self


def result_of(x: wire.Exec) -> Result:
    out, err = x.get("stdout", ""), x.get("stderr", "")
    if x.get("encoding") == "base64":
        stdout, stderr = base64.b64decode(out), base64.b64decode(err)
    else:
        stdout, stderr = (s.encode("utf-8", "surrogateescape") for s in (out, err))
    code = x.get("exit_code")
    return Result(-1 if code is None else code, stdout, stderr, x)


def output_of(o: wire.Output) -> Output:
    return Output(o["stream"], base64.b64decode(o["data"]), o["offset"], o.get("lost", 0))


def exec_request(
    command: CommandLine,
    env: Optional[Mapping[str, str]],
    cwd: Optional[str],
    user: Optional[str],
    stdin: Optional[Input],
    timeout: Optional[float],
    pty: Optional[Tuple[int, int]],
    keep_bytes: Optional[int],
) -> wire.ExecRequest:
    """Encode a command: a string for /bin/sh, or a list of a program and its arguments."""
    if not command:
        raise Invalid("the command is empty", field="command")
    r: Dict[str, Any] = {"cmd": command} if isinstance(command, str) else {"argv": list(command)}
    if isinstance(stdin, bytes):
        r["stdin"], r["stdin_base64"] = base64.b64encode(stdin).decode(), True
    elif stdin is not None:
        r["stdin"] = stdin
    if pty is not None:
        r["pty"] = {"cols": pty[0], "rows": pty[1]}
    more = {"env": env and dict(env), "cwd": cwd, "user": user, "timeout_ms": timeout and round(timeout * 1000), "keep_bytes": keep_bytes}
    r.update({k: v for k, v in more.items() if v is not None})
    return cast(wire.ExecRequest, r)
