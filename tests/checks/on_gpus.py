#!/usr/bin/env python3
# The tool as a CUDA program, whole, on the stand-ins for CUDA and NCCL: trains as on the processor,
# and whatever its GPUs lack or lose, all ranks end within seconds, with status 1 and one line, and
# the last checkpoint stays. With -v prints the lines.
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["LAMINA_SOURCE"] + "/tests/support")
from expecting import end, expect

program = pathlib.Path(os.environ["LAMINA_BUILD"]) / "bin/fake_cuda_lamina"
verbose = "-v" in sys.argv
for variable in [v for v in os.environ if v.startswith(("LAMINA_", "CUDA_"))]:
    del os.environ[variable]
if not program.exists():
    print(f"no {program}")
    sys.exit(77)
has_mpi = shutil.which("mpirun") and b"Open MPI" in subprocess.check_output([program, "info"])
root = pathlib.Path(tempfile.mkdtemp(prefix="on_gpus."))
patience = 60  # seconds


train = ("train", "--model", "lenet", "--ceilings", "none")
few = ("--limit", 64)
brief = (*train, *few, "--no-validation", "--profile-steps", 0)
on_gpu, on_cpu = ("--device", "cuda"), ("--backend", "reference")


class Run:
    """`arguments` of the tool on so many ranks; `environment` is the last rank's, or of `all`."""

    def __init__(self, *arguments, ranks=1, all=False, **environment):
        own = ["env", *(f"{name}={value}" for name, value in environment.items())]
        command = [str(program), *map(str, arguments)]
        line = [*own, *command]
        if ranks > 1:
            first = line if all else command
            line = ["mpirun", "-n", str(ranks - 1), *first, ":", "-n", "1", *line]
        self.line = " ".join(line)
        begin = time.monotonic()
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   cwd=root, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            self.out, self.err = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            subprocess.run(["pkill", "-KILL", "-f", str(program)])  # ranks have groups of their own
            self.out, self.err = process.communicate()
        self.status, self.seconds = process.returncode, time.monotonic() - begin
        self.errors = re.findall(r"^lamina: error: (.*)$", self.err, re.M)

    def text(self):
        return f"{self.line}\nstatus {self.status}, {self.seconds:.1f} s\n{self.out}{self.err}"


def good(*arguments, **how):
    run = Run(*arguments, **how)
    expect(run.status == 0, "expected status 0", run.text())
    return run.out


def bad(pattern, *arguments, **how):
    run = Run(*arguments, **how)
    expect(run.status == 1, "expected status 1", run.text())
    expect(len(run.errors) == 1 and re.search(pattern, run.errors[0]),
           f"expected one line: {pattern}", run.text())
    expect(run.seconds < 30, "expected that all ranks are gone within seconds", run.text())
    if verbose and run.errors:
        print(run.errors[0], flush=True)
    return run


def losses(log):
    return [json.loads(line)["loss"] for line in (root / log).read_text().splitlines()]


def files(name):
    return "--save", name, "--log", name + ".log"


def same_training():
    """In f64 the losses are those of the reference; the same bits in whatever order kernels run."""
    def trained(name, epochs, *how, **where):
        return good(*brief, "--dtype", "f64", "--global-batch", "16", "--epochs", epochs,
                    *files(name), *how, **where)

    trained("cpu", 3, *on_cpu)
    wanted = losses("cpu.log")
    expect(len(wanted) == 12 and len(set(wanted)) == 12, f"expected losses, got {wanted}")
    out = trained("gpu", 3, *on_gpu)
    expect("device cuda:0" in out and "# steps are recorded\n" in out, "expected a graph", out)
    out = trained("eager", 3, *on_gpu, "--graph", "off")
    expect("# steps are not recorded: that was not asked for\n" in out, "expected none", out)
    trained("moved", 1, *on_gpu)  # from there to here, and back
    trained("moved", 2, *on_cpu, "--resume")
    out = trained("moved", 3, *on_gpu, "--resume")
    expect("# resumed at step 8\n" in out, "expected that it goes on", out)
    trained("order", 3, *on_gpu, LAMINA_DEVICE_SEED=7)
    for name in ("eager", "order"):
        expect((root / name).read_bytes() == (root / "gpu").read_bytes(), f"{name}: other bits")

    trained("parts of a GPU", 3, *on_gpu, "--workers", 4)
    for name, *how in (("micro", *on_gpu, "--micro-batch", 4), ("fused", *on_gpu, "--fuse")):
        trained(name, 3, *how)
    rest = ["gpu", "moved", "micro", "fused", "parts of a GPU"]
    if has_mpi:
        trained("parts of two", 3, *on_gpu, "--workers", 4, ranks=2)
        expect((root / "parts of two").read_bytes() == (root / "parts of a GPU").read_bytes(),
               "workers on two ranks: other bits")
        out = trained("two", 3, *on_gpu, ranks=2)
        expect("by way of the host" in out, "expected no graph", out)
        trained("channels", 3, *on_gpu, "--plan", "filter", ranks=2)
        rest += ["two", "channels", "parts of two"]
    for name in rest:
        got = losses(name + ".log")
        expect(len(got) == 12 and max(abs(a - b) for a, b in zip(got, wanted)) < 1e-12,
               f"{name}: losses {got}, expected {wanted}")


def shown():
    """Table, profile and report of a training on a GPU."""
    out = good(*train, *few, *on_gpu, "--dtype", "auto", "--batch-size", 8, "--nvtx",
               "--json", "json", "--trace", "trace.json", "--report", "report", "--top", 3)
    for line in ("^# .* bf16$", "^end_to_end "):
        expect(re.search(line, out, re.M), f"expected {line}", out)
    profile = json.loads((root / "json").read_text())
    expect("Fake GPU" in profile["backend"], f"profile: {profile['backend']}")
    expect((root / "report/index.html").stat().st_size > 10000, "no report")
    out = good("info")
    expect(re.search("^cuda .*Fake GPU$", out, re.M), "no GPU in info", out)
    expect("there is a GPU: --device cuda uses it" in good(*brief), "expected a remark")


def refused():
    """What it cannot begin with. A program that needs no GPU runs all the same, and says so."""
    none = {"LAMINA_FAKE_GPUS": 0, "CUDA_VISIBLE_DEVICES": ""}
    expect("CUDA is built in, but no GPU can be used" in good(*brief, **none), "no remark")
    expect("built in; no GPU can be used" in good("info", **none), "no word in info")
    start = "^no GPU can be used: "
    bad(start + "there is none of those in CUDA_VISIBLE_DEVICES=''$", *brief, *on_gpu, **none)
    bad(start + "no CUDA-capable device is detected$", *brief, *on_gpu, LAMINA_FAKE_GPUS=0)
    bad(start + "there is no NVIDIA driver$", *brief, *on_gpu, LAMINA_FAKE_DRIVER=0)
    bad(start + "the driver is for CUDA 12.4, expected 13.0 or newer$", *brief, *on_gpu,
        LAMINA_FAKE_DRIVER=12040)
    bad("^GPU 3: expected one from 0 to 1$", *brief, "--backend", "cuda:3", LAMINA_FAKE_GPUS=2)
    bad("--comm nccl: no GPU can be used", *brief, *on_gpu, "--comm", "nccl", LAMINA_FAKE_GPUS=0)
    if has_mpi:
        bad(f"^rank 1: {start[1:]}there is no NVIDIA driver$", *brief, *on_gpu, ranks=2,
            LAMINA_FAKE_DRIVER=0)
        run = bad("^NCCL needs a GPU for each rank, but ranks 0 and 1 have the same one", *brief,
                  *on_gpu, "--comm", "nccl", ranks=2)
        expect(re.search("rank  GPU  host\n +0 +0 .*\n +1 +0 .*, that of rank 0$", run.err, re.M),
               "expected the ranks' GPUs", run.text())
        # Between processes the stand-in for NCCL finds nobody.
        bad("^rank 1: NCCL: finding all ranks .--comm mpi does without.: unhandled system error",
            *brief, *on_gpu, ranks=2, all=True, LAMINA_FAKE_GPUS=2)


def full():
    """The batch that is said to fit does so."""
    for memory in (2, 4):
        command = (*train, "--limit", 200, "--no-validation", *on_gpu, "--optimizer", "adam",
                   "--batch-size")
        run = bad("^not enough memory of cuda:0: activations and gradients of 200 samples take .*, "
                  "those of layer conv1 .* each, and .* are free for them: expected a batch or "
                  "micro-batch of about [0-9]+$", *command, 200, LAMINA_FAKE_MEMORY=memory)
        if run.errors:
            fits = run.errors[0].split()[-1]
            good(*command, fits, LAMINA_FAKE_MEMORY=memory)
    bad("expected a batch or micro-batch of (about|at most) [1-9]", *train, "--limit", 6000,
        *on_gpu, "--batch-size", 6000, LAMINA_FAKE_MEMORY=16)  # layers take much for themselves
    bad("are free for them: not one sample fits$", "train", "--model", "resnet50", *on_gpu,
        "--batch-size", 8, LAMINA_FAKE_MEMORY=300)
    out = good(*command, 200, "--micro-batch", "auto", LAMINA_FAKE_MEMORY=memory)
    expect("micro-batches of" in out, "expected micro-batches", out)
    if has_mpi:
        bad("^rank 1: .*not enough memory of cuda:0", *command, 32, ranks=2, LAMINA_FAKE_MEMORY=1)


def lost():
    """At any moment: while a network is placed, in a step or a graph, an evaluation or a save."""
    chance = random.Random(1)
    long = (*train, *few, *on_gpu, "--dtype", "f64", "--batch-size", 8)

    def lose(name, after, ranks):
        how = {"ranks": ranks, "LAMINA_DEVICE_SEED": after, "LAMINA_FAKE_LOST": after}
        rank = "^rank 1: " if ranks > 1 else "^"
        bad(rank + "CUDA: .*: the GPU was lost, or a kernel failed on it$", *long, "--epochs", 100,
            "--save-every", 3, *files(name), **how)
        left = [file.name for file in root.glob(name + "*") if not file.name.endswith(".log")]
        expect(left in ([], [name]), f"lost after {after}: left {left}")
        if left:
            out = good(*long, "--epochs", 100, "--steps", 1, "--resume", name, ranks=ranks)
            found = re.search("resumed at step ([0-9]+)", out)
            if expect(found, "expected that it goes on", out):
                return int(found[1])
        return 0

    steps = [lose(f"lost-{i}", chance.randrange(1, 3000), 1) for i in range(8)]
    if has_mpi:
        steps += [lose(f"lost-of-two-{i}", chance.randrange(1, 1500), 2) for i in range(3)]
    expect(max(steps) > 10, f"nothing was saved: {steps}")


def signalled():
    """Between two steps, with everything written."""
    log, saved = root / "signalled.log", root / "signalled"
    process = subprocess.Popen(
        [program, *map(str, (*brief, *on_gpu, "--batch-size", 8, "--epochs", 100000)), "--save",
         saved, "--log", log], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    limit = time.monotonic() + patience
    try:
        while time.monotonic() < limit and not (log.exists() and log.read_text().count("\n") > 10):
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        out = process.communicate(timeout=patience)[0]
    finally:
        process.kill()
    steps = len(losses(log))
    expect(process.returncode == 143 and f"# SIGTERM: ended after step {steps}\n" in out,
           f"status {process.returncode} after step {steps}", out)
    out = good(*brief, *on_gpu, "--batch-size", 8, "--epochs", 100000, "--steps", 1, "--resume",
               saved)
    expect(f"# resumed at step {steps}\n" in out, f"expected that it goes on at {steps}", out)


def overflow():
    bad("step [0-9]+: .*the loss is not a number|loss scale", *brief, *on_gpu, "--batch-size", 8,
        "--dtype", "f16", "--epochs", 100, "--lr", "1e20")


try:
    for part in (same_training, shown, refused, full, lost, signalled, overflow):
        begin = time.monotonic()
        part()
        if verbose:
            print(f"{part.__name__}: {time.monotonic() - begin:.0f} s", flush=True)
finally:
    shutil.rmtree(root)
end()
