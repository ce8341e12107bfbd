#!/usr/bin/env python3
# `./dev parity`: trains every model by Lamina and by PyTorch from the same weights on the same
# images, under every plan, and judges what comes out. A line per case; exit status 1 if one is off.
import argparse
import collections
import datetime
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import types
from dataclasses import asdict, replace

import torch
from safetensors.torch import load_file, save_file

import cases
import judge
import networks
import oracle
import report

HERE = pathlib.Path(__file__).resolve().parent
CLASSES = 10


def arguments():
    p = argparse.ArgumentParser(prog="./dev parity", description=__doc__)
    p.add_argument("--only", metavar="REGEX", help="the cases whose names match")
    p.add_argument("--list", action="store_true", help="print the names of the cases and end")
    p.add_argument("--minutes", type=float, default=0, metavar="N",
                   help="start no case after so long; the next call goes on from there")
    p.add_argument("--isa", metavar="ISA[,ISA...]", default="",
                   help="DNNL_MAX_CPU_ISA of all ranks, or of rank 0, 1, ..., over and over: "
                        "AVX2, or AVX512_CORE,AVX2")
    p.add_argument("--fresh", action="store_true", help="forget what earlier calls found")
    p.add_argument("--table", metavar="FILE", help="write the table of all cases done, as Markdown")
    p.add_argument("--program", default="build-ci/bin/parity_run", metavar="FILE")
    p.add_argument("--folder", default="build/parity", metavar="DIR", help="for what is computed")
    p.add_argument("-v", action="store_true", help="every kind of value that is off, each run")
    return p.parse_args()


class Runner:
    def __init__(self, o):
        self.o, self.folder = o, pathlib.Path(o.folder)
        self.program = pathlib.Path(o.program).resolve()
        self.oracles = collections.OrderedDict()
        try:
            (self.folder / "inputs").mkdir(parents=True, exist_ok=True)
        except OSError as e:
            sys.exit(f"parity: --folder {o.folder}: {e.strerror}")
        self.inputs_made = set()
        self.about = {}  # what ran, by dtype

    # ---- inputs

    def inputs(self, case):
        """The files of weights and of images, made once for a model and a dtype. One step in f32 or
        bf16 is judged at weights where no ReLU is near its kink; the others have ordinary ones."""
        model, apart = case.model, case.dtype != "f64" and not case.recipe
        name = f"{model.name}-{model.size}-{model.width:g}" + ("-apart" if apart else "")
        weights = self.folder / "inputs" / f"{name}.safetensors"
        images = self.folder / "inputs" / f"images-{model.channels}-{model.size}.safetensors"
        if weights not in self.inputs_made:
            count = 320 if model.size <= 32 else 80 if model.size <= 64 else 60
            made = oracle.make_images(count, model.channels, model.size, CLASSES)
            save_file(made, images)
            x = made["pixels"][:32].float() / 64 - 2
            save_file(oracle.make_weights(model.name, CLASSES, model.width, x, apart), weights)
            self.inputs_made.add(weights)
        return weights, images

    def options(self, case):
        """The flags of parity_run, by their names with - for _ ; the oracle reads them, too."""
        steps = 1 if not case.recipe else 0
        o = {"model": case.model.name, "width": case.model.width, "classes": CLASSES, "seed": 3,
             "global_batch": case.batch, "train_images": case.batch * (1 if steps else 4),
             "eval_images": max(5, case.batch // 2 + 1),  # so that the last batch is padded
             "epochs": 1 if steps else 3, "steps": steps, "weight_decay": 0.0, "decay": "all",
             "momentum": 0.9, "nesterov": False, "clip_norm": 0.0, "schedule": "constant",
             "warmup_epochs": 0.0, "label_smoothing": 0.0}
        o.update({k.replace("-", "_"): v for k, v in case.flags.items()})
        return o

    # ---- Lamina

    def command(self, case, out, weights, images):
        plan = case.plan
        flags = [f"--weights={weights}", f"--images={images}", f"--out={out}",
                 f"--dtype={case.dtype}", f"--threads={case.threads}",
                 f"--plan-out={out}.used.json"]
        if case.plan == "random":
            plan = f"{out}.plan.json"
            flags.append(f"--random-plan={case.seed}")
        flags.append(f"--plan={plan}")
        for name, value in self.options(case).items():
            flag = "--" + name.replace("_", "-")
            if value is True or (name == "width" and value == 1):
                flags += [flag] if value is True else []
            elif value is not False:
                flags.append(f"{flag}={value}")
        if case.global_norm:
            flags.append("--global-norm")
        line = ["mpirun"]
        for rank in range(case.ranks):
            isa = [f"DNNL_MAX_CPU_ISA={case.isas[rank % len(case.isas)]}"] if case.isas else []
            line += [*([":"] if rank else []), "-n", "1", "env", *isa, str(self.program), *flags]
        return line

    def lamina(self, case, line, out):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LAMINA_")}
        environment.update(OMP_NUM_THREADS=str(case.threads), OMP_WAIT_POLICY="passive")
        done = subprocess.run(line, capture_output=True, text=True, timeout=1800, env=environment,
                              stdin=subprocess.DEVNULL)
        if done.returncode:
            said = [l for l in done.stderr.splitlines() if l.startswith("lamina: ")]
            raise RuntimeError(f"status {done.returncode}: {said[0] if said else done.stderr}")
        about, *lines = [json.loads(l) for l in open(f"{out}.jsonl")]
        self.about[case.dtype] = "Lamina {version}, {backend}".format(**about)
        return lines, load_file(f"{out}.safetensors")

    # ---- both

    def parts(self, case, out):
        """Of each layer, into how many parts its batch is cut, where statistics are local."""
        if case.global_norm:
            return {}
        layers = json.load(open(f"{out}.used.json"))["layers"]
        found = {}
        for layer, split in layers.items():
            cut = re.search(r"batch:(\d+)", split)
            if cut:
                found[layer] = int(cut[1])
        return found

    def oracle(self, case, parts, dtype, weights, images, tied=None):
        o = self.options(case)
        parts = parts if case.model.norms == (False, True) else {}
        key = json.dumps([o, parts, str(dtype), str(weights), tied], sort_keys=True)
        if key not in self.oracles:
            networks.tied = tied
            self.oracles[key] = oracle.train(types.SimpleNamespace(**o), weights, images, parts,
                                             dtype)
            networks.tied = None
            while len(self.oracles) > 6:
                self.oracles.popitem(last=False)
        self.oracles.move_to_end(key)
        return self.oracles[key]

    def run(self, case):
        """Returns what the judge says, by kind."""
        out = self.folder / "run"
        for old in self.folder.glob("run.*"):
            old.unlink()
        weights, images = self.inputs(case)
        line = self.command(case, out, weights, images)
        lines, tensors = self.lamina(case, line, out)
        return self.judge(case, lines, tensors, self.parts(case, out), weights, images)

    def judge(self, case, lines, tensors, parts, weights, images):
        exact = self.oracle(case, parts, torch.float64, weights, images)
        single, tied = None, None
        narrow = case.dtype == "bf16"
        if case.dtype != "f64":
            single = self.oracle(case, parts, torch.bfloat16 if narrow else torch.float32, weights,
                                 images)
        if case.dtype == "f32":
            if networks.has_max_pools(case.model.name) and not case.recipe:
                tied = self.oracle(case, parts, torch.float64, weights, images, judge.F32_TIE)
        steps = 12 if case.recipe else 1
        return judge.Judge(exact, single, tied, steps, narrow).verdict(lines, tensors)

    # ---- the judge, judged

    def self_test(self):
        """Small errors, put into what Lamina found, must be seen; without them all is right."""
        for dtype in ("f64", "f32", "bf16"):
            case = cases.Case(cases.MODELS["resnet20"], dtype, 1, 4, "data")
            weights, images = self.inputs(case)
            out = self.folder / "run"
            lines, tensors = self.lamina(case, self.command(case, out, weights, images), out)

            def wrong(change=None):
                mine_lines, mine = [dict(l) for l in lines], dict(tensors)
                if change:
                    change(mine_lines, mine)
                verdict = self.judge(case, mine_lines, mine, {}, weights, images)
                return {w.kind for w in verdict.values() if w.wrong}

            assert not wrong(), f"{dtype}: without a change these are off: {wrong()}"
            for change, kinds in mutants(dtype):
                assert wrong(change) == kinds, (
                    f"{dtype}: {change.__name__} was to be seen in {kinds}, got {wrong(change)}")


def mutants(dtype):
    """Changes of a result, and the kinds of values in which they must be seen."""
    scaled = {"f64": 1e-8, "f32": 1e-3, "bf16": 0.1}
    gradient, statistics = "optimizer.0/layer2.0.conv1.weight", "layer3.1.bn2.running_var"

    def sign_flipped(_, tensors):
        tensors[gradient] = -tensors[gradient]

    def channel_flipped(_, tensors):
        tensors[gradient] = tensors[gradient].clone()
        tensors[gradient][tensors[gradient].flatten(1).norm(dim=1).argmax()] *= -1

    def transposed(_, tensors):
        tensors[gradient] = tensors[gradient].transpose(2, 3).contiguous()

    def slightly_scaled(_, tensors):
        tensors[gradient] = tensors[gradient] * (1 + scaled[dtype])

    def not_a_number(_, tensors):
        tensors[gradient] = tensors[gradient].clone()
        tensors[gradient].view(-1)[3] = float("nan")

    def biased_variance(_, tensors):
        tensors[statistics] = tensors[statistics] * (1 - (25 if dtype == "bf16" else 0.1) / 256)

    def no_update(_, tensors):
        tensors["fc.weight"] = tensors["fc.weight"] + 0.02 * tensors["optimizer.0/fc.weight"]

    def lost_tensor(_, tensors):
        del tensors[gradient]

    def loss_of_half(lines, _):
        lines[0]["loss"] /= 2

    def other_rate(lines, _):
        lines[0]["rate"] *= 1 + 1e-9

    def hit_missed(lines, _):
        lines[-1]["top5"] -= 2 / lines[-1]["samples"]

    return [(sign_flipped, {"gradients"}), (channel_flipped, {"gradients"}),
            (transposed, {"gradients"}), (slightly_scaled, {"gradients"}),
            (not_a_number, {"gradients"}), (biased_variance, {"statistics"}),
            (no_update, {"weights"}), (lost_tensor, {"names"}), (loss_of_half, {"loss"}),
            (other_rate, {"rate"}), (hit_missed, {"evaluation"})]


class Results:
    """What was found, a line of JSON per case; that of other programs or judges does not count."""

    def __init__(self, folder, program):
        self.path = folder / "results.jsonl"
        files = [program, *(HERE / f for f in ("cases.py", "judge.py", "networks.py", "oracle.py",
                                               "parity.py"))]
        self.of = hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:16]
        self.found = {}
        if self.path.exists():
            for line in open(self.path):
                r = json.loads(line)
                if r["of"] == self.of:
                    self.found[r["case"]] = r

    def add(self, case, kinds, failure, seconds, about):
        r = {"of": self.of, "case": case.name, "model": case.model.label, "dtype": case.dtype,
             "ranks": case.ranks, "batch": case.batch / case.ranks, "plan": case.plan,
             "threads": case.threads, "isas": "+".join(case.isas), "recipe": case.recipe,
             "kinds": kinds, "failure": failure, "seconds": round(seconds, 2),
             "date": datetime.date.today().isoformat(), "about": about}
        self.found[case.name] = r
        with open(self.path, "a") as file:
            print(json.dumps(r), file=file)
        return r


def run_all(o, todo, runner, results):
    end = time.monotonic() + 60 * o.minutes if o.minutes else float("inf")
    print(report.HEADER)
    left = 0
    for case in todo:
        r = results.found.get(case.name)
        late = time.monotonic() >= end
        if not r and late:
            left += 1
            continue
        if not r or (r["failure"] and not late):  # what failed may have been the machine's fault
            begin, kinds, failure = time.monotonic(), {}, ""
            try:
                kinds = {k: asdict(w) for k, w in runner.run(case).items()}
            except (RuntimeError, subprocess.TimeoutExpired) as e:
                failure = str(e)
            r = results.add(case, kinds, failure, time.monotonic() - begin,
                            runner.about.get("f32", ""))
        print(report.line(r, o.v), flush=True)
    return left


def main():
    o = arguments()
    torch.set_num_threads(int(os.environ.get("PARITY_TORCH_THREADS", "2")))
    todo = cases.all_cases()
    if o.isa:
        todo = [replace(c, isas=tuple(o.isa.split(","))) for c in todo if c.dtype == "f32"]
    try:
        todo = [c for c in todo if not o.only or re.search(o.only, c.name)]
    except re.error as e:
        sys.exit(f"parity: --only {o.only}: {e}")
    if o.list:
        print("\n".join(c.name for c in todo))
        return 0
    if not todo:
        sys.exit(f"parity: --only {o.only}: no case has such a name; see --list")
    runner = Runner(o)
    if not runner.program.exists():
        sys.exit(f"parity: {o.program}: no such program")
    results = Results(runner.folder, runner.program)
    if o.fresh:
        results.found = {}
    runner.self_test()
    print(f"the judge sees all {len(mutants('f64'))} mutants, in f64, f32 and bf16")
    left = run_all(o, todo, runner, results)
    done = [results.found[c.name] for c in todo if c.name in results.found]
    off = [r for r in done if report.is_off(r)]
    print(f"{len(done)} cases, {len(off)} off" + (f", {left} not run: call again" if left else ""))
    if o.table:
        pathlib.Path(o.table).write_text(report.page(done, left, len(mutants("f64"))))
    return 1 if off else 0


if __name__ == "__main__":
    sys.exit(main())
