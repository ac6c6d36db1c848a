"""Where points are computed: in this process, in processes of this machine, or on a Dask cluster.

Each executor takes tasks lazily, so that a task is handed out only when somebody is about to compute it, and
yields records in the order in which they are done. The driver alone writes to the store.
"""

import contextlib
import dataclasses
import importlib.util
import logging
import os
import queue
import socket
import sys
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from ._child import Answer, WorkerError, ask_child, pack, stop_children
from ._compute import failure, record
from ._environment import computing
from ._plan import Point
from ._study import Study

if TYPE_CHECKING:
    from distributed import Client

_LOST_AFTER = 15.0
_LONGEST = 1e8  # seconds: clocks of the operating system overflow beyond
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class Task(Protocol):
    """A point with the study that it belongs to."""

    @property
    def study(self) -> Study: ...

    @property
    def point(self) -> Point: ...


@dataclasses.dataclass(frozen=True)
class Executor:
    """How to compute points.

    Attributes
    ----------
    workers
        Processes on this machine; without them, points are computed in this process.
    scheduler
        Address of a running Dask scheduler, instead of ``workers``.
    timeout
        Seconds after which a point is given up; it is then computed in a process that can be stopped.
    allow_plain_tcp
        Accept a ``tcp://`` scheduler on another machine: whoever can reach its port can run code there.
    """

    workers: int | None = None
    scheduler: str | None = None
    timeout: float | None = None
    allow_plain_tcp: bool = False

    def __post_init__(self):
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"`workers` must be at least 1, got {self.workers}.")
        if self.timeout is not None and not 0 < self.timeout <= _LONGEST:
            raise ValueError(
                f"`timeout` must be positive and at most {_LONGEST:.0e} (seconds), got {self.timeout}; "
                "without it, points take as long as they need."
            )
        if self.workers is not None and self.scheduler is not None:
            raise ValueError("Give `workers` (this machine) or `scheduler` (a cluster), not both.")
        if self.scheduler is not None:
            self._check_address(self.scheduler)

    def _check_address(self, address: str) -> None:
        parts = urlsplit(address)
        try:
            is_complete = bool(parts.hostname) and parts.port is not None
        except ValueError:
            is_complete = False
        if parts.scheme not in ("tls", "tcp") or not is_complete:
            raise ValueError(
                f"`scheduler` must read tls://host:port, or tcp://127.0.0.1:port, got {address!r}."
            )
        if parts.scheme == "tcp" and parts.hostname not in _LOOPBACK and not self.allow_plain_tcp:
            raise ValueError(
                f"`scheduler` {address} is plain tcp beyond this machine: everyone on the network could run "
                "code on your workers. Use tls://, or insist with --allow-plain-tcp."
            )

    def execute(
        self, tasks: Iterable[Any], say: Callable[[str], None]
    ) -> Generator[tuple[Any, bytes], None, None]:
        """Compute every task and yield it with its record, in the order in which they are done."""
        if self.workers is None and self.scheduler is None:
            if self.timeout is None:
                return self._here(tasks)
            return self._in_child(tasks)
        return self._on_dask(tasks, say)

    def _here(self, tasks: Iterable[Any]) -> Generator[tuple[Any, bytes], None, None]:
        for task in tasks:
            yield task, record(task.study, task.point.parameters)

    def _in_child(self, tasks: Iterable[Any]) -> Generator[tuple[Any, bytes], None, None]:
        owner = uuid.uuid4().hex
        try:
            for task in tasks:
                payload = pack(task.study, task.point.parameters)
                yield task, _opened(task, ask_child(owner, _local(), payload, self.timeout))
        finally:
            stop_children(owner)

    def _on_dask(
        self, tasks: Iterable[Any], say: Callable[[str], None]
    ) -> Generator[tuple[Any, bytes], None, None]:
        tasks = iter(tasks)
        first = next(tasks, None)
        if first is None:
            return
        if importlib.util.find_spec("distributed") is None:
            raise WorkerError(
                "`workers` and `scheduler` need Dask; install it with: pip install 'nullcline[cluster]'"
            )
        owner = uuid.uuid4().hex
        environment = _local() if self.scheduler is None else computing()
        with contextlib.ExitStack() as stack:
            client = stack.enter_context(self._client())
            # Before the cluster closes: it waits for threads that wait for these processes.
            stack.callback(stop_children, owner)
            if self.scheduler is not None:
                stack.callback(_stop_remote, client, owner)
            yield from _stream(client, first, tasks, (owner, environment, self.timeout), say)

    @contextlib.contextmanager
    def _client(self) -> "Iterator[Client]":
        import dask
        from distributed import Client, LocalCluster

        # A lost scheduler is reported once, by the driver.
        for name in logging.root.manager.loggerDict:
            if name.partition(".")[0] in ("distributed", "tornado"):
                logging.getLogger(name).setLevel(logging.CRITICAL)
        with dask.config.set({"distributed.comm.timeouts.connect": f"{_LOST_AFTER:g}s"}):
            if self.scheduler is None:
                # The Dask workers are threads, each computing in a child process of its own: nothing
                # listens on the network, and a user's script needs no `if __name__ == "__main__"`.
                cluster = LocalCluster(
                    n_workers=self.workers,
                    threads_per_worker=1,
                    processes=False,
                    protocol="inproc://",
                    dashboard_address=None,  # pyright: ignore[reportArgumentType]
                    worker_dashboard_address=None,
                    memory_limit=0,
                    silence_logs=logging.CRITICAL,
                )
                with cluster, Client(cluster, set_as_default=False) as client:
                    yield client
            else:
                parts = urlsplit(self.scheduler)
                if parts.scheme == "tls" and not dask.config.get("distributed.comm.tls.ca-file", None):
                    raise WorkerError(
                        f"`scheduler` {self.scheduler} needs certificates, and Dask knows of none: set "
                        "distributed.comm.tls.ca-file, .client.cert and .client.key in its configuration, or "
                        "DASK_DISTRIBUTED__COMM__TLS__CA_FILE and so on in the environment"
                    )
                try:
                    # Dask would knock for a long time at a door that nobody opens.
                    socket.create_connection((parts.hostname or "", parts.port or 0), _LOST_AFTER).close()
                    client = Client(self.scheduler, set_as_default=False)
                except (OSError, TimeoutError, ValueError, TypeError) as error:
                    raise WorkerError(f"no scheduler answers at {self.scheduler} ({error})") from None
                with contextlib.closing(client):
                    yield client


def _stream(
    client: "Client", first: Any, tasks: Iterator[Any], how: tuple[Any, ...], say: Callable[[str], None]
) -> Generator[tuple[Any, bytes], None, None]:
    owner, environment, timeout = how
    done: queue.SimpleQueue[Any] = queue.SimpleQueue()
    running: dict[Any, Any] = {}
    waiting: Any = first
    threads, last_count = 0, 0.0
    last_alive = time.monotonic()
    has_complained = False
    while True:
        if time.monotonic() - last_count > 5.0 or threads == 0:
            threads, last_count = _threads(client), time.monotonic()
        while waiting is not None and len(running) < max(2, 2 * threads):
            future = client.submit(
                ask_child,
                owner,
                environment,
                pack(waiting.study, waiting.point.parameters),
                timeout,
                key=f"nullcline-{owner}-{waiting.study.source}-{waiting.point.digest}",
                pure=False,
            )
            running[future] = waiting
            future.add_done_callback(done.put)
            waiting = next(tasks, None)
        if not running:
            return
        try:
            future = done.get(timeout=1.0)
        except queue.Empty:
            now = time.monotonic()
            if client.status == "running":
                last_alive = now
                if threads == 0 and not has_complained:
                    has_complained = True
                    say("the scheduler has no workers yet; waiting for one")
            if client.status in ("closed", "closing") or now - last_alive > _LOST_AFTER:
                raise WorkerError("the connection to the scheduler was lost") from None
            continue
        task = running.pop(future)
        yield task, _result(future, task)
        future.release()


def _threads(client: "Client") -> int:
    """Count the threads of the cluster; none when it cannot be asked."""
    if client.status != "running":
        return 0
    try:
        workers: Any = client.nthreads()
    except (OSError, TimeoutError, RuntimeError):
        return 0
    return sum(workers.values())


def _result(future: Any, task: Task) -> bytes:
    from distributed.scheduler import KilledWorker

    if future.status in ("cancelled", "lost"):
        raise WorkerError("the connection to the scheduler was lost")
    try:
        return _opened(task, future.result(timeout=_LOST_AFTER))
    except KilledWorker as error:
        message = f"the Dask workers that computed it died ({error.allowed_failures + 1} times)"
        return failure(task.study, task.point.parameters, message, 0.0)
    except (OSError, TimeoutError) as error:
        raise WorkerError(f"the connection to the scheduler was lost ({error})") from None


def _opened(task: Task, answer: Answer) -> bytes:
    if answer.message:
        return failure(task.study, task.point.parameters, answer.message, answer.seconds)
    return answer.record


def _stop_remote(client: "Client", owner: str) -> None:
    if client.status == "running":
        with contextlib.suppress(OSError, TimeoutError, RuntimeError):
            client.run(stop_children, owner, on_error="ignore")


def _local() -> dict[str, str]:
    """The environment of a child on this machine: it finds the user's own modules where the driver does."""
    paths = [path or os.getcwd() for path in sys.path if not path.startswith((sys.prefix, sys.base_prefix))]
    return {**computing(), "PYTHONPATH": os.pathsep.join(paths)}
