# Jobs under `lamina launch`, for checks that disturb them from outside. A check leaves through
# finish().
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from expecting import end, expect

lamina = str(pathlib.Path(os.environ["LAMINA_BUILD"]) / "bin/lamina")
cluster = pathlib.Path(os.environ["LAMINA_SOURCE"]) / "tests/cluster"
verbose = "-v" in sys.argv
chosen = [a for a in sys.argv[1:] if a != "-v"]
seeds = [int(a) for a in chosen if a.isdigit()] or [1, 2]
for variable in [v for v in os.environ if v.startswith("LAMINA_")]:
    del os.environ[variable]
os.environ["OMP_WAIT_POLICY"] = "passive"
if not shutil.which("mpirun"):
    print("mpirun is missing")
    sys.exit(77)
root = pathlib.Path(tempfile.mkdtemp(prefix="launch."))
patience = 60  # seconds, for a machine that has much else to do
every = 50  # steps between snapshots
flags = ("--limit", "480", "--global-batch", "24", "--epochs", "100000", "--no-validation",
         "--profile-steps", "0", "--threads", "1", "--log", "log", "--save", "save")
training = (lamina, "train", "--model", "lenet", *flags)
exact = (lamina, "train", "--model", "lenet", "--dtype", "f64", *flags)
normed = (lamina, "train", "--model", "resnet20", "--image-size", "8", "--workers", "4", *flags)


class Job:
    def __init__(self, folder, launch, *program, **environment):
        self.folder = root / folder
        self.folder.mkdir(exist_ok=True)
        self.mark = f"LAUNCH_CHECK={self.folder}".encode()
        self.line = launch and [lamina, "launch", *map(str, launch), "--"] or []
        self.line += list(map(str, program))
        with open(self.folder / "out", "w") as out, open(self.folder / "err", "w") as err:
            self.process = subprocess.Popen(
                self.line, stdout=out, stderr=err, cwd=self.folder, stdin=subprocess.DEVNULL,
                env={**os.environ, **environment, "LAUNCH_CHECK": str(self.folder)})

    def err(self):
        return (self.folder / "err").read_text(errors="replace")

    def processes(self, of_rank=None):
        """All but the launcher; those of one rank, or of the one that is None's: all."""
        found = []
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                variables = (process / "environ").read_bytes().split(b"\0")
                state = (process / "stat").read_text().rsplit(")", 1)[1].split()[0]
            except OSError:
                continue
            if self.mark not in variables or state == "Z" or int(process.name) == self.process.pid:
                continue
            rank = [v for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")]
            if of_rank is None or (rank and int(rank[0].split(b"=")[1]) == of_rank):
                found.append(int(process.name))
        return found

    def logged(self):
        log = self.folder / "log"
        return log.read_bytes().count(b"\n") if log.is_file() else 0

    def wait_for(self, what):
        end = time.monotonic() + patience
        while not what() and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.005)
        return expect(what(), f"{' '.join(self.line)}: does not come to it", self.err())

    def kill(self, *ranks, after, number=signal.SIGKILL):
        """These, once so many steps are in the log. Returns their processes."""
        self.wait_for(lambda: self.logged() >= after)
        found = [process for rank in ranks for process in self.processes(rank)]
        for process in found:
            with contextlib.suppress(ProcessLookupError):  # mpirun was quicker
                os.kill(process, number)
        return found

    def stops(self):
        """When it is asked to, in order."""
        os.kill(self.process.pid, signal.SIGTERM)
        expect(self.process.wait(patience) == 143, self.folder.name, self.err())
        self.leaves_nothing()

    def ends(self, status, *lines):
        """With this status, and these patterns as the lines on stderr."""
        try:
            found = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            found = "none: it does not end"
        out = self.err()
        if verbose:
            print(f"{' '.join(self.line)}: status {found}\n{out}", end="", flush=True)
        expect(found == status, f"{' '.join(self.line)}: status {found}, expected {status}", out)
        said = out.splitlines()
        expect(len(said) == len(lines) and all(map(re.fullmatch, lines, said)),
               f"{' '.join(self.line)}: expected the lines\n" + "\n".join(lines), out)
        self.leaves_nothing()
        return out

    def leaves_nothing(self):
        end = time.monotonic() + 10
        while self.processes() and time.monotonic() < end:
            time.sleep(0.05)
        expect(not self.processes(), f"{' '.join(self.line)}: left behind: {self.processes()}")

    def steps(self):
        return [line["step"] for line in self.log() if "loss" in line]

    def losses(self):
        return [line["loss"] for line in self.log() if "loss" in line]

    def log(self):
        return [json.loads(line) for line in (self.folder / "log").open()]

    def has_restarts(self, *expected):
        """Ranks before, ranks, and a pattern for why: on stdout and in the log."""
        found = [line for line in self.log() if "ranks_before" in line]
        out = re.sub(r"\n#  +", " ", (self.folder / "out").read_text())  # lines that were broken
        said = re.findall(r"^# restart at step (\d+): (\d+) -> (\d+) ranks \((.*)\), "
                          r"pause [0-9.]+ s, [0-9.]+ MB read$", out, re.M)
        told = [(str(r["step"]), str(r["ranks_before"]), str(r["ranks"]), r["why"]) for r in found]
        expect(len(found) == len(expected) and told == said and
               all((r["ranks_before"], r["ranks"]) == e[:2] and re.fullmatch(e[2], r["why"]) and
                   r["pause_ms"] > 0 and r["bytes"] > 1e5 for r, e in zip(found, expected)),
               f"restarts: expected {expected}", f"{found}\n{said}")

    def saved(self):
        return (self.folder / "save").read_bytes()


def script(name, text):
    (root / name).write_text(text)
    (root / name).chmod(0o755)
    return root / name


# With which mpirun lets the others go on when a rank is lost, if it can; they know of no signal.
mpi = subprocess.run(["mpirun", "--version"], capture_output=True).stdout
outlive = ["--with-ft", "ulfm"] if b"(Open MPI) 5" in mpi else []
rank_1_lost = "rank 1 was lost" if outlive else r"rank 1 was lost \(signal 9\)"
anew = " before the first step of a training: starting anew"


def goes_on(why, ranks):
    return (rf"lamina launch: {why}: going on with {ranks} from step (\d+), (\d+) steps? repeated, "
            r"[0-9.]+ s")


def check_restart(line):
    step, repeated = map(int, (re.findall(r"step (\d+), (\d+) step", line) or [(1, 0)])[0])
    expect(step % every == 0 and repeated <= every, f"from another step: {line}")


def finish(checks):
    """Runs them, or those that the command line names, and ends."""
    begin = time.monotonic()
    names = [a for a in chosen if not a.isdigit()]
    try:
        for check in checks:
            if names and check.__name__ not in names:
                continue
            check()
            if verbose:
                print(f"{check.__name__}: up to {time.monotonic() - begin:.1f} s", flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    end()
