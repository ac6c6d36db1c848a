"""The folder of a study's results: one sealed file a point, replaced whole or not at all."""

import contextlib
import dataclasses
import fcntl
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ._plan import Point, identity
from ._record import BrokenFileError, unseal
from ._study import Study

_NAME = re.compile(r"[0-9a-f]{32}\.nc")
# A part that nobody touched for an hour is left from a run that was killed.
_STALE_AFTER = 3600.0


class StoreError(Exception):
    """The folder cannot be used: full, read-only, or not ours. What was stored before is intact."""


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that readers see all of it or none of it, even after a crash."""
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(part, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


@dataclasses.dataclass(frozen=True)
class Stored:
    """What the store knows of a point without opening it as netCDF."""

    status: str
    message: str
    seconds: float
    checksum: str


class Store:
    """The points of one study below ``folder``.

    Several drivers may share it: files appear by an atomic rename, and whatever removes or rewrites something
    that another driver may look at (broken files, left-over parts, the consolidated dataset) holds the lock.
    """

    def __init__(self, folder: Path, study: Study):
        self.folder = Path(folder)
        self.study = study
        self.points = self.folder / "points"
        self._points = str(self.points)
        self.aside = self.folder / "set-aside"

    def prepare(self) -> None:
        """Make the folder and prove that it can be written."""
        try:
            self.points.mkdir(parents=True, exist_ok=True)
            with self.lock():
                probe = self.points / f"{uuid.uuid4().hex}.part"
                probe.write_bytes(b"can this folder be written?")
                probe.unlink()
                for part in self.points.glob("*.part"):
                    if time.time() - part.stat().st_mtime > _STALE_AFTER:
                        part.unlink()
        except OSError as error:
            raise StoreError(f"cannot write to {self.folder}: {error.strerror or error}") from error

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder against other drivers; waits until it is free, and ends with the process."""
        with open(self.folder / ".lock", "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def path(self, point: Point) -> Path:
        """Give the file of a point, there or not."""
        return self.points / f"{point.digest}.nc"

    def look(self, point: Point) -> Stored | None:
        """What is stored of a point; nothing when there is no file, an error when it cannot be trusted."""
        try:
            # Not by `Path`, which takes as long as the reading.
            with open(f"{self._points}/{point.digest}.nc", "rb") as file:
                blob = file.read()
        except FileNotFoundError:
            return None
        header, checksum = unseal(blob)
        expected: dict[str, Any] = identity(self.study, point.parameters)
        if any(header.get(key) != value for key, value in expected.items()):
            raise BrokenFileError("it holds another point than its name says")
        return _stored(header, checksum)

    def survey(self, points: Iterable[Point], *, is_dry: bool = False) -> tuple[dict[str, Stored], list[str]]:
        """Judge every stored point; files that cannot be trusted are named and, unless dry, moved aside."""
        stored: dict[str, Stored] = {}
        notes: list[str] = []
        there = {entry.name for entry in os.scandir(self.points)} if self.points.is_dir() else set()
        for point in points:
            name = f"{point.digest}.nc"
            if name not in there:
                continue
            try:
                found = self.look(point)
            except BrokenFileError as error:
                found, note = None, f"{self.path(point)}: {error}; to be moved aside and computed again"
                if not is_dry:
                    found, note = self._recheck(point)
                notes += [note] if note else []
            except OSError as error:
                raise StoreError(f"cannot read {self.path(point)}: {error.strerror or error}") from error
            if found is not None:
                stored[point.digest] = found
        foreign = sorted(name for name in there if not _NAME.fullmatch(name) and not name.endswith(".part"))
        notes += [
            f"{self.points / name}: not a point of this study; left alone and not used" for name in foreign
        ]
        return stored, notes

    def _recheck(self, point: Point) -> tuple[Stored | None, str]:
        """Judge a suspicious file again, alone: another driver may have replaced it meanwhile."""
        path = self.path(point)
        with self.lock():
            try:
                return self.look(point), ""
            except BrokenFileError as error:
                reason = str(error)
            return None, self.set_aside(path, reason) + ", computed again"

    def set_aside(self, path: Path, reason: str) -> str:
        """Move a file that cannot be trusted out of the way; the caller holds the lock. Says so."""
        try:
            self.aside.mkdir(exist_ok=True)
            target = self.aside / f"{path.name}.{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:6]}"
            os.replace(path, target)
        except OSError as error:
            raise StoreError(f"cannot move {path} ({reason}) aside: {error.strerror or error}") from error
        return f"{path}: {reason}; moved to {target}"

    def put(self, point: Point, record: bytes) -> Stored:
        """Store the record of a point."""
        write_whole(self.path(point), record)
        header, checksum = unseal(record)
        return _stored(header, checksum)


def _stored(header: dict[str, Any], checksum: str) -> Stored:
    try:
        return Stored(header["status"], header["message"], header["seconds"], checksum)
    except KeyError as error:
        raise BrokenFileError(f"its header lacks {error}") from None
