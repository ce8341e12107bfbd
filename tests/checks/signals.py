#!/usr/bin/env python3
# Trainings that end before their time: by signals, with everything written; by SIGKILL at random
# moments, with checkpoint and log whole, and resumed to the same bits. With -v says what it does.
import contextlib
import fcntl
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["LAMINA_SOURCE"] + "/tests/support")
from expecting import end, expect, fail

programs = pathlib.Path(os.environ["LAMINA_BUILD"]) / "bin"
verbose = "-v" in sys.argv
for variable in [v for v in os.environ if v.startswith("LAMINA_")]:
    del os.environ[variable]
root = pathlib.Path(tempfile.mkdtemp(prefix="signals."))
patience = 60  # seconds, for a machine that has much else to do


class Job:
    """A training that is under way: it has written some steps to its log."""

    def __init__(self, folder, *arguments, ranks=1, steps=3, program="lamina", **environment):
        self.folder = root / folder
        self.folder.mkdir(exist_ok=True)
        self.log, self.save = self.folder / "log", self.folder / "save"
        launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
        files = ["train", "--no-validation", "--save", "save", "--log", "log"]
        self.line = [*launcher, str(programs / program), *(files if program == "lamina" else []),
                     "--batch-size", "8", *map(str, arguments)]
        self.mark = f"SIGNALS={self.folder}"
        with open(self.folder / "out", "w") as out:
            self.process = subprocess.Popen(
                self.line, stdout=out, stderr=subprocess.STDOUT, cwd=self.folder,
                stdin=subprocess.DEVNULL, start_new_session=True,
                env={**os.environ, "SIGNALS": str(self.folder), **environment})
        if program == "lamina" and steps:
            self.wait_for(lambda: self.logged() >= steps)

    def logged(self):
        return self.log.read_bytes().count(b"\n") if self.log.is_file() else 0

    def wait_for(self, what):
        end = time.monotonic() + patience
        while not what() and self.process.poll() is None:
            if time.monotonic() > end:
                fail(f"{' '.join(self.line)}: does not come to it", self.out())
                break
            time.sleep(0.01)

    def out(self):
        return (self.folder / "out").read_text(errors="replace")

    def check_apart(self, ranks=1):
        """Signals come to threads that run no layers: see SignalThread."""
        processes = self.ranks().values()
        expect(len(processes) == ranks, f"{len(processes)} processes", self.out())
        for process in processes:
            takes = []
            for task in pathlib.Path(f"/proc/{process}/task").iterdir():
                with contextlib.suppress(OSError):  # it has ended
                    status = (task / "status").read_text()
                    blocked = int(re.search(r"^SigBlk:\s*(\w+)", status, re.M)[1], 16)
                    if not blocked >> (signal.SIGTERM - 1) & 1:
                        takes.append(int(task.name))
            # Open MPI and the World have threads of their own, which are there before.
            expect(takes and process not in takes and (len(takes) == 1 or ranks > 1),
                   f"process {process}: the threads {takes} take signals", self.out())

    def ranks(self):
        """Process by rank."""
        found = {}
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                variables = (process / "environ").read_bytes().split(b"\0")
                name = (process / "comm").read_text().strip()
            except OSError:
                continue
            if self.mark.encode() in variables and name in ("lamina", "bench_network"):
                rank = [v for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")]
                found[int(rank[0].split(b"=")[1]) if rank else 0] = int(process.name)
        return found

    def status(self):
        try:
            return self.process.wait(patience)
        except subprocess.TimeoutExpired:
            fail(f"{' '.join(self.line)}: does not end", self.out())
            os.killpg(self.process.pid, signal.SIGKILL)
            for process in self.ranks().values():
                os.kill(process, signal.SIGKILL)
            return self.process.wait()

    def steps(self):
        """Those of the log; each line must be whole."""
        text = self.log.read_text()
        expect(text.endswith("\n") or not text, f"{self.log} ends in half a line", text)
        return [json.loads(line)["step"] for line in text.splitlines()]

    def saved(self):
        with open(self.save, "rb") as file:
            size = struct.unpack("<Q", file.read(8))[0]
            return int(json.loads(file.read(size))["__metadata__"]["step"])

    def check_ended(self, status, number, code=None):
        """What a signal must leave behind."""
        name, out = signal.Signals(number).name, self.out()
        if verbose:
            print(f"{' '.join(self.line)}: status {status}, step {self.saved()}", flush=True)
        expect(status == (128 + number if code is None else code), f"{name}: status {status}", out)
        steps = self.steps()
        expect(steps == list(range(1, len(steps) + 1)), f"{name}: steps of the log are {steps}")
        expect(self.saved() == steps[-1], f"{name}: saved at {self.saved()}, log to {steps[-1]}")
        return out, steps[-1]


def report_flags():
    return "--report", "report", "--json", "json", "--ceilings", "auto"


def one_rank():
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        job = Job(f"one-{number}", *report_flags(), "--epochs", 100000, steps=20,
                  LAMINA_CACHE=str(root / "no-cache"), OMP_NUM_THREADS="2")
        job.check_apart()
        os.kill(job.process.pid, number)
        out, step = job.check_ended(job.status(), number)
        expect(f"# {signal.Signals(number).name}: ended after step {step}\n" in out, "no word", out)
        expect(re.search(r"^conv1 ", out, re.M) and "measuring" not in out, "no table", out)
        expect((job.folder / "report/index.html").exists(), "no report", out)
        expect((job.folder / "json").exists(), "no profile", out)

    # As `timeout` sends it. Both are there when it goes on; which of them it sees first is for the
    # kernel to say.
    job = Job("twice-at-once", "--epochs", 100000)
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGINT, signal.SIGCONT):
        os.kill(job.process.pid, number)
    status = job.status()
    job.check_ended(status, signal.SIGINT if status == 128 + signal.SIGINT else signal.SIGTERM)

    job = Job("bench", "--model", "lenet", "--iters", 10000000, "--warmup", 0, "--display-every", 1,
              program="bench_network")
    job.wait_for(lambda: "\t" in job.out().partition("loss\n")[2])
    job.check_apart()
    os.kill(job.process.pid, signal.SIGTERM)
    status = job.status()
    expect(status == 143 and "total images/sec" in job.out(), f"bench: {status}", job.out())

    job = Job("recording", "--model", "lenet", "--iters", 1, "--profile-steps", 50000,
              program="bench_network")
    job.wait_for(lambda: "\t" in job.out().partition("loss\n")[2])
    time.sleep(0.3)
    os.kill(job.process.pid, signal.SIGTERM)
    status = job.status()
    expect(status == 143 and "total images/sec" in job.out() and "conv1" not in job.out(),
           f"while it records: {status}", job.out())


def second_signal():
    """Its log is a pipe that is full and that nobody reads: it cannot go on."""
    folder = root / "second"
    folder.mkdir()
    os.mkfifo(folder / "log")
    pipe = os.open(folder / "log", os.O_RDWR)
    fcntl.fcntl(pipe, 1031, 4096)  # F_SETPIPE_SZ
    os.write(pipe, b"\n" * 4096)
    job = Job("second", "--epochs", 100000, steps=0)
    job.wait_for(lambda: re.search("^epoch 1 ", job.out(), re.M))  # printed before it is logged
    os.kill(job.process.pid, signal.SIGINT)
    time.sleep(0.5)
    if expect(job.process.poll() is None, "the first signal ended it at once", job.out()):
        os.kill(job.process.pid, signal.SIGINT)
    status = job.status()
    expect(status == -signal.SIGINT, f"the second signal: status {status}", job.out())
    os.close(pipe)


def mpirun():
    job = Job("forwarded", *report_flags(), "--epochs", 100000, ranks=2, steps=20,
              LAMINA_CACHE=str(root / "no-cache"))
    job.check_apart(2)
    os.kill(job.process.pid, signal.SIGUSR1)
    out, _ = job.check_ended(job.status(), signal.SIGUSR1)
    expect(re.search(r"^conv1 ", out, re.M), "no table", out)
    for number, ranks in ((signal.SIGTERM, [1]), (signal.SIGINT, [0]), (signal.SIGTERM, [0, 1, 2])):
        job = Job(f"some-{number}-{len(ranks)}", "--epochs", 100000, ranks=3)
        processes = job.ranks()
        for rank in ranks:
            os.kill(processes[rank], number)
        job.check_ended(job.status(), number)
    # mpirun's way to end its ranks, with time enough; its own status is 1.
    job = Job("asked", "--epochs", 100000, ranks=2, OMPI_MCA_odls_base_sigkill_timeout="10")
    os.kill(job.process.pid, signal.SIGTERM)
    job.check_ended(job.status(), signal.SIGTERM, 1)
    # As a batch system does it: to all processes; mpirun passes on its own in addition.
    job = Job("everybody", "--epochs", 100000, ranks=2)
    for process in [*job.ranks().values(), job.process.pid]:
        os.kill(process, signal.SIGUSR1)
    job.check_ended(job.status(), signal.SIGUSR1)


def killed(ranks, kills):
    """Killed again and again, a training ends as one that was left alone, bit by bit."""
    arguments = ("--epochs", 100000, "--limit", 200, "--steps", 120, "--save-every", 3, "--keep", 1,
                 "--profile-steps", 0, "--optimizer", "adam", "--threads", 1)
    whole = Job(f"left-alone-{ranks}", *arguments, ranks=ranks)
    expect(whole.status() == 0, "left alone", whole.out())
    chance, resume = random.Random(ranks), ()
    for kill in range(kills):
        job = Job(f"killed-{ranks}", *arguments, *resume, ranks=ranks, steps=0)
        at = (kill + 1) * 120 // (kills + 1)  # somewhere between these steps
        job.wait_for(lambda: job.logged() > at)
        time.sleep(chance.uniform(0, 0.01))
        running = job.ranks()
        if 0 in running:
            os.kill(running[0], signal.SIGKILL)
        job.status()
        if job.save.exists():
            expect(job.saved() <= (job.steps() or [0])[-1], "the log is behind the checkpoint")
            resume = ("--resume",)
        dead = subprocess.Popen(["true"])
        dead.wait()
        (job.folder / f"save.tmp.{dead.pid}").write_text("half")
    job = Job(f"killed-{ranks}", *arguments, *resume, ranks=ranks, steps=0)
    expect(job.status() == 0, "resumed", job.out())
    if verbose:
        print(f"{ranks} ranks: killed {kills} times", flush=True)
    expect(job.steps() == list(range(1, 121)), f"steps of the log are {job.steps()}")
    expect(job.save.read_bytes() == whole.save.read_bytes(), f"{ranks} ranks: other bits")
    losses = [[json.loads(line)["loss"] for line in log.read_text().splitlines()]
              for log in (job.log, whole.log)]
    expect(losses[0] == losses[1], "other losses")
    left = sorted(p.name for p in job.folder.iterdir())
    expect(len(left) == 4 and left[3].startswith("save.step-"), f"left behind: {left}")


def one_log():
    job = Job("one-log", "--epochs", 100000)
    for ranks in 1, 2:
        launcher = ["mpirun", "-n", "2"] if ranks == 2 else []
        other = subprocess.run([*launcher, programs / "lamina", "train", "--log", "log"],
                               cwd=job.folder, capture_output=True, text=True, timeout=patience)
        expect(other.returncode == 1 and other.stdout == "" and
               other.stderr.startswith("lamina: error: --log log: another job is writing it\n"),
               f"two jobs on one log: {other.returncode}", other.stdout + other.stderr)
    os.kill(job.process.pid, signal.SIGTERM)
    job.check_ended(job.status(), signal.SIGTERM)


def kept():
    job = Job("kept", "--limit", 80, "--epochs", 5, "--keep", 2, "--keep-best", steps=0)
    expect(job.status() == 0, "--keep", job.out())
    names = sorted(p.name for p in job.folder.iterdir())
    expect(names == ["log", "out", "save", "save.best", "save.step-000030", "save.step-000040"],
           f"kept: {names}", job.out())
    expect("best checkpoint: save.best\n" in job.out(), "no word of the best", job.out())


try:
    one_rank(), second_signal(), one_log(), kept(), killed(1, 5)
    if shutil.which("mpirun"):
        mpirun(), killed(2, 2)
finally:
    shutil.rmtree(root, ignore_errors=True)
end()
