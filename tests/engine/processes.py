"""Run the command in a process of its own, and wait for what it leaves on disk."""

import collections
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import xarray as xr

TOYS = Path(__file__).with_name("toys.py")
PATIENCE = 300.0


def reproduce(*words, out):
    return [
        sys.executable,
        "-m",
        "nullcline.cli",
        "reproduce",
        *words,
        "--studies",
        str(TOYS),
        "--out",
        str(out),
    ]


class Scene:
    """A folder of results, the marks of what was computed, and the processes that a test started."""

    def __init__(self, folder):
        self.folder = folder
        self.out = folder / "out"
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.processes = []

    def start(self, words, **environment):
        log = open(self.folder / f"log-{len(self.processes)}", "w+")  # noqa: SIM115
        process = subprocess.Popen(
            words,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TOY_MARKS": str(self.marks), **environment},
            start_new_session=True,
            # A test run in the background inherits a SIGINT that is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self.processes.append((process, log))
        return process

    def says(self, process):
        log = next(log for p, log in self.processes if p is process)
        log.seek(0)
        return log.read()

    def end(self, process):
        """Wait for the end of a process; give its exit status and what it said."""
        status = process.wait(timeout=PATIENCE)
        return status, self.says(process)

    def run(self, words, **environment):
        return self.end(self.start(words, **environment))

    def wait(self, condition, process):
        """Wait until a condition holds, while a process is alive."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert process.poll() is None, self.says(process)
            assert time.monotonic() < deadline, self.says(process)
            time.sleep(0.005)

    def close(self):
        for process, log in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
            log.close()

    def counts(self):
        """How often each point was computed."""
        return collections.Counter(path.name.split(".")[0] for path in self.marks.iterdir())

    def stored(self, figure="squares"):
        return {path.name for path in (self.out / "toy" / figure / "points").glob("*.nc")}

    def check_squares(self, preset, count):
        """The numbers are right, and nothing is left lying about."""
        folder = self.out / "toy/squares"
        data = xr.load_dataset(folder / preset / "data.nc", engine="h5netcdf")
        np.testing.assert_array_equal(data.n, np.arange(count))
        np.testing.assert_array_equal(data.square, np.arange(count) ** 2)
        np.testing.assert_array_equal(data.root, np.sqrt(np.arange(count)))
        assert len(self.stored()) == count and not (folder / "set-aside").exists()
