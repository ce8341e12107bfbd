#!/usr/bin/env python3
# Ranks that are started with unlike flags: one line names each flag and the ranks, all end with
# status 1, none hangs, nothing is trained; what may differ does. With -v prints the lines.
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["LAMINA_SOURCE"] + "/tests/support")
import tiny_data as data

programs = pathlib.Path(os.environ["LAMINA_BUILD"]) / "bin"
verbose = "-v" in sys.argv
if not shutil.which("mpirun"):
    print("no mpirun")
    sys.exit(77)
for variable in [v for v in os.environ if v.startswith("LAMINA_")]:
    del os.environ[variable]
root = pathlib.Path(tempfile.mkdtemp(prefix="alike."))
failures = 0


def call(*ranks):
    """Status, stdout, stderr of a job whose ranks have a command line each."""
    line = ["mpirun"]
    for i, rank in enumerate(ranks):
        program, *arguments = map(str, rank)
        before = []
        while program.startswith("+"):  # a variable of the environment
            before, program, arguments = [*before, program[1:]], arguments[0], arguments[1:]
        line += [*([":"] if i else []), "-n", "1", "env", *before, str(programs / program),
                 *arguments]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               cwd=root, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err, line
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return None, out, err, line


def fail(line, why, out, err):
    global failures
    failures += 1
    print(f"{why}\n  {' '.join(line)}\n--- stdout\n{out[-2000:]}--- stderr\n{err[-2000:]}---")


def unlike(expected, *ranks, start="the ranks were started unlike: "):
    code, out, err, line = call(*ranks)
    own = re.findall(r"^lamina: error: (.*)$", err, re.M)
    if code != 1:
        fail(line, f"status {code}, expected 1", out, err)
    elif len(own) != 1 or not own[0].startswith(start + expected):
        fail(line, f"expected one line with '{start}{expected}', got {own}", out, err)
    elif out.strip():
        fail(line, "began before it failed", out, err)
    elif verbose:
        print(own[0])


def alike(*ranks):
    code, out, err, line = call(*ranks)
    if code != 0:
        fail(line, f"status {code}, expected 0", out, err)
    return out


tiny = ("lamina", "train", "--batch-size", "8", "--no-validation")
train = (*tiny, "--steps", "2", "--profile-steps", "0")
recorded = (*tiny, "--steps", "5", "--profile-steps", "1", "--ceilings", "none")
bench = ("bench_network", "--model", "lenet", "--batch-size", "4", "--warmup", "0", "--iters", "1",
         "--profile-steps", "0")

unlike("--seed is 1 on rank 0, but 2 on rank 1", (*train, "--seed", "1"), (*train, "--seed", "2"))
unlike("--seed is 1 on rank 0, but 2 on rank 1", train, (*train, "--seed", "2"))
unlike("--lr is not given on rank 0, but 0.5 on ranks 1 and 2", train, (*train, "--lr", "0.5"),
       (*train, "--lr", "0.5"))
unlike("--model is lenet on rank 0, but resnet20 on rank 1", (*train, "--model", "lenet"),
       (*train, "--model", "resnet20"))
unlike("--no-augment is not given on rank 0, but given on rank 1", train, (*train, "--no-augment"))
unlike("--split is [conv1=height:2] on rank 0, but [conv2=height:2] on rank 1",
       (*train, "--split", "conv1=height:2"), (*train, "--split", "conv2=height:2"))
unlike("--save is given on rank 0, but not given on rank 1", (*train, "--save", "x"), train)
unlike("--resume is given on rank 0, but not given on rank 1",
       (*train, "--save", "x", "--resume"), (*train, "--save", "x"))
unlike("--global-norm is not given on rank 0, but given on rank 1", bench,
       (*bench, "--global-norm"))
unlike("the program is lamina on rank 0, but bench_network on rank 1", train, bench)
unlike("the command is info on rank 0, but train on rank 1",
       ("lamina", "info"), train)
unlike("the command is help on rank 0, but train on rank 1", ("lamina", "train", "--help"), train)

# Data are compared, not where they lie.
for name in "here", "there", "other":
    data.mnist(root / name)
other = (root / "other" / "train-images-idx3-ubyte")
other.write_bytes(other.read_bytes()[:16] + bytes(255 - b for b in other.read_bytes()[16:]))
alike((*train, "--data", "mnist:here"), (*train, "--data", "mnist:there"))
unlike("image 0 is 1 x 28 x 28 of label", (*train, "--data", "mnist:here"),
       (*train, "--data", "mnist:other"))
unlike("--data is synthetic on rank 0, but mnist on rank 1", train,
       (*train, "--data", "mnist:here"))

# What may differ: threads, files of one rank, instruction sets, the other way to say the same.
out = alike((*recorded, "--threads", "1", "--log", "log", "--save", "save", "--json", "json",
             "--loader-threads", "2", "--seed", "1"),
            (*recorded, "--threads", "2", "--save", "elsewhere/save", "--top", "3", "--wide"))
if not all((root / f).exists() for f in ("log", "save", "json")) or (root / "elsewhere").exists():
    fail([], "not the files of rank 0", out, "")
out = alike((*train, "--resume", "save", "--lr", "0.5"),
            (*train, "--resume", "nowhere", "--lr", "0.5"))
if "# optimizer: rate 0.5, where the checkpoint has rate 0.01\n" not in out:
    fail([], "not said that the rate is another", out, "")
out = alike((*train, "--resume", "save", "--clip-norm", "2", "--schedule", "cosine"),
            (*train, "--resume", "save", "--clip-norm", "2", "--schedule", "cosine"))
for line in ("# optimizer: clipped to norm 2, where the checkpoint has nothing\n",
             "# schedule: cosine, where the checkpoint has constant\n"):
    if line not in out:
        fail([], f"not said: {line}", out, "")
other = ("--no-shuffle", "--no-augment", "--label-smoothing", "0.1")
out = alike((*train, "--resume", "save", *other), (*train, "--resume", "save", *other))
for line in ("# data: in order, as they are, where the checkpoint has shuffled, augmented\n",
             "# loss: label smoothing 0.1, where the checkpoint has label smoothing 0\n"):
    if line not in out:
        fail([], f"not said: {line}", out, "")
out = alike((*train, "--resume", "save"), (*train, "--resume", "save"))
if "where the checkpoint has" in out:
    fail([], "said that something is otherwise", out, "")
alike(("+DNNL_MAX_CPU_ISA=SSE41", *train), ("+DNNL_MAX_CPU_ISA=AVX2", *train))
alike(("+LAMINA_CHECK_COLLECTIVES=1", *train), train)
alike(("+LAMINA_SHM=0", *train), train)
# So do back ends, but where something goes by their times, or their needs.
# (Without oneDNN there is but one.)
mixed = (*tiny, "--steps", "5", "--profile-steps", "1", "--fuse")
out = alike((*mixed, "--backend", "reference"), (*mixed, "--device", "cpu"))
if "oneDNN" not in call(("lamina", "info"))[1]:
    print("no oneDNN: no ranks of unlike back ends")
    shutil.rmtree(root)
    sys.exit(failures > 0)
if (not re.search("^# rank 0 .* device cpu, reference ", out, re.M) or "unaccounted" not in out
        or "%roof" in out):
    fail([], "not two back ends, or with ceilings", out, "")
for flag in "--plan", "--micro-batch":
    unlike(f"{flag} auto: expected one back end on all ranks, got reference on rank 0, but onednn "
           "on rank 1", (*train, flag, "auto", "--backend", "reference"), (*train, flag, "auto"),
           start="")
unlike("--machine: expected one back end on all ranks, got reference on rank 0, but onednn on "
       "rank 1", ("lamina", "info", "--machine", "--backend", "reference"),
       ("lamina", "info", "--machine"), start="")
unlike("lamina plan: expected one back end on all ranks, got reference on rank 0, but onednn on "
       "rank 1", ("lamina", "plan", "--model", "lenet", "--calibrate", "--backend", "reference"),
       ("lamina", "plan", "--model", "lenet", "--calibrate"), start="")

shutil.rmtree(root)
print("all well" if failures == 0 else f"{failures} failures")
sys.exit(failures > 0)
