"""Errors, one class for each kind."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Optional, Type

__all__ = [
    "GlasshouseError",
    "Invalid",
    "Unauthenticated",
    "Denied",
    "NotFound",
    "Conflict",
    "TooLarge",
    "Mismatch",
    "Exhausted",
    "Unsupported",
    "Unavailable",
    "Disconnected",
    "TimedOut",
    "Internal",
    "CallFailed",
    "CommandFailed",
    "RunFailed",
    "BranchFailed",
]


class GlasshouseError(Exception):
    """An error that the daemon returned, or that prevented a response.

    kind names the kind, such as "not found". field is the invalid field of the request, if
    any. remedy says how to fix the problem, if known.
    """

    kind = ""

    def __init__(
        self,
        detail: str,
        *,
        status: Optional[int] = None,
        field: Optional[str] = None,
        remedy: Optional[str] = None,
        error_id: Optional[str] = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.status = status
        self.field = field
        self.remedy = remedy
        self.error_id = error_id

    def __str__(self) -> str:
        text = self.detail
        if self.field:
            text = f"{self.field}: {text}"
        if self.remedy:
            text = f"{text} ({self.remedy})"
        return text


class Invalid(GlasshouseError):
    """The request is invalid."""

    kind = "invalid"


class Unauthenticated(GlasshouseError):
    """The token is missing, invalid or revoked."""

    kind = "unauthenticated"


class Denied(GlasshouseError):
    """The caller lacks permission, or a policy or a person denied the request."""

    kind = "denied"


class NotFound(GlasshouseError):
    """The object does not exist."""

    kind = "not found"


class Conflict(GlasshouseError):
    """The state of the object does not allow the request."""

    kind = "conflict"


class TooLarge(GlasshouseError):
    """The request is too large."""

    kind = "too large"


class Mismatch(GlasshouseError):
    """The idempotency key belongs to another request."""

    kind = "mismatch"


class Exhausted(GlasshouseError):
    """A limit is reached: retry later, or release resources."""

    kind = "exhausted"


class Unsupported(GlasshouseError):
    """This host does not support the operation. remedy lists the requirements."""

    kind = "unsupported"


class Unavailable(GlasshouseError):
    """The daemon is unavailable: it cannot be reached, or it is shutting down."""

    kind = "unavailable"


class Disconnected(Unavailable):
    """The connection broke before the response. The request may have been executed."""


class TimedOut(GlasshouseError):
    """The operation exceeded its time limit and was cancelled."""

    kind = "timeout"


class Internal(GlasshouseError):
    """An internal error of the daemon. Its log has details under error_id."""

    kind = "internal"


class CommandFailed(GlasshouseError):
    """A command ended with an exit code other than 0. result has the details."""

    def __init__(self, detail: str, result: Any) -> None:
        super().__init__(detail)
        self.result = result


class CallFailed(GlasshouseError):
    """A capability call failed. called is the daemon's complete response."""

    def __init__(self, detail: str, called: Mapping[str, Any], remedy: Optional[str] = None) -> None:
        super().__init__(detail, remedy=remedy)
        self.called = called


class RunFailed(GlasshouseError):
    """A run ended without success. run is its last state."""

    def __init__(self, detail: str, run: Mapping[str, Any]) -> None:
        super().__init__(detail)
        self.run = run


class BranchFailed(GlasshouseError):
    """Some branches could not be created. jails are those that were created."""

    def __init__(self, detail: str, jails: Any, remedy: Optional[str] = None) -> None:
        super().__init__(detail, remedy=remedy)
        self.jails = jails


_KINDS: Dict[str, Type[GlasshouseError]] = {
    c.kind.replace(" ", "-"): c
    for c in (
        Invalid, Unauthenticated, Denied, NotFound, Conflict, TooLarge, Mismatch,
        Exhausted, Unsupported, Unavailable, TimedOut, Internal,
    )
}  # fmt: skip


def of_problem(problem: Mapping[str, Any]) -> GlasshouseError:
    """Convert problem details (RFC 9457) to an error."""
    kind = str(problem.get("type", "")).rpartition("/")[2]
    return _KINDS.get(kind, GlasshouseError)(
        str(problem.get("detail") or problem.get("title") or kind),
        status=problem.get("status"),
        field=problem.get("field"),
        remedy=problem.get("remedy"),
        error_id=problem.get("error_id"),
    )
