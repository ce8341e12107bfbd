#!/usr/bin/env python3
# Wrong plans and splits, given to the real programs on two ranks: each ends with one line that
# names the flag, the file and the layer, with status 1, within seconds, before anything was
# printed. And plans that are right: all losses agree, and what is sent is said. The same of
# `lamina plan`, whose JSON has the numbers of its tables. With -v prints the lines.
import concurrent.futures
import csv
import fcntl
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios

programs = pathlib.Path(os.environ["LAMINA_BUILD"]) / "bin"
verbose = "-v" in sys.argv
if not shutil.which("mpirun"):
    print("no mpirun")
    sys.exit(77)
for variable in [v for v in os.environ if v.startswith("LAMINA_")]:
    del os.environ[variable]
root = pathlib.Path(tempfile.mkdtemp(prefix="plan."))
failures = 0
# Programs that are refused do nothing but start and end, which is waiting mostly.
pool = concurrent.futures.ThreadPoolExecutor(3)
asked = []

bench = ("bench_network", "--model", "lenet", "--batch-size", "8", "--warmup", "0", "--iters", "3",
         "--display-every", "1", "--profile-steps", "0")
train = ("lamina", "train", "--batch-size", "8", "--steps", "3", "--profile-steps", "0",
         "--no-validation")


def call(program, arguments, ranks, patience=60):
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    line = [*launcher, str(programs / program[0]), *program[1:], *arguments]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               cwd=root, stdin=subprocess.DEVNULL, start_new_session=True)
    try:
        out, err = process.communicate(timeout=patience)
        return process.returncode, out, err, line
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return None, out, err, line


def fail(line, why, out, err):
    global failures
    failures += 1
    print(f"{why}\n  {' '.join(line)}\n--- stdout\n{out[-2000:]}--- stderr\n{err[-2000:]}---")


def bad(*call, **how):
    asked.append(pool.submit(refused, *call, **how))


def settle():
    """Waits for what is to be refused."""
    while asked:
        asked.pop().result()


def refused(expected, *arguments, program=bench, ranks=2, status=1, kept=()):
    code, out, err, line = call(program, arguments, ranks)
    own = re.findall(r"^lamina: error: (.*)$", err, re.M)
    if code != status:
        fail(line, f"status {code}, expected {status}", out, err)
    elif len(own) != 1 or expected not in own[0]:
        fail(line, f"expected one line with '{expected}', got {own}", out, err)
    elif out.strip():
        fail(line, "began before it failed", out, err)
    elif verbose:
        print(own[0])
    for path in kept:
        expect(path.read_text() == "kept", f"{arguments}: {path.name} was overwritten")


def fine(*arguments, program=bench, ranks=2, patience=60):
    settle()
    code, out, err, line = call(program, arguments, ranks, patience)
    if code != 0:
        fail(line, f"status {code}, expected 0", out, err)
    return out


def terminal(columns, *arguments, program=bench):
    """The lines that a program shows in a terminal that wide."""
    shown, own = pty.openpty()
    fcntl.ioctl(own, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    process = subprocess.Popen([str(programs / program[0]), *program[1:], *arguments], stdout=own,
                               stderr=own, cwd=root, stdin=subprocess.DEVNULL)
    os.close(own)
    out = b""
    try:
        while part := os.read(shown, 65536):
            out += part
    except OSError:
        pass  # which is how a terminal ends
    os.close(shown)
    expect(process.wait(timeout=60) == 0, f"in {columns} columns", out.decode())
    return out.decode().splitlines()


def losses(out):
    return re.findall(r"loss ([\d.]+)", out)


def expect(that, what, out=""):
    global failures
    if not that:
        failures += 1
        print(f"{what}\n{out}")


def plan(name, text=None, **members):
    whole = {"schema": "lamina-plan", "version": 1, "ranks": 2, "layers": {}, **members}
    return "--plan", write(name, json.dumps(whole) if text is None else text)


def write(name, text):
    if (root / name).exists():
        settle()
    (root / name).write_text(text)
    return name


# Without communication results are wrong, infinite even, but there are times.
for name in "data", "owt", "spatial", "filter":
    expect("total images/sec" in fine("--plan", name, "--comm", "none"), f"{name}, --comm none")

for program in bench, train:
    bad("conv1 (Conv2D): split height:99: there are only 28 rows to be cut",
        "--split", "conv1=height:99", program=program)
    bad("--plan bad.json: fc1 (Linear): cannot be split by height",
        *plan("bad.json", layers={"fc1": "height:2"}), program=program)
    bad("--plan none.json: cannot open", "--plan", "none.json", program=program)
bad("has 2 parts, but there is 1 rank", "--split", "conv1=height:2", ranks=1)
bad("has 3 parts, but there are 2 ranks", "--split", "fc1=channel:3")
bad("there is no layer 'fc11' (did you mean fc1?)", "--split", "fc11=channel:2")
bad("--split comv*=height:2: no layer matches 'comv*' (did you mean conv1?)",
    "--split", "comv*=height:2")
bad("unknown axis 'heigth' (did you mean height?)", "--split", "conv1=heigth:2")
bad("--split conv1: expected LAYER=AXIS:PARTS", "--split", "conv1")
bad("--split conv1=: split ''", "--split", "conv1=")
bad("expected a whole number of parts", "--split", "conv1=height:0")
bad("--plan: plan 'owtt' is not known (did you mean owt?)", "--plan", "owtt")
bad("is not known", "--plan", "")
bad("--plan .: expected a regular file", "--plan", ".")
bad("--split: expected one value", "--split", status=2)
for flag in "--plan", "--plan-out", "--json", "--split", "--recompute":
    bad(f"{flag}: expected a value, got '--wide'", flag, "--wide", status=2)
bad("--plan: expected a value, got '--seed'", "--plan", "--seed", "2", status=2)
bad("unexpected argument 2", "2", status=2)
bad("--plan empty.json: not valid JSON", *plan("empty.json", text=""))
bad("--plan half.json: not valid JSON", *plan("half.json", text='{"schema": "lamina-plan", "ver'))
bad("--plan foreign.json: not a plan", *plan("foreign.json", schema="lamina-profile"))
bad("of the plan schema", *plan("new.json", version=2))
bad("--plan vgg.json: is for model vgg16, but this run has lenet", *plan("vgg.json", model="vgg16"))
bad("--plan four.json: is for 4 ranks, but there are 2", *plan("four.json", ranks=4))
bad("layer 'fc1': split channel:3 has 3 parts", *plan("many.json", layers={"fc1": "channel:3"}))
bad("--plan unknown.json: there is no layer 'conv9' (did you mean conv1?)",
    *plan("unknown.json", layers={"conv9": "height:2"}))
bad("--plan twice.json: 'fc1' is given twice", *plan(
    "twice.json", text='{"schema": "lamina-plan", "version": 1, "ranks": 2, "layers": '
    '{"fc1": "channel:2", "fc1": "batch:2"}}'))
bad("--plan why.json: 'steps' is no member of a prediction: expected cluster, dtype, "
    "batch, step_s, layers", *plan("why.json", prediction={"steps": 1}))
bad("--plan why.json: prediction.step_s: expected a number of at least 0, got -1",
    *plan("why.json", prediction={"cluster": "c", "dtype": "f32", "batch": 1, "step_s": -1,
                                  "layers": []}))
bad("--plan why.json: timed: expected a list, got an object", *plan("why.json", timed={}))
bad("--plan-out", "--plan-out", "no/such/folder/plan.json")
bad("--recompute comv1: there is no layer 'comv1' (did you mean conv1?)", "--recompute", "comv1")
bad("--recompute: expected the name of a layer", "--recompute", "")
bad("--plan again.json: recompute: expected a list of layers or patterns, got \"conv1\"",
    *plan("again.json", recompute="conv1"))
bad("--plan again.json: recompute[1]: expected the name of a layer, or a pattern, got 1",
    *plan("again.json", recompute=["conv1", 1]))
collectives = ("bench_collectives", "--iters", "1", "--warmup", "0", "--min-bytes")
bad("--min-bytes 100: expected at most --max-bytes 10", "100", "--max-bytes", "10",
    program=collectives)
bad("--max-bytes 7: expected at least 8", "1", "--max-bytes", "7", program=collectives)

# Right ones: the losses of three steps are those of the plan `data`.
data = fine()
expect(len(losses(data)) == 3, "no losses", data)
expect("plan data\n" in data and "requested" not in data, "plan data needs no table", data)
for arguments in (("--plan", "owt", "--plan-out", "out.json"), ("--plan", "spatial"),
                  ("--plan", "filter"), ("--split", "conv1=height:2"), ("--plan", "out.json"),
                  ("--plan", "out.json", "--split", "fc?=none", "--split", "fc1=input:2")):
    out = fine(*arguments)
    expect(losses(out) == losses(data), f"{arguments}: other losses than under plan data", out)
    expect("requested" in out, f"{arguments}: no table", out)
    expect("model lenet, 61706 parameters" in out, f"{arguments}: not the whole model's", out)
for arguments in (("--recompute", "conv?", "--recompute", "relu*", "--shard-optimizer",
                   "--plan-out", "again.json"), ("--plan", "again.json")):
    out = fine(*arguments)
    expect(losses(out) == losses(data), f"{arguments}: other losses than under plan data", out)
    expect(re.search(r"conv1 .* batch:2 +yes ", out), f"{arguments}: no word of it", out)
expect(json.loads((root / "again.json").read_text())["shard_optimizer"] is True, "not in the plan")
out = fine("--shard-optimizer")
expect("plan data, sharded optimizer\n" in out, "the optimizer is not said to be sharded", out)
expect("dw reduce_scatter(2) 246.82 kB" in out and "update all_gather(2) 246.82 kB" in out
       and "dw all_reduce" not in out, "a sharded optimizer sends other things", out)
out = fine("--split", "fc1=height:2", "--allow-fallback")
expect(re.search(r"fc1 +height:2 +batch:2[\s#]+cannot be split by height", out), "no reason", out)
fine("--split", "conv*=height:2", program=train)
plan("owt", layers={"fc1": "channel:2"})  # a file, whose name a built-in plan has
expect("input:2" in fine("--plan", "owt"), "the built-in plan does not win")
expect("input:2" not in fine("--plan", "./owt"), "not the plan in the file")
code, out, err, line = call(bench, ("--plan-out", "/dev/full"), 2)
expect("--plan-out /dev/full: cannot write" in err, "not the flag's name", err)

# Rank 0 gets three parts and sends four: the table and the profile tell what is sent.
out = fine("--split", "fc1=none", "--split", "relu3=batch:3", "--csv", "sent.csv", ranks=4,
           program=("bench_network", "--model", "lenet", "--global-batch", "10", "--warmup", "0",
                    "--iters", "1", "--ceilings", "none"))
expect("fwd reshard(4) 4.80 kB, dx reshard(4) 11.20 kB" in out, "not what is sent", out)
with open(root / "sent.csv", newline="") as file:
    sent = {(r["layer"], r["pass"]): float(r["comm_bytes"]) for r in csv.DictReader(file)}
expect(sent.get(("fc1.reshard", "forward")) == 4800 and
       sent.get(("fc1.reshard", "input_grad")) == 11200, f"the profile has other bytes: {sent}")

# What a program says before it starts is 80 columns wide in a file, and as wide as the terminal.
for ranks, arguments in ((2, ("--plan", "owt")), (4, ("--plan", "spatial"))):
    out = fine(*arguments, ranks=ranks)
    lines = [line for line in out.splitlines() if line.startswith("#")]
    expect(any(line.startswith("#   ") for line in lines) and max(map(len, lines)) <= 80,
           f"{arguments}: longer lines", out)
    expect([line for line in lines if re.match(r"# rank \d+  host \S+  device cpu  threads", line)],
           "no line that names a rank", out)
for columns in 50, 200:
    lines = [line for line in terminal(columns, "--plan", "data") if line.startswith("#")]
    expect(len(lines) > 8 and max(map(len, lines)) <= columns, f"not {columns} columns", lines)
    memory = [line for line in lines if "memory of the rank, MB: parameters 0.3, " in line]
    expect(len(memory) == (1 if columns > 100 else 0), f"in {columns} columns: {memory}", lines)

for ranks in 1, 2:
    out = fine("3", "--max-bytes", "64", ranks=ranks, program=collectives)
    sizes = re.findall(r"^ +(\d+) ", out, re.M)
    expect(len(sizes) > 2 and len(set(sizes)) == len(sizes), "a size twice", out)
    expect(f", {ranks} rank{'s' if ranks > 1 else ''}," in out, "not the ranks", out)

# `lamina plan`: what is wrong ends before anything is written.
planner = ("lamina", "plan")
kept = {name: root / name for name in ("kept.json", "kept.svg", "kept.csv", "kept.plan")}
for path in kept.values():
    path.write_text("kept")
outputs = ("--json", "kept.json", "--scaling", "--svg", "kept.svg", "--convergence", "kept.csv",
           "--plan-out", "kept.plan", "--most-devices", "2")


def impossible(expected, *arguments, model="lenet", written=outputs, ranks=1):
    bad(expected, "--model", model, *arguments, *written, program=planner, ranks=ranks,
        kept=kept.values())


def cluster(name, memory=16, **members):
    whole = {"schema": "lamina-cluster", "version": 1, "devices_per_node": 2, "nodes": [
        {"count": 1, "device": {"memory_gib": memory, "bandwidth_gbs": 100, "launch_us": 1,
         "flops": [{"dtype": "f32", "gemm_tflops": 1, "conv_tflops": 1}]}}],
        "inside": {"latency_us": 1, "bandwidth_gbs": 10},
        "across": {"latency_us": 1, "bandwidth_gbs": 1}, **members}
    return "--cluster", write(name, json.dumps(whole))


impossible("--cluster: cluster 'h100-ndrr' is not known (did you mean h100-ndr?)", "--cluster",
           "h100-ndrr")
(root / "cut.json").write_text('{"schema": "lamina-clu')
impossible("--cluster none.json: cannot open", "--cluster", "none.json")
impossible("--cluster cut.json: not valid JSON", "--cluster", "cut.json")
impossible("--cluster odd.json: devices_per_node", *cluster("odd.json", devices_per_node=0))
impossible("--devices: cluster 'h100-ndr': expected a multiple of 8 devices, or fewer than these,"
           " got 12", "--devices", "12")
impossible("model 'lenet5' is not known (did you mean lenet?)", model="lenet5")
impossible("--micro-batch 3 does not divide the global batch of 64", "--global-batch", "64",
           "--micro-batch", "3")
impossible("--batch-size (per rank) and --global-batch exclude each other", "--global-batch", "64",
           "--batch-size", "8")
impossible("no plan fits into memory: the one that takes the least takes ",
           *cluster("tiny.json", memory=1e-5))
impossible("--convergence: no plan that the search found fits", "--search", "fixed",
           *cluster("tight.json", memory=0.0012))
impossible("device 'H100 SXM 80 GB' has no FLOP/s of f64", "--dtype", "f64")
impossible("dtype", "--dtype", "f8")
impossible("--recompute comv1: there is no layer 'comv1' (did you mean conv1?)", "--recompute",
           "comv1")
impossible("lamina plan needs no ranks: start it without mpirun", ranks=2)
impossible("selections", "--search", "brute")
impossible("--json no/such/folder.json: cannot be written",
           written=("--json", "no/such/folder.json"))
impossible("--calibrate plans for the ranks there are: expected neither --devices,", "--calibrate",
           ranks=2)
bad("--cluster-out needs --calibrate", "--cluster-out", "kept.json", program=planner, ranks=1)
impossible("--validate runs plans on the ranks of this job, and there is one only", "--validate",
           written=())
impossible("--validate runs many plans as they are: expected no --devices, --scaling,",
           "--validate", ranks=2)
bad("--svg needs --scaling", "--svg", "kept.svg", program=planner, ranks=1)
impossible("--rounds needs --validate", "--rounds", "2")
impossible("--backend needs --calibrate or --validate", "--backend", "reference")
impossible("--threads needs --calibrate or --validate", "--threads", "2")
impossible("--most-devices needs --scaling or --sweep", written=("--most-devices", "8"))
impossible("--swarm-size needs --search swarm, got exact", "--swarm-size", "5")
impossible("--unseeded needs --search swarm or mcmc, got brute", "--search", "brute", "--unseeded")
impossible("--workers: layers are split by samples there", "--workers", "4")
impossible("--cluster: --calibrate and --validate plan for the ranks there are", "--calibrate",
           "--cluster", "h100-ndr", ranks=2)
out = fine("--model", "lenet", "--cluster", "h100-ndr", "--devices", "2", "--plan-out",
           "it's a plan", program=planner, ranks=1)
expect(r" --plan 'it'\''s a plan'" in out, "not to be copied", out)
told = ("--image-size", "32", "--optimizer", "adam", "--bucket-mb", "5")
out = fine("--model", "lenet", *told, "--dtype", "bf16", "--cluster", "h100-ndr", "--devices", "2",
           "--batch-size", "4", "--plan-out", "told.plan", program=planner, ranks=1)
expect("# to run it: mpirun -n 2 bench_network --model lenet --image-size 32 --optimizer adam "
       "--bucket-mb 5 --dtype bf16 --global-batch 8 --plan told.plan" in out, "not as planned", out)
bad("--plan auto times plans, and so needs communication", "--plan", "auto", "--comm", "none")
for expected, flag, value in (
        ("--devices: expected a whole number from 1", "--devices", "0"),
        ("--global-batch: expected a whole number from 1", "--global-batch", "0"),
        ("--search: expected exact, ", "--search", "exakt"),
        ("--inertia: expected a number from 0 to 1", "--inertia", "2"),
        ("--sweep: expected batch, devices or batch,devices", "--sweep", "all"),
        ("expected a file that ends in .svg or .csv", "--convergence", "a.png"),
        ("unknown flag --device (did you mean --devices?)", "--device", "2")):
    bad(expected, flag, value, program=planner, ranks=1, status=2)

for dtype, *on in (("bf16", "--cluster", "h100-ndr", "--devices", "8"),
                   ("f32", *cluster("two.json"))):
    fine("--model", "lenet", *on, "--dtype", "auto", "--json", "auto.json", program=planner,
         ranks=1)
    found = json.loads((root / "auto.json").read_text())["dtype"]
    expect(found == dtype, f"--dtype auto on {on}: {found}")
out = fine("--model", "lenet", *cluster("two.json"), "--devices", "4", "--global-batch", "32",
           "--scaling", "--sweep", "batch,devices", "--most-devices", "4", "--json", "out.json",
           "--svg", "out.svg", "--convergence", "out.csv", "--plan-out", "found.json", "--search",
           "swarm", "--swarm-size", "5", "--swarm-iterations", "7", "--wide",
           program=planner, ranks=1)
told = json.loads((root / "out.json").read_text())
expect(told["schema"] == "lamina-prediction" and told["version"] == 1, "another schema")


def row(name, numbers, start=0):
    """The line of a table that begins with this word has these numbers, in milliseconds or plain,
    of which some may be left out."""
    for line in out[out.index("\nlayer "):].splitlines():
        if line.split()[:1] == [name]:
            words = line.split()
            for number, unit in numbers:
                expect(any(close(w, number * unit) for w in words), f"{name}: no {number}", line)
            return
    expect(False, f"no line of {name}", out)


def close(word, number):
    try:
        digits = len(word.partition(".")[2])
        return abs(float(word) - number) <= 0.51 * 10 ** -digits
    except ValueError:
        return False


for one in told["plans"]:
    row(one["name"], [(one["seconds"], 1e3), (one["kernels"], 1e3), (one["images_per_sec"], 1),
                      (one["times_data"], 1), (one["memory"]["total"], 1e-6)])
for one in told["layers"]:
    row(one["layer"], [(one["seconds"], 1e3), (one["data_seconds"], 1e3)])
    expect(one["split"] in out, "not its split", out)
total = sum(one["seconds"] for one in told["layers"])
expect(abs(total - told["plans"][0]["seconds"]) < 1e-12, "layers are not the step")
weak = out.index("weak scaling")
for kind, lines in (("strong", out[:weak]), ("weak", out[weak:])):
    for one in told[kind]:
        found = [l.split() for l in lines.splitlines() if l.split()[:2] ==
                 [str(one["devices"]), str(one["batch"])]]
        expect(len(found) == 1 and close(found[0][2], one["data_images_per_sec"]) and
               any(close(w, one["auto_images_per_sec"]) for w in found[0][3:]), f"{kind}: {one}",
               out)
expect([(p["devices"], p["batch"]) for p in told["sweep"]] ==
       [(n, b) for n in (1, 2, 4) for b in (8, 16, 32, 64, 128)], "another sweep", told["sweep"])
# With --micro-batch N a larger batch has more of them, and is what it is alone.
parts = ("--model", "lenet", *cluster("two.json"), "--devices", "4", "--micro-batch", "8", "--json",
         "parts.json")
fine(*parts, "--global-batch", "32", "--sweep", "batch", program=planner, ranks=1)
swept = json.loads((root / "parts.json").read_text())["sweep"]
for one in swept:
    fine(*parts, "--global-batch", str(one["batch"]), program=planner, ranks=1)
    alone = json.loads((root / "parts.json").read_text())["plans"][0]
    expect(one["auto_images_per_sec"] == alone["images_per_sec"], f"a sweep differs from {alone}",
           one)
fine(*parts, "--global-batch", "24", "--sweep", "batch", program=planner, ranks=1)
swept = json.loads((root / "parts.json").read_text())["sweep"]
expect([p["batch"] for p in swept if p["auto_seconds"] is None] == [12], "not cut evenly", swept)
with open(root / "out.csv", newline="") as file:
    expect([float(r["seconds"]) for r in csv.DictReader(file)] == told["convergence"],
           "the CSV has another convergence")
expect("<svg" in (root / "out.svg").read_text(), "no drawing")
out = fine("--plan", "found.json", ranks=4)
expect(len(losses(out)) == 3, "the plan that was found does not run", out)

# What a plan predicts goes from file to file, and into the profile, to the last second.
profiled = (*bench[:-1], "2", "--ceilings", "none", "--json", "profile.json")


def profile(*arguments, ranks):
    fine(*arguments, program=profiled, ranks=ranks)
    p = json.loads((root / "profile.json").read_text())
    return p.get("plan"), sum(row["predicted_s"] for row in p["rows"])


found = json.loads((root / "found.json").read_text())["prediction"]
expect(found["step_s"] == told["plans"][0]["seconds"] and found["batch"] == 32,
       "the plan has another prediction than was told", found)
kept_plan, rows = profile("--plan", "found.json", "--plan-out", "kept.json", ranks=4)
expect(kept_plan and kept_plan["predicted_s"] == found["step_s"] and
       abs(rows / found["step_s"] - 1) < 1e-9, f"{rows} s in rows", f"{kept_plan} {found}")
expect(json.loads((root / "kept.json").read_text())["prediction"] == found,
       "--plan-out has another prediction")
for arguments in (("--split", "fc3=none"), ("--shard-optimizer",), ("--global-batch", "64"),
                  ("--dtype", "bf16"), ("--grad-dtype", "bf16"), ("--image-size", "36")):
    size = profiled.index("--batch-size") if "--global-batch" in arguments else len(profiled)
    fine("--plan", "found.json", *arguments, program=profiled[:size] + profiled[size + 2:],
         ranks=4)
    p = json.loads((root / "profile.json").read_text())
    expect("plan" not in p, f"{arguments}: a prediction of another step")

out = fine("--plan", "auto", "--plan-out", "auto.json", ranks=2, patience=300)
auto = json.loads((root / "auto.json").read_text())
expect(re.search(r"ms, predicted .* ms, taken", out) and len(auto["timed"]) > 1 and
       auto["prediction"]["step_s"] == auto["timed"][0]["predicted_s"], "no decision", out)
kept_plan, rows = profile("--plan", "auto.json", ranks=2)
expect(kept_plan and kept_plan["timed"] == auto["timed"], "not what was timed", kept_plan)
out = fine("--plan", "auto", "--micro-batch", "8", "--plan-out", "auto.json", patience=300)
auto = json.loads((root / "auto.json").read_text())
expect(auto["prediction"]["batch"] == 16 and auto["micro_batches"] == 2 and
       "in 2 micro-batches of 8" in out, "not in micro-batches", out)
out = fine("--plan", "auto.json")
expect("in 2 micro-batches of 8" in out, "a file's micro-batches are not taken", out)
(root / "events").write_text("4 2\n9 1\n")
out = fine("--model", "lenet", "--limit", "480", "--global-batch", "16", "--plan", "auto",
           "--elastic", "--ranks", "1", "--events", "events", "--steps", "4000", "--epochs", "1000",
           "--no-validation", "--log", "log.json", program=("lamina", "train"), patience=300)
log = [json.loads(line) for line in (root / "log.json").read_text().splitlines()]
resized = [r["ranks"] for r in log if "ranks_before" in r]
steps = [r["step"] for r in log if "loss" in r]
expect("# plan auto: " in out and "# plan auto on 1: " in out and resized == [2, 1] and
       steps == list(range(1, 4001)), f"{resized}: not a plan for each number of ranks", out)
auto["micro_batches"] = 3
(root / "thirds.json").write_text(json.dumps(auto))
bad("--plan thirds.json: its 3 micro-batches do not divide the global batch of 16", "--plan",
    "thirds.json")

for columns in 60, 80, 130:
    lines = terminal(columns, "--model", "lenet", *cluster("two.json"), "--scaling",
                     "--most-devices", "2", program=planner)
    lines = [line.split("\033[K")[-1] for line in lines]
    expect(max(map(len, lines)) <= columns, f"not {columns} columns", lines)

settle()
shutil.rmtree(root)
print("all well" if failures == 0 else f"{failures} failures")
sys.exit(failures > 0)
