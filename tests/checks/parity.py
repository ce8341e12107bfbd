#!/usr/bin/env python3
# What `./dev parity` stands on, without PyTorch: the program that it runs trains from files, the
# same on one rank and on two, and its checkpoint has the gradient; and the judge of results sees
# what is wrong. With -v prints what was found.
import array
import json
import math
import os
import pathlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(os.environ["LAMINA_SOURCE"]) / "tests/parity"))
import judge

program = pathlib.Path(os.environ["LAMINA_BUILD"]) / "bin/parity_run"
if not program.exists() or not shutil.which("mpirun"):
    print("no parity_run or no mpirun")
    sys.exit(77)
verbose = "-v" in sys.argv
root = pathlib.Path(tempfile.mkdtemp(prefix="parity."))
rate, images, batch = 0.125, 12, 6
lenet = {"conv1": (6, 1, 5, 5), "conv2": (16, 6, 5, 5), "fc1": (120, 400), "fc2": (84, 120),
         "fc3": (10, 84)}


def write(path, tensors):
    """tensors: (dims, array) by name."""
    header, at = {}, 0
    for name, (dims, values) in tensors.items():
        size = len(values) * values.itemsize
        header[name] = {"dtype": {"f": "F32", "i": "I32"}[values.typecode], "shape": dims,
                        "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            file.write(values.tobytes())


def read(path):
    """F64 tensors, as lists, by name."""
    data = path.read_bytes()
    end = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:end])
    header.pop("__metadata__", None)
    found = {}
    for name, t in header.items():
        assert t["dtype"] == "F64", f"{name}: is {t['dtype']}"
        begin, stop = t["data_offsets"]
        found[name] = list(array.array("d", data[end + begin:end + stop]))
    return found


def make_inputs():
    draw = random.Random(3)
    weights = {}
    for layer, dims in lenet.items():
        bound = 1 / math.sqrt(math.prod(dims[1:]))
        for name, shape in (("weight", dims), ("bias", dims[:1])):
            values = [draw.uniform(-bound, bound) for _ in range(math.prod(shape))]
            weights[f"{layer}.{name}"] = (shape, array.array("f", values))
    write(root / "weights", weights)
    pixels = array.array("i", (draw.randrange(256) for _ in range(images * 28 * 28)))
    labels = array.array("i", (draw.randrange(10) for _ in range(images)))
    write(root / "images", {"pixels": ((images, 1, 28, 28), pixels), "labels": ((images,), labels)})
    return {name: list(values) for name, (_, values) in weights.items()}


def run(ranks, *flags, images_in="images", status=0):
    out = root / f"{ranks}"
    line = ["mpirun", "-n", str(ranks), str(program), "--model=lenet", "--classes=10",
            "--dtype=f64", f"--weights={root}/weights", f"--images={root}/{images_in}",
            f"--out={out}",
            f"--train-images={batch}", "--eval-images=5", f"--global-batch={batch}", "--steps=1",
            f"--lr={rate}", *flags]
    done = subprocess.run(line, capture_output=True, text=True, timeout=100)
    assert done.returncode == status, f"{line}: status {done.returncode}\n{done.stderr}"
    if status:
        return done.stderr
    about, *lines = [json.loads(l) for l in open(f"{out}.jsonl")]
    assert about["version"] and about["backend"], about
    return lines, read(root / f"{ranks}.safetensors")


def distance(a, b):
    return math.dist(a, b) / math.hypot(*b)


def check_program():
    before = make_inputs()
    lines, one = run(1)
    assert [set(l) for l in lines] == [{"step", "loss", "top1", "rate"},
                                       {"samples", "loss", "top1", "top5"}], lines
    assert lines[0]["rate"] == rate and 1 < lines[0]["loss"] < 10 and lines[1]["samples"] == 5
    for name, w in before.items():
        gradient = one[f"optimizer.0/{name}"]
        assert any(gradient), f"{name}: has no gradient"
        moved = [(a - b) / rate for a, b in zip(w, one[name])]
        assert distance(moved, gradient) < 1e-10, f"{name}: did not move by its gradient"
    plan = root / "plan.json"
    for flags in (["--plan=filter"], [f"--plan={plan}", "--random-plan=1"]):
        other_lines, two = run(2, *flags)
        for mine, theirs in zip(other_lines, lines):
            assert mine.keys() == theirs.keys()
            assert all(abs(mine[k] - theirs[k]) < 1e-12 for k in mine), (flags, mine, theirs)
        assert two.keys() == one.keys()
        worst = max(distance(two[name], one[name]) for name in one)
        assert worst < 1e-12, f"{flags}: {worst}"
        if verbose:
            print(flags, "differ from one rank by", worst)
    assert len(json.loads(plan.read_text())["layers"]) == 12
    error = run(1, images_in="weights", status=1)
    assert f"{root}/weights: has no 'pixels' of 4 dimensions" in error, error


class Vector:
    """As much of a tensor as the judge needs."""

    def __init__(self, values):
        self.values, self.shape = values, (len(values),)

    def __sub__(self, other):
        return Vector([a - b for a, b in zip(self.values, other.values)])

    def norm(self):
        return math.sqrt(sum(v * v for v in self.values))

    def double(self):
        return self


def check_judge():
    values = [1.0, -2.0, 3.0]

    def result(gradient, loss=2.0, rate=0.1, name="optimizer.0/fc.weight"):
        return ([{"step": 1, "samples": 8, "loss": loss, "top1": 0.5, "rate": rate}],
                {name: Vector(gradient)})

    def wrong(mine, single=None, **options):
        verdict = judge.Judge(result(values), single, **options).verdict(*mine)
        return {w.kind for w in verdict.values() if w.wrong}

    off = [v * (1 + 1e-7) for v in values]
    far = [v * (1 + 1e-3) for v in values]
    assert not wrong(result(values))
    assert wrong(result(off)) == {"gradients"}
    assert wrong(result([1.0, 2.0, 3.0])) == {"gradients"}
    assert wrong(result([1.0, math.nan, 3.0])) == {"gradients"}
    assert wrong(result([1.0, -2.0])) == {"gradients"}
    assert wrong(result(values, name="fc.weight")) == {"names"}
    assert wrong(result(values, loss=2.1)) == {"loss"}
    assert wrong(result(values, rate=0.1000001)) == {"rate"}
    # In f32 as much as PyTorch's own is off, times a factor; or what a pool excuses.
    assert not wrong(result(off), result(values))
    assert wrong(result(far), result(off)) == {"gradients"}
    assert not wrong(result(far), result([v * (1 + 1e-4) for v in values]))
    tied = result([v * (1 + 3e-4) for v in values])
    assert not wrong(result(far), result(off), tied=tied)
    assert wrong(result(far), result(off), tied=result(off)) == {"gradients"}
    assert wrong(result(far, loss=2.1), result(off), tied=tied) == {"loss"}


try:
    check_judge()
    check_program()
finally:
    shutil.rmtree(root)
