#!/usr/bin/env python3
"""Leaves out each wait of the CUDA back end in turn, and sees that a test notices.

waits.py [-v] [--of=REGEX] FILE[:nccl]...

FILE is one of fake_cuda_tests: it is run in ten orders, in two where that takes long. A wait is
told by who asks for it, the innermost function that is not itself made for waiting; --of chooses
some.
"""
import bisect
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time

program = pathlib.Path(os.environ["LAMINA_BUILD"]) / "bin/fake_cuda_tests"
verbose = "-v" in sys.argv
names = [a for a in sys.argv[1:] if not a.startswith("-")]
only = next((a.removeprefix("--of=") for a in sys.argv if a.startswith("--of=")), "")
patience = 120  # seconds; a test that waits for ever has noticed, too

# What only hands a wait on, and whose waits are the tests' own.
hands_on = re.compile(
    r"::(follow|wait|run_to|settle|finish|wait_for_event|then|event|put|~?Stream|~?StreamQueue|"
    r"~?Pending)\(|^cuda|^std::(?!.*cuda::Memory::allocate)")
tests_own = re.compile(
    r"^(?!lamina::|std::)|C_A_T_C_H|^lamina::(\(anonymous|test::|run_ranks)")

# What nobody can notice. Targets travel before the rows of x that the loss waits for, by the same
# stream of NCCL's. Who goes waits for work that the stand-in's streams end with all the same. And
# at the end of a step that is profiled, the clock is read behind all of it.
implied = re.compile(r"of lamina::Trainer::(train|evaluate)_turns\(|of [\w:]*::~\w+\(|"
                     r"of lamina::Profiler::")


class Symbols:
    def __init__(self):
        listed = subprocess.run(["nm", "-nC", "--defined-only", program], capture_output=True,
                                text=True, check=True).stdout
        found = [line.split(" ", 2) for line in listed.splitlines()]
        start = next(int(a, 16) for a, _, name in found if name == "__executable_start")
        found = [(int(a, 16) - start, name) for a, kind, name in found if kind in "tTwW"]
        self.at, self.names = [a for a, _ in found], [name for _, name in found]

    def name(self, offset):
        """Of the function that has the call which returns to there."""
        return self.names[bisect.bisect_right(self.at, offset - 1) - 1] if offset else "?"


def passes(name, seed, **more):
    """Whether the tests of a file pass."""
    file, _, nccl = name.partition(":")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LAMINA_DEVICE_SEED": str(seed), **more,
                   **({"LAMINA_FAKE_NCCL": "1"} if nccl else {})}
    try:
        ended = subprocess.run([program, "--filenames-as-tags", f"[#{file}]~[host]"],
                               env=environment, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        return False
    if "No test cases matched" in ended.stdout:
        sys.exit(f"{file}: no such test file")
    return ended.returncode == 0


def callers_of_waits(name):
    """Innermost first, and how many seconds the tests of that file take."""
    with tempfile.NamedTemporaryFile("r") as listed:
        began = time.monotonic()
        for seed in (0, 1):
            if not passes(name, seed, LAMINA_FAKE_WAITS=listed.name):
                sys.exit(f"{name}: fails with all its waits, seed {seed}")
        took = (time.monotonic() - began) / 2
        return [list(map(int, line.split())) for line in set(listed)], took


def waits():
    """{what it is: ({callers that tell it}, {test file that comes to it: seconds})}"""
    symbols, found = Symbols(), {}
    for name in names:
        listed, took = callers_of_waits(name)
        for callers in listed:
            inside = [symbols.name(c) for c in callers]
            last = next(i for i, n in enumerate([*inside, "?"]) if not hands_on.search(n))
            if last == len(inside) or tests_own.search(inside[last]):
                continue
            what = f"{inside[0].split('(')[0]} of {inside[last]}"
            if what.startswith("cudaStreamWaitEvent"):  # one by one
                what += f" at {callers[last]}"
            if re.search(only, what):
                those, files = found.setdefault(what, (set(), {}))
                those.add(" ".join(map(str, callers[:last + 1])))
                files[name] = took
    return found


found = waits()
print(f"{len(found)} waits", flush=True)
unnoticed = 0
for what, (callers, files) in sorted(found.items()):
    if implied.search(what):
        continue
    tries = sorted((took * (seed + 1), name, seed) for name, took in files.items()
                   for seed in range(10 if took < 2 else 2))
    by = next((f"{name}, seed {seed}" for _, name, seed in tries
               if not passes(name, seed, LAMINA_FAKE_WITHOUT=";".join(sorted(callers)))), None)
    unnoticed += by is None
    if verbose or by is None:
        print(f"{by or 'NOT NOTICED'}: {what}", flush=True)
print(f"{unnoticed} not noticed")
sys.exit(unnoticed > 0)
