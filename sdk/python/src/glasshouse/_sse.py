"""Server-sent events, as specified in the WHATWG HTML standard."""

from __future__ import annotations

import json
from typing import Any, List, NamedTuple, Optional


class ServerEvent(NamedTuple):
    """One event. id is None if the event has none."""

    id: Optional[str]
    name: str
    data: Any  # decoded from JSON


class Events:
    """Parses lines into events."""

    def __init__(self) -> None:
        self._id: Optional[str] = None
        self._name = ""
        self._data: List[str] = []

    def line(self, line: bytes) -> Optional[ServerEvent]:
        """Add a line without its end. Return the event that an empty line completes, or None."""
        text = line.decode("utf-8", "surrogateescape")
        if not text:
            id, name, data = self._id, self._name, self._data
            self._id, self._name, self._data = None, "", []
            return ServerEvent(id, name or "message", json.loads("\n".join(data))) if data else None
        field, _, value = text.partition(":")
        if value.startswith(" "):
            value = value[1:]
        if field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        elif field == "id" and "\0" not in value:
            self._id = value
        return None
