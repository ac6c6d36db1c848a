"""The process that computes points for a worker: requests on standard input, records on standard output.

Run as ``python -m nullcline.engine._serve``. It ends when its parent does, or when it has had nothing to do
for ten minutes.
"""

import contextlib
import ctypes
import gc
import os
import queue
import struct
import sys
import threading
import traceback

IDLE_SECONDS = 600.0


def _read(count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = os.read(0, count - len(data))
        if not more:
            # The parent is gone: nobody wants the point that is being computed.
            os._exit(1)
        data += more
    return data


def _listen(requests: "queue.Queue[bytes]") -> None:
    while True:
        (length,) = struct.unpack("<Q", _read(8))
        requests.put(_read(length))


def _reply(target: int, tag: bytes, content: bytes) -> None:
    message = memoryview(tag + struct.pack("<Q", len(content)) + content)
    while message:
        message = message[os.write(target, message) :]


def _forget_programs() -> None:
    """Give back the memory of compiled programs: those of all studies together take several gigabytes."""
    import jax

    jax.clear_caches()
    gc.collect()
    # The allocator of glibc keeps what is freed until it is told; others have no such call.
    with contextlib.suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def main() -> None:
    """Serve until the parent hangs up."""
    # A `print` in a study must not end up in the middle of a record.
    target = os.dup(1)
    os.dup2(2, 1)
    requests: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()

    import cloudpickle

    from ._compute import provenance, record, require_float64

    require_float64()
    provenance()  # imports and starts JAX, so that no time-out pays for it
    _reply(target, b"H", b"")
    source = None
    while True:
        try:
            request = requests.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            return
        try:
            study, parameters = cloudpickle.loads(request)
        except Exception as error:
            _reply(target, b"E", "".join(traceback.format_exception_only(error)).encode())
        else:
            if source not in (None, study.source):
                _forget_programs()
            source = study.source
            _reply(target, b"R", record(study, parameters))


if __name__ == "__main__":
    try:
        main()
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(1)
