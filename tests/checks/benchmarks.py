#!/usr/bin/env python3
"""The comparisons under benchmarks/: what is wrong with their flags is one line; they print what
they say they do, of tiny runs; and when they are ended nothing is left running."""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.environ["LAMINA_BUILD"]
FOLDER = pathlib.Path(os.environ["LAMINA_SOURCE"]) / "benchmarks"
TINY = ("--model", "lenet")
failures = 0


def fail(line, why, said):
    global failures
    failures += 1
    print(f"{' '.join(map(str, line))}: {why}\n{said}")


def call(script, *flags, build=BUILD):
    line = [FOLDER / script, "--build", build, *map(str, flags)]
    ended = subprocess.run(line, capture_output=True, text=True, timeout=300)
    return line, ended.returncode, ended.stdout, ended.stderr


def bad(expected, script, *flags, build=BUILD):
    """Refused in one line that has this in it."""
    line, status, out, err = call(script, *flags, build=build)
    if status == 0 or expected not in err or len(err.splitlines()) != 1 or script not in err:
        fail(line, f"status {status}, expected a line with '{expected}'", out + err)


def prints(pattern, script, *flags):
    line, status, out, err = call(script, *flags)
    if status or not re.search(pattern, out, re.M):
        fail(line, f"status {status}, expected '{pattern}'", out + err)


def processes(word):
    """The command lines of all but this one that have it among them."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in line and int(process.name) != os.getpid():
            found.append(line)
    return found


def ends(number, word, script, *flags):
    """By this signal, and no process that has `word` among its arguments goes on."""
    line = [FOLDER / script, "--build", BUILD, *flags]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    for _ in range(600):
        if len(processes(word)) > 1 or process.poll() is not None:  # the script's own is one
            break
        time.sleep(0.05)
    process.send_signal(number)
    out = process.communicate(timeout=60)[0]
    if process.returncode != 128 + number or "Traceback" in out:
        fail(line, f"status {process.returncode} after signal {number}", out)
    for _ in range(100):
        if not processes(word):
            return
        time.sleep(0.1)
    fail(line, "it has left processes", "\n".join(processes(word)))


COUNT = "expected a whole number from 1 on"
for script in ("accuracy", "beside_load", "compare_plans", "compare_pytorch", "resize_costs",
               "scalability", "slow_rank", "weak_scaling"):
    bad("there is no nowhere/bin/", script, build="nowhere")
    bad(COUNT, script, "--jobs" if script == "accuracy" else "--rounds", 0)
bad("--seeds: expected FIRST:LAST, got '3'", "accuracy", "--seeds", 3)
bad(COUNT, "beside_load", "--busy", -3)
bad("--taken: expected a number above 0, up to 1, got '3'", "beside_load", "--taken", 3)
bad("--taken 1 leaves nothing: expected less", "beside_load", "--taken", 1)
bad(COUNT, "slow_rank", "--ranks", 0)
bad("--part: expected a number above 0, up to 1, got '2'", "slow_rank", "--part", 2)
bad(COUNT, "weak_scaling", "--ranks", 0)
bad(COUNT, "resize_costs", "--ranks", "1,x")
bad("--ranks: expected at least two numbers", "resize_costs", "--ranks", 1)
bad("expected --global-batch N", "resize_costs", *TINY, "--global-batch")
bad("resnet50:x: expected NAME:BATCH", "compare_pytorch", "--models", "resnet50:x")
bad("--freeze: PyTorch would do something else", "compare_pytorch", "--freeze", "fc.*")
bad("model 'nothing' is not known", "beside_load", "--model", "nothing")  # what the program says
with tempfile.TemporaryDirectory() as own:  # it is somebody's
    (pathlib.Path(own) / "notes").touch()
    line, status, out, err = call("compare_pytorch", "--venv", own)
    if status != 1 or "is there, but PyTorch does not work in it" not in err:
        fail(line, f"status {status}", out + err)
    if os.listdir(own) != ["notes"]:
        fail(line, "a folder of the user's was changed", "\n".join(os.listdir(own)))

# The failure of a run ends the others, however long these would take.
line, status, out, err = call("accuracy", *TINY, "--limit", 2000, "--epochs", 100000, "--jobs", 2,
                              "--dtypes", "f32,foo")
if status != 1 or not err.startswith("accuracy: foo, seed 1: ") or len(err.splitlines()) != 1:
    fail(line, f"status {status}", out + err)

few = ("--limit", 256, "--epochs", 1, "--batch-size", 32)
prints(r"^1 +[\d.]+ +[\d.]+\n2 (.*\n)f32: .*\nbf16: .* points against f32, standard error [\d.]+$",
       "accuracy", *TINY, *few, "--seeds", "1:2")
kept = r"^bound +[\d.]+ +[\d.]+ +\d+%\nfree +[\d.]+ +[\d.]+ +\d+%$"
prints(kept, "beside_load", *TINY, "--batch-size", 4, "--rounds", 1)
if shutil.which("mpirun"):
    prints(kept, "beside_load", *TINY, "--batch-size", 4, "--rounds", 1, "--ranks", 2)
    prints(r"^ +1 +[\d.]+ +[\d.]+ +[\d.]+ %\nmedian efficiency: [\d.]+ %$", "weak_scaling", *TINY,
           "--batch-size", 4, "--warmup", 1, "--iters", 2, "--rounds", 1, "--ranks", 1)
    prints(r"^alike +even .*\nalike +auto .*\none 50% +even +[\d.]+ +[\d.]+ .*\none 50% +auto ",
           "slow_rank", *TINY, "--global-batch", 24, "--rounds", 1, "--steps", 8)
    ends(signal.SIGTERM, "--seed 971", "slow_rank", *TINY, "--global-batch", "24", "--steps",
         "100000", "--seed", "971")
ends(signal.SIGINT, "--limit 973", "accuracy", *TINY, "--limit", "973", "--epochs", "1000")
ends(signal.SIGTERM, "--limit 974", "accuracy", *TINY, "--limit", "974", "--epochs", "1000")
with tempfile.TemporaryDirectory() as folder:  # a Python that never ends
    python = pathlib.Path(folder) / "python"
    python.write_text("#!/bin/sh\nsleep 1000\n:\n")
    python.chmod(0o755)
    ends(signal.SIGTERM, "--steps 975", "compare_pytorch", "--python", str(python), "--steps",
         "975")
ends(signal.SIGTERM, "--seed 972", "beside_load", "--model", "resnet50", "--seed", "972")
if failures:
    sys.exit(f"{failures} failed")
print("the comparisons say what is wrong with their flags, and leave nothing behind")
