"""Compute points in a process of their own: stopped when a point hangs, replaced when it dies."""

import contextlib
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from ._study import Study

_START_SECONDS = 300.0
_TRIES = 2


class WorkerError(Exception):
    """A worker process cannot do its work at all: the fault is not in a point."""


class Answer(NamedTuple):
    """What came back for a point: a record, or what went wrong instead."""

    record: bytes
    message: str
    seconds: float


class _DiedError(Exception):
    pass


class _HangsError(Exception):
    pass


class Child:
    """A process that computes one point after another."""

    def __init__(self, environment: Mapping[str, str]):
        self.environment = dict(environment)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "nullcline.engine._serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment},
            # Ctrl-C goes to the driver alone, which stops its children in order.
            start_new_session=True,
        )
        self.is_ready = False

    def ask(self, payload: bytes, timeout: float | None) -> bytes:
        """Send a point, wait for the record."""
        if not self.is_ready:
            self._read_message(time.monotonic() + _START_SECONDS)
            self.is_ready = True
        deadline = None if timeout is None else time.monotonic() + timeout
        assert self.process.stdin
        try:
            self.process.stdin.write(struct.pack("<Q", len(payload)) + payload)
            self.process.stdin.flush()
        except BrokenPipeError:
            raise _DiedError from None
        tag, content = self._read_message(deadline)
        if tag == b"E":
            raise WorkerError(
                f"a worker process cannot load the study: {content.decode(errors='replace').strip()}"
            )
        return content

    def _read_message(self, deadline: float | None) -> tuple[bytes, bytes]:
        head = self._read(9, deadline)
        (length,) = struct.unpack("<Q", head[1:])
        return head[:1], self._read(length, deadline)

    def _read(self, count: int, deadline: float | None) -> bytes:
        assert self.process.stdout
        source = self.process.stdout.fileno()
        data = bytearray()
        while len(data) < count:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not select.select([source], [], [], left)[0]:
                raise _HangsError
            more = os.read(source, count - len(data))
            if not more:
                raise _DiedError
            data += more
        return bytes(data)

    def stop(self) -> int:
        """End the process, whatever it does; return its exit status."""
        self.process.kill()
        status = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        return status


class _Pool:
    """The children of this process, by the run that owns them."""

    def __init__(self):
        self._lock = threading.Lock()
        self._idle: dict[str, list[Child]] = {}
        self._all: dict[str, set[Child]] = {}
        self._stopped: set[str] = set()

    @contextlib.contextmanager
    def borrow(self, owner: str, environment: Mapping[str, str]) -> Iterator[Child]:
        with self._lock:
            if owner in self._stopped:
                raise WorkerError("the run was stopped")
            idle = self._idle.setdefault(owner, [])
            child = idle.pop() if idle else None
            if child is None or child.process.poll() is not None:
                child = Child(environment)
                self._all.setdefault(owner, set()).add(child)
        try:
            yield child
        except BaseException:
            with self._lock:
                self._all[owner].discard(child)
            raise
        with self._lock:
            self._idle[owner].append(child)

    def stop(self, owner: str) -> None:
        with self._lock:
            self._stopped.add(owner)
            self._idle.pop(owner, None)
            children = self._all.pop(owner, set())
            self._all[owner] = set()
        for child in children:
            child.process.kill()
            child.process.wait()


_pool = _Pool()


def stop_children(owner: str) -> None:
    """End every process that computes points for the run ``owner``."""
    _pool.stop(owner)


def ask_child(owner: str, environment: Mapping[str, str], payload: bytes, timeout: float | None) -> Answer:
    """Compute one point in a child; runs in the driver, or in a Dask worker anywhere."""
    start = time.monotonic()
    status = 0
    for _ in range(_TRIES):
        with contextlib.suppress(_DiedError), _pool.borrow(owner, environment) as child:
            try:
                return Answer(child.ask(payload, timeout), "", time.monotonic() - start)
            except _HangsError:
                was_ready = child.is_ready
                child.stop()
                if not was_ready:
                    raise WorkerError(f"a worker process did not start within {_START_SECONDS:g} s") from None
                message = f"stopped after {timeout:g} s (the time limit for a point)"
                return Answer(b"", message, time.monotonic() - start)
            except _DiedError:
                status = child.stop()
                if not child.is_ready:
                    raise WorkerError(f"a worker process ended while it started ({_ended(status)})") from None
                raise
            except BaseException:
                child.stop()
                raise
    return Answer(
        b"", f"the process that computed it died {_TRIES} times ({_ended(status)})", time.monotonic() - start
    )


def _ended(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"exit status {status}"


def pack(study: Study, parameters: Mapping[str, Any]) -> bytes:
    """Give the bytes that carry a point to another process; they are never stored.

    A study of nullcline travels by its name. One of the user travels by its code, since the other process may
    not be able to import the file, or the notebook, that it was written in.
    """
    try:
        import cloudpickle
    except ModuleNotFoundError:
        raise WorkerError(
            "computing in other processes needs more packages; install them: pip install 'nullcline[cluster]'"
        ) from None
    module = sys.modules.get(type(study).__module__)
    if module is None or module.__name__.partition(".")[0] in ("nullcline", "__main__"):
        return cloudpickle.dumps((study, dict(parameters)))
    cloudpickle.register_pickle_by_value(module)
    try:
        return cloudpickle.dumps((study, dict(parameters)))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
