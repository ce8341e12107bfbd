# Jobs whose ranks come and go, for checks that watch them from outside: what starts and ends them,
# and what looks at their processes. A check leaves through finish().
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

lamina = str(pathlib.Path(os.environ["LAMINA_BUILD"]) / "bin/lamina")
if not shutil.which("mpirun"):
    print("no mpirun")
    sys.exit(77)
for variable in [v for v in os.environ if v.startswith("LAMINA_")]:
    del os.environ[variable]
os.environ |= {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
root = pathlib.Path(tempfile.mkdtemp(prefix="elastic."))
failures = 0
hung = False  # mpirun, while it started a rank: see docs/elastic.md, "Ranks that are started later"
training = ["train", "--model", "lenet", "--limit", "480", "--global-batch", "24", "--epochs",
            "1000000", "--no-validation", "--profile-steps", "0"]  # what ends it is --steps
elastic = ["--elastic", "--workers", "4"]


def expect(that, what, out=""):
    global failures
    if not that:
        failures += 1
        told = "\n".join(x for x in out.splitlines() if not x.startswith(("epoch", "step")))
        print(f"{what}\n{told[-3000:]}\n---", flush=True)
    return that


def start(ranks, *flags):
    return start_launched(ranks if ranks > 1 else 0, *flags)


def start_launched(ranks, *flags, program=lamina):
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 0 else []
    said = tempfile.TemporaryFile("w+")  # a pipe that nobody reads would hold the job up once full
    process = subprocess.Popen([*launcher, program, *map(str, flags)], cwd=root,
                               stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
                               start_new_session=True)
    process.said = said
    return process


def end(process, patience=100):
    global hung
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        expect(False, f"{process.args}: does not end")
        return ""
    process.said.seek(0)
    out = process.said.read()
    hung = hung or "mpirun has not started them in 60 s" in " ".join(
        line.lstrip("# ") for line in out.splitlines())
    return out


def run(ranks, *flags, status=0):
    return ended(start(ranks, *flags), status)


def run_launched(ranks, *flags, status=0):
    """One rank with mpirun, too."""
    return ended(start_launched(ranks, *flags), status)


def ended(process, status):
    out = end(process)
    expect(process.returncode == status, f"{process.args}: status {process.returncode}", out)
    return out


def log_of(name):
    lines = [json.loads(line) for line in (root / name).read_text().splitlines()]
    return [x["loss"] for x in lines if "loss" in x], [x for x in lines if "ranks_before" in x]


def resize(job, ranks):
    return subprocess.run([lamina, "resize", str(job), str(ranks)], capture_output=True, text=True,
                          cwd=root)


def wait_for(what, seconds=60):
    limit = time.monotonic() + seconds
    while not (found := what()) and time.monotonic() < limit:
        time.sleep(0.02)
    return found


def processes_of(process):
    """Those of the ranks, by rank."""
    found = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        rank = [v for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")]
        if rank and parent == process.pid:
            found[int(rank[0].split(b"=")[1])] = int(entry.name)
    return found


def ask_to_end(pid):
    """SIGTERM, once the process has come to where it ends in order."""
    def catches():
        with contextlib.suppress(OSError):  # it has gone
            status = pathlib.Path(f"/proc/{pid}/status").read_text()
            caught = int(re.search(r"^SigCgt:\s*(\w+)", status, re.M)[1], 16)
            return caught >> (signal.SIGTERM - 1) & 1
    if expect(wait_for(catches), f"process {pid} does not catch SIGTERM"):
        os.kill(pid, signal.SIGTERM)


def end_when_resized(process, log, resizes):
    """Asks it to end when it has been resized so often, and has trained for some steps more."""
    def resized():
        losses, done = log_of(log) if (root / log).exists() else ([], [])
        return len(done) >= resizes and len(losses) > done[-1]["step"] + 20

    expect(wait_for(resized, 100), f"{process.args}: is not resized {resizes} times")
    ranks = processes_of(process)
    if ranks:
        ask_to_end(ranks[0])
    out = end(process)
    steps = len(log_of(log)[0])
    expect(process.returncode == 143 and re.search(rf"SIGTERM: ended after step {steps}\b", out),
           f"{process.args}: status {process.returncode}, {steps} steps in the log", out)
    return out


def ticks(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[11]) + int(fields[12])


def commands(job):
    """Processes that were started with this job's socket."""
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(job).encode() in words and words[0].endswith(b"lamina"):
            found.append(int(entry.name))
    return found


def held_mb(pids):
    """Memory that these processes have touched; what they share counts once."""
    maps = [pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(re.search(r"^Pss:\s+(\d+)", m, re.M)[1]) for m in maps) / 1e3


def largest_mappings(pid, count=6):
    """[MB that are touched, what is mapped], as held_mb() counts them."""
    mapping = r"^[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ \S+ *(.*)$(?:\n(?!Pss:).*)*?\nPss: +(\d+)"
    found = re.findall(mapping, pathlib.Path(f"/proc/{pid}/smaps").read_text(), re.M)
    return sorted(([int(kb) / 1e3, what] for what, kb in found), reverse=True)[:count]


def finish(checks):
    """Runs them, or those that the command line names, and ends. What fails while mpirun hangs, of
    which the library can only tell, is run again."""
    global failures, hung
    chosen = [a for a in sys.argv[1:] if a != "-v"]
    for check in checks:
        if not chosen or check.__name__ in chosen:
            begin, before = time.monotonic(), failures
            check()
            if hung and failures > before:
                print(f"{check.__name__}: mpirun hung: once more", flush=True)
                hung, failures = False, before
                check()
            print(f"{check.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    if failures == 0:
        shutil.rmtree(root)
    sys.exit(failures > 0)
