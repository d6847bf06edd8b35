# Made by `make sdk` from _async/files.py. Do not edit.
"""Files in a jail."""

from __future__ import annotations

from typing import Iterator, Optional, cast

from .. import wire
from .._sse import ServerEvent
from .operations import Operations
from .stream import Stream
from .transport import Answer, Events, Content


class Files:
    """The files of a jail. Paths are relative to its root directory."""

    def __init__(self, api: Operations, jail: str) -> None:
        self._api = api
        self._jail = jail

    def read(self, path: str, *, offset: Optional[int] = None, size: Optional[int] = None) -> bytes:
        """Return the content of a file, or of a part of it."""
        answer = self._api.get_file_bytes(self._jail, path=path, offset=offset, bytes=size)
        return answer.read()

    def read_text(self, path: str) -> str:
        return (self.read(path)).decode()

    def open(self, path: str) -> Answer:
        """Open a file of any size to read it piece by piece."""
        return self._api.get_file_bytes(self._jail, path=path)

    def write(
        self,
        path: str,
        data: Content,
        *,
        mode: Optional[str] = None,
        append: bool = False,
        parents: bool = False,
        uid: Optional[int] = None,
        gid: Optional[int] = None,
    ) -> wire.File:
        """Write a file from bytes, or from an iterable of pieces. With parents, create missing
        parent directories."""
        return self._api.put_file(
            self._jail, data, path=path, mode=mode, append=append or None, parents=parents or None, uid=uid, gid=gid
        )

    def write_text(self, path: str, text: str, *, mode: Optional[str] = None, parents: bool = False) -> wire.File:
        return self.write(path, text.encode(), mode=mode, parents=parents)

    def list(self, path: str = "/") -> Iterator[wire.File]:
        """List a directory, sorted by name."""
        after: Optional[str] = None
        while True:
            page = cast(wire.FilePage, self._api.get_file(self._jail, path=path, list=True, after=after))
            for file in page["items"]:
                yield file
            after = page.get("next")
            if not after:
                return

    def stat(self, path: str) -> wire.File:
        return cast(wire.File, self._api.get_file(self._jail, path=path, stat=True))

    def mkdir(self, path: str, *, mode: Optional[str] = None, parents: bool = False) -> wire.File:
        return self._api.put_file(self._jail, b"", path=path, mkdir=True, mode=mode, parents=parents or None)

    def move(self, source: str, target: str) -> None:
        self._api.move_file(self._jail, cast(wire.MoveFile, {"from": source, "to": target}))

    def remove(self, path: str, *, recursive: bool = False) -> None:
        self._api.delete_file(self._jail, path=path, recursive=recursive or None)

    def get_tar(self, path: str) -> Answer:
        """Return a directory as a tar archive, to read at once or piece by piece."""
        return self._api._open("GET", f"/jails/{self._api._part(self._jail)}/files", query={"path": path, "tar": True}, accept="application/x-tar")

    def put_tar(self, path: str, archive: Content) -> wire.File:
        """Extract a tar archive into a directory."""
        return self._api.put_file(self._jail, archive, path=path, tar=True, content_type="application/x-tar")

    def watch(self, path: str, *, recursive: bool = False) -> Stream[wire.FileEvent]:
        """Stream later changes below a path. If the connection breaks, raise an error:
        changes may have been missed."""

        def connect(last: Optional[str], told: int) -> Events:
            return self._api.watch_files(self._jail, path=path, recursive=recursive or None)

        def take(event: ServerEvent) -> Optional[wire.FileEvent]:
            return cast(wire.FileEvent, event.data) if event.name == "change" else None

        return Stream(connect, take, resumes=False)
