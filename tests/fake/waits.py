#!/usr/bin/env python3
"""Leaves out each wait of the CUDA back end in turn, and sees that a test notices.

waits.py [-v] [--of=REGEX] FILE[:nccl][*ORDERS]...

FILE is one of fake_cuda_tests, which is run in ten orders, or in so many. A wait is told by who
asks for it, the innermost function that is not itself made for waiting; --of chooses some.
"""
import bisect
import functools
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

# What only hands a wait on, and whose waits are the tests' own.
hands_on = re.compile(
    r"::(follow|wait|run_to|settle|finish|wait_for_event|then|event|put|~?Stream|~?StreamQueue|"
    r"~?Pending)\(|^cuda|^lamina::(Communicator|CommQueue::(start|put)|naming)\b|"
    r"^lamina::detail::(\(anonymous namespace\)::)?Nccl\w+::(?!~)|"
    r"^std::(?!.*(cuda::Memory::allocate|C_A_T_C_H))")
tests_own = re.compile(r"^(?!lamina::|std::)|C_A_T_C_H|^lamina::(\(anonymous|test::|run_ranks)")

# What nobody can notice, one wait each, since others imply it: targets travel before the rows of x
# that the loss waits for, and the gradients of batch norm behind its sums, out of one kernel, by
# the same stream of NCCL's. And what goes waits for work that the stand-in's streams end with
# anyway, as the end of a step that is profiled does for what it reads the clock behind.
implied = [r"of lamina::Trainer::train_turns\(", r"of lamina::Trainer::evaluate_turns\(",
           r"cudaStreamWaitEvent of lamina::BatchNorm::Placed::backward\("]
ends = re.compile(r"Synchronize of (lamina::Profiler::|[\w:]*::~\w+\()")


def without_result(name):
    """The name of a function template, before which its result stands, without that."""
    name = name.replace("decltype(auto) ", "")
    depth = start = 0
    for i, c in enumerate(name.replace("(anonymous namespace)", "[anonymous namespace]")):
        depth += (c in "<{[") - (c in ">}]" and name[i - 1] != "-")
        if c == "(" and depth == 0:
            break
        if c == " " and depth == 0:
            start = i + 1
    return name[start:]


class Symbols:
    def __init__(self):
        listed = subprocess.run(["nm", "-nC", "--defined-only", program], capture_output=True,
                                text=True, check=True).stdout
        found = [line.split(" ", 2) for line in listed.splitlines()]
        start = next(int(a, 16) for a, _, name in found if name == "__executable_start")
        found = [(int(a, 16) - start, name) for a, kind, name in found if kind in "tTwW"]
        self.at, self.names = [a for a, _ in found], [without_result(name) for _, name in found]

    def name(self, offset):
        """Of the function that has the call which returns to there."""
        return self.names[bisect.bisect_right(self.at, offset - 1) - 1] if offset else "std::?"


def passes(name, seed, patience=600, **more):
    """Whether the tests of a file pass; one that waits for ever does not."""
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


@functools.cache
def check_alone(name, seed, **more):
    """With all its waits it passes; returns in how many seconds."""
    began = time.monotonic()
    if not passes(name, seed, **more):
        sys.exit(f"{name}: fails with all its waits, seed {seed}")
    return time.monotonic() - began


def notices(name, seed, callers):
    took = check_alone(name, seed)
    return not passes(name, seed, 60 + 20 * took, LAMINA_FAKE_WITHOUT=";".join(sorted(callers)))


def callers_of_waits(name):
    """Innermost first."""
    with tempfile.NamedTemporaryFile("r") as listed:
        for seed in (0, 1):
            check_alone(name, seed, LAMINA_FAKE_WAITS=listed.name)
        return [list(map(int, line.split())) for line in set(listed)]


def waits():
    """{what it is: ({callers that tell it}, [(test file that comes to it, orders)])}"""
    symbols, found, nobody = Symbols(), {}, set()
    for name in names:
        name, _, orders = name.partition("*")
        for callers in callers_of_waits(name):
            inside = [symbols.name(c) for c in callers]
            last = next((i for i, n in enumerate(inside) if not hands_on.search(n)), None)
            if last is None:
                nobody.add(" < ".join(inside))
                continue
            if tests_own.search(inside[last]):
                continue
            what = f"{inside[0].split('(')[0]} of {inside[last]}"
            if what.startswith("cudaStreamWaitEvent"):  # one by one
                what += f" at {callers[last]}"
            if re.search(only, what):
                those, files = found.setdefault(what, (set(), []))
                those.add(" ".join(map(str, callers[:last + 1])))
                if (name, int(orders or 10)) not in files:
                    files.append((name, int(orders or 10)))
    for chain in nobody:
        print(f"asked for by nobody: {chain}")
    return found


found = waits()
if not found:
    sys.exit("there are no such waits")
print(f"{len(found)} waits", flush=True)
unnoticed = 0
for what, (callers, files) in sorted(found.items()):
    tries = sorted((check_alone(name, 0) * (seed + 1), name, seed)
                   for name, orders in files for seed in range(orders))
    by = next((f"{name}, seed {seed}" for _, name, seed in tries if notices(name, seed, callers)),
              None)
    excuse = next((pattern for pattern in implied if re.search(pattern, what)), None)
    if by is None and (excuse or ends.search(what)):
        by = "implied by others"
        if excuse:
            implied.remove(excuse)
    unnoticed += by is None
    if verbose or by is None:
        print(f"{by or 'NOT NOTICED'}: {what}", flush=True)
print(f"{unnoticed} not noticed")
sys.exit(unnoticed > 0)
