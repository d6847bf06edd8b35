"""What goes wrong, by what a caller can do about it."""

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
    """An error that the daemon told of, or that kept it from telling anything.

    kind is its kind in words, such as "not found"; field is the field of the request
    that is at fault, if one is; remedy is what can be done about it, if that is known.
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
    """The request must be changed."""

    kind = "invalid"


class Unauthenticated(GlasshouseError):
    """The daemon does not know who is calling: a token is missing, or not good."""

    kind = "unauthenticated"


class Denied(GlasshouseError):
    """Whoever is calling may not do this, or a policy or a person said no."""

    kind = "denied"


class NotFound(GlasshouseError):
    """There is no such thing."""

    kind = "not found"


class Conflict(GlasshouseError):
    """The thing is not in a state for this."""

    kind = "conflict"


class TooLarge(GlasshouseError):
    """Less must be sent."""

    kind = "too large"


class Mismatch(GlasshouseError):
    """The idempotency key belongs to another request."""

    kind = "mismatch"


class Exhausted(GlasshouseError):
    """A limit is reached: wait, or free something."""

    kind = "exhausted"


class Unsupported(GlasshouseError):
    """This host cannot do it; remedy says what it would take."""

    kind = "unsupported"


class Unavailable(GlasshouseError):
    """Not now: no daemon answers, or it is about to end."""

    kind = "unavailable"


class Disconnected(Unavailable):
    """The connection broke before the answer was there. What was asked for may be done."""


class TimedOut(GlasshouseError):
    """It took too long, and was ended."""

    kind = "timeout"


class Internal(GlasshouseError):
    """Something went wrong in the daemon, whose log has more under error_id."""

    kind = "internal"


class CommandFailed(GlasshouseError):
    """A command ended with another code than 0; result is how."""

    def __init__(self, detail: str, result: Any) -> None:
        super().__init__(detail)
        self.result = result


class CallFailed(GlasshouseError):
    """A capability was called and failed; called is the daemon's whole answer."""

    def __init__(self, detail: str, called: Mapping[str, Any], remedy: Optional[str] = None) -> None:
        super().__init__(detail, remedy=remedy)
        self.called = called


class RunFailed(GlasshouseError):
    """A run ended without being done; run is what became of it."""

    def __init__(self, detail: str, run: Mapping[str, Any]) -> None:
        super().__init__(detail)
        self.run = run


class BranchFailed(GlasshouseError):
    """Not all branches that were asked for were made; jails are those that were."""

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
    """The error that problem details (RFC 9457) tell of."""
    kind = str(problem.get("type", "")).rpartition("/")[2]
    return _KINDS.get(kind, GlasshouseError)(
        str(problem.get("detail") or problem.get("title") or kind),
        status=problem.get("status"),
        field=problem.get("field"),
        remedy=problem.get("remedy"),
        error_id=problem.get("error_id"),
    )
