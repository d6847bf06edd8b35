"""A client for Glasshouse, which runs agents in jails, watches and governs them.

    from glasshouse import Glasshouse

    with Glasshouse() as gh, gh.jail(name="box") as jail:
        print(jail.run("python3 --version", check=True).stdout)
        with jail.branch(5) as copies:
            for n, copy in enumerate(copies):
                copy.run(f"python3 tune.py --depth {n}")

AsyncGlasshouse is the asynchronous client with the same methods.
"""

from . import errors, wire
from ._async.client import AsyncGlasshouse
from ._async.command import AsyncCommand
from ._async.jail import AsyncBranches, AsyncJail, AsyncSnapshot
from ._async.runs import AsyncRun, AsyncSchedule, AsyncSession
from ._async.stream import AsyncStream
from ._sse import ServerEvent
from ._sync.client import Glasshouse
from ._sync.command import Command
from ._sync.jail import Branches, Jail, Snapshot
from ._sync.runs import Run, Schedule, Session
from ._sync.stream import Stream
from ._values import Output, Result
from .errors import GlasshouseError

__all__ = [
    "AsyncBranches",
    "AsyncCommand",
    "AsyncGlasshouse",
    "AsyncJail",
    "AsyncRun",
    "AsyncSchedule",
    "AsyncSession",
    "AsyncSnapshot",
    "AsyncStream",
    "Branches",
    "Command",
    "Glasshouse",
    "GlasshouseError",
    "Jail",
    "Output",
    "Result",
    "Run",
    "Schedule",
    "ServerEvent",
    "Session",
    "Snapshot",
    "Stream",
    "errors",
    "wire",
]
