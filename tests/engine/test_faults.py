"""Faults, each really done to a running command: nothing is lost, nothing finished is computed twice."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from processes import PATIENCE, TOYS, Scene, reproduce
from toys import Squares

from nullcline.engine import make_plan

NAMES = {
    point.digest + ".nc": f"squares-{point.parameters['n']}"
    for point in make_plan(Squares(), "paper").points()
}


@pytest.fixture
def scene(tmp_path):
    scene = Scene(tmp_path)
    yield scene
    scene.close()


@pytest.mark.slow
def test_the_driver_is_killed_twenty_times(scene):
    words = reproduce("toy/squares", "--preset", "paper", out=scene.out)
    finished = []
    for attempt in range(20):
        before = scene.stored()
        # The run cannot get past this point, however slow the test is to act.
        stop = 4 * attempt + 6
        process = scene.start(words, TOY_STOP=str(stop))
        if attempt % 2:
            # In the middle of a point.
            scene.wait(lambda: scene.counts()[f"squares-{stop}"], process)  # noqa: B023
        else:
            # Right after a file appears: in a write, between points, wherever the driver is by then.
            scene.wait(lambda: len(scene.stored()) > len(before), process)  # noqa: B023
        process.kill()
        process.wait()
        finished.append((scene.stored(), scene.counts()))
    status, said = scene.run(words)
    assert status == 0, said
    scene.check_squares("paper", 100)
    counts = scene.counts()
    for stored, then in finished:
        for name in stored:
            assert counts[NAMES[name]] == then[NAMES[name]], f"{NAMES[name]} was finished and computed again"
    # A kill costs at most the one point that was under way.
    assert set(counts) == {f"squares-{n}" for n in range(100)} and sum(counts.values()) <= 100 + 20


@pytest.mark.slow
def test_the_driver_of_workers_is_killed(scene):
    words = reproduce("toy/squares", "--workers", "2", out=scene.out)
    process = scene.start(words, TOY_STOP="6")
    scene.wait(lambda: scene.counts()["squares-6"] and len(scene.stored()) >= 5, process)
    process.kill()
    process.wait()
    stored, then = scene.stored(), scene.counts()
    wait_for_orphans(scene)
    status, said = scene.run(words)
    assert status == 0, said
    scene.check_squares("quick", 12)
    counts = scene.counts()
    assert all(counts[NAMES[name]] == then[NAMES[name]] for name in stored)


def wait_for_orphans(scene):
    """Every process that computed a point must end by itself."""
    computers = {int(text) for path in scene.marks.iterdir() if (text := path.read_text())}
    deadline = time.monotonic() + PATIENCE
    while any(is_alive(pid) for pid in computers):
        assert time.monotonic() < deadline, "a process outlived the command that it computed for"
        time.sleep(0.02)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            # A zombie has ended; in a container nobody may collect it.
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.slow
@pytest.mark.parametrize("how", [[], ["--workers", "2"]], ids=["here", "workers"])
def test_control_c_stops_cleanly_and_the_same_command_goes_on(scene, how):
    words = reproduce("toy/squares", *how, out=scene.out)
    process = scene.start(words, TOY_STOP="3")
    scene.wait(lambda: scene.counts()["squares-3"] and len(scene.stored()) >= 3, process)
    # As a terminal does it: to the whole group.
    os.killpg(process.pid, signal.SIGINT)
    status, said = scene.end(process)
    assert status == 130, said
    assert "stopped; every finished point is stored" in said and "Traceback" not in said
    wait_for_orphans(scene)
    stored, then = scene.stored(), scene.counts()
    status, said = scene.run(words)
    assert status == 0, said
    scene.check_squares("quick", 12)
    assert all(scene.counts()[NAMES[name]] == then[NAMES[name]] for name in stored)


@pytest.mark.slow
def test_two_drivers_share_a_folder(scene):
    gate = scene.folder / "gate"
    words = reproduce("toy/squares", out=scene.out)
    first, second = (scene.start(words, TOY_GATE=str(gate)) for _ in range(2))
    scene.wait(lambda: scene.counts()["squares-0"] >= 2, first)
    gate.touch()
    for process in (first, second):
        status, said = scene.end(process)
        assert status == 0, said
    scene.check_squares("quick", 12)
    assert max(scene.counts().values()) <= 2
    assert not list(scene.out.rglob("*.part"))


class Cluster:
    """A Dask scheduler and its workers, each a process of its own."""

    def __init__(self, scene, protocol="tcp", **environment):
        self.scene = scene
        self.file = scene.folder / "scheduler.json"
        self.scheduler = scene.start(
            [
                sys.executable,
                "-m",
                "dask",
                "scheduler",
                "--protocol",
                protocol,
                "--host",
                "127.0.0.1",
                "--port",
                "0",
                "--no-dashboard",
            ]
            + ["--scheduler-file", str(self.file)],
            **environment,
        )
        scene.wait(self.is_ready, self.scheduler)
        self.address = json.loads(self.file.read_text())["address"]

    def is_ready(self):
        try:
            return bool(json.loads(self.file.read_text())["address"])
        except (FileNotFoundError, ValueError):
            return False

    def worker(self, **environment):
        return self.scene.start(
            [
                sys.executable,
                "-m",
                "dask",
                "worker",
                self.address,
                "--nthreads",
                "1",
                "--no-nanny",
                "--no-dashboard",
            ]
            + ["--host", "127.0.0.1", "--local-directory", str(self.scene.folder)],
            **environment,
        )


@pytest.mark.slow
def test_a_dask_worker_is_killed(scene):
    cluster = Cluster(scene)
    gate = scene.folder / "gate"
    first = cluster.worker(TOY_GATE=str(gate), JAX_ENABLE_X64="0")
    driver = scene.start(reproduce("toy/squares", "--scheduler", cluster.address, out=scene.out))
    scene.wait(lambda: scene.counts().total() >= 1, driver)
    first.kill()
    first.wait()
    gate.touch()
    cluster.worker(TOY_GATE=str(gate), JAX_ENABLE_X64="0")
    status, said = scene.end(driver)
    assert status == 0, said
    scene.check_squares("quick", 12)
    # The one point that died with its worker was computed again, and no other.
    assert scene.counts().total() == 13
    wait_for_orphans(scene)


@pytest.mark.slow
def test_the_scheduler_stops(scene):
    cluster = Cluster(scene)
    cluster.worker(TOY_STOP="5")
    words = reproduce("toy/squares", out=scene.out)
    driver = scene.start([*words, "--scheduler", cluster.address])
    scene.wait(lambda: scene.counts()["squares-5"] and len(scene.stored()) >= 4, driver)
    cluster.scheduler.kill()
    status, said = scene.end(driver)
    assert status == 1, said
    assert "error: the connection to the scheduler was lost" in said and "the same command goes on" in said
    assert "Traceback" not in said
    stored, then = scene.stored(), scene.counts()
    status, said = scene.run(words)
    assert status == 0, said
    scene.check_squares("quick", 12)
    assert all(scene.counts()[NAMES[name]] == then[NAMES[name]] for name in stored)


@pytest.mark.slow
def test_a_scheduler_behind_tls(scene):
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl, which makes the certificate")
    key, certificate = scene.folder / "key.pem", scene.folder / "certificate.pem"
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*new, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    tls = "DASK_DISTRIBUTED__COMM__TLS__"
    environment = {tls + "CA_FILE": str(certificate)}
    for role in ("SCHEDULER", "WORKER", "CLIENT"):
        environment |= {f"{tls}{role}__CERT": str(certificate), f"{tls}{role}__KEY": str(key)}
    cluster = Cluster(scene, "tls", **environment)
    cluster.worker(**environment)
    words = reproduce("toy/squares", "--scheduler", cluster.address, out=scene.out)
    status, said = scene.run(words)
    assert status == 1 and "needs certificates" in said and "Traceback" not in said, said
    status, said = scene.run(words, **environment)
    assert status == 0, said
    scene.check_squares("quick", 12)


def test_a_scheduler_that_is_not_there_is_named(scene):
    words = reproduce("toy/squares", "--scheduler", "tcp://127.0.0.1:9", out=scene.out)
    status, said = scene.run(words)
    assert (
        status == 1 and "error: no scheduler answers at tcp://127.0.0.1:9" in said and "Traceback" not in said
    )


def in_namespace(scene, script):
    """Run a shell script that may mount file systems; they vanish with it."""
    probe = ["unshare", "--user", "--map-root-user", "--mount"]
    try:
        allowed = subprocess.run(
            [*probe, "mount", "-t", "tmpfs", "tmpfs", str(scene.marks)], capture_output=True, text=True
        )
    except FileNotFoundError:
        pytest.skip("unshare is not installed, so no small file system can be mounted")
    if allowed.returncode:
        pytest.skip(f"mounting a file system is not allowed here: {allowed.stderr.strip()}")
    scene.out.mkdir()
    return scene.run([*probe, "sh", "-c", script], PYTHON=sys.executable, TOYS=str(TOYS), OUT=str(scene.out))


REPRODUCE = '"$PYTHON" -m nullcline.cli reproduce toy/squares --preset paper --studies "$TOYS" --out "$OUT"; '


@pytest.mark.slow
def test_a_full_disk_is_named_and_loses_nothing(scene):
    script = (
        'mount -t tmpfs -o size=400k tmpfs "$OUT"; '
        + REPRODUCE
        + 'echo "first $?"; cd "$OUT"/toy/squares/points; ls | grep -c "nc$"; ls | grep -c part; cd /; '
        + 'mount -o remount,size=50m "$OUT"; '
        + REPRODUCE
        + 'echo "second $?"; cp -r "$OUT" "$OUT-copy"'
    )
    _, said = in_namespace(scene, script)
    lines = said.splitlines()
    assert "error: cannot write" in said and "No space left on device" in said and "Traceback" not in said
    place = lines.index("first 1")
    kept, parts = int(lines[place + 1]), int(lines[place + 2])
    assert 10 <= kept < 100 and parts == 0
    assert "second 0" in lines
    # Everything that was kept was used: only the point that met the full disk was computed twice.
    assert scene.counts().total() == 101
    scene.out = scene.out.with_name("out-copy")
    scene.check_squares("paper", 100)


@pytest.mark.slow
def test_a_read_only_folder_is_named_before_anything_is_computed(scene):
    script = (
        'mount -t tmpfs tmpfs "$OUT"; mkdir -p "$OUT"/toy; mount -o remount,ro "$OUT"; '
        + REPRODUCE
        + 'echo "status $?"; '
        + REPRODUCE.replace("reproduce", "reproduce --dry-run")
        + 'echo "dry $?"'
    )
    _, said = in_namespace(scene, script)
    assert "status 1" in said.splitlines() and "Read-only file system" in said and "Traceback" not in said
    assert "error: cannot write to " in said
    assert "toy/squares: 100 of 100 points to compute" in said and "dry 0" in said.splitlines()
    assert scene.counts().total() == 0
