#!/usr/bin/env python3
# Bad input, given to the real programs: each ends with one clear line that names the file, flag or
# layer and says what was expected; with status 1, or 2 for usage; within seconds, on all ranks; and
# what was saved before stays as it was. With -v prints the lines.
import hashlib
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["LAMINA_SOURCE"] + "/tests/support")
import tiny_data as data

programs = pathlib.Path(os.environ["LAMINA_BUILD"]) / "bin"
verbose = "-v" in sys.argv
for variable in [v for v in os.environ if v.startswith("LAMINA_")]:
    del os.environ[variable]  # the programs repeat them
failures = 0
root = pathlib.Path(tempfile.mkdtemp(prefix="bad_input."))
good = root / "checkpoints" / "good.safetensors"

# What no user should ever see.
dump = re.compile(r"terminate called|what\(\):|core dumped|Segmentation|Signal:|\[ *\d+\] /|std::"
                  r"|AddressSanitizer|runtime error")


def command(program, arguments, ranks, wrapper=()):
    launcher = ["mpirun", "-n", str(ranks)] if ranks > 1 else []
    return [*map(str, [*launcher, *wrapper, programs / program, *arguments])]


def call(line, limit=20, **options):
    """Status, stdout, stderr, seconds; status None where the time limit was reached."""
    begin = time.monotonic()
    # A session of its own, so that all of its processes can be found, and ended.
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               cwd=root, stdin=subprocess.DEVNULL, start_new_session=True,
                               **options)
    try:
        out, err = process.communicate(timeout=limit)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        status = None
    return status, out, err, time.monotonic() - begin


def state():
    """What must not change: the checkpoints' folder, temporary files included."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in good.parent.iterdir()}


def report(what, line, reasons, out, err):
    global failures
    failures += 1
    print(f"{what}: {'; '.join(reasons)}\n  {' '.join(line)}\n--- stdout\n{out[-2000:]}--- stderr\n"
          f"{err[-2000:]}---")


def bad(expected, *arguments, program="lamina", ranks=1, status=1, limit=20, silent=True,
        wrapper=(), saved=True, **options):
    """Runs a program that must refuse what it gets: `expected` is what its one line says. `silent`:
    before anything was printed, that is before training began. `saved`: nothing may be saved."""
    line = command(program, arguments, ranks, wrapper)
    before = state()
    code, out, err, seconds = call(line, limit, **options)
    own = re.findall(r"^lamina: error: (.*)$", err, re.M)
    reasons = []
    if code is None:
        reasons.append(f"not ended after {limit} s")
    elif code != status:
        reasons.append(f"status {code}, expected {status}")
    if len(own) != 1:
        reasons.append(f"{len(own)} lines, expected one")
    elif not re.search(expected, own[0]):
        reasons.append(f"the line does not say '{expected}'")
    if ranks == 1 and err.count("\n") > 1:
        reasons.append("more than one line on stderr")
    if dump.search(out + err):
        reasons.append("a dump")
    if silent and out.strip():
        reasons.append("began before it failed")
    if state() != before:
        if saved:
            reasons.append("the checkpoints' folder changed")
        shutil.rmtree(good.parent)
        shutil.copytree(root / "copy", good.parent)
    if reasons:
        report(expected, line, reasons, out, err)
    elif verbose:
        print(f"{seconds:5.1f} s  {' '.join(line[len(line) - len(arguments):])}\n         {own[0]}",
              flush=True)


def fine(*arguments, program="lamina", ranks=1, **options):
    """Runs a program that must succeed; returns its stdout."""
    line = command(program, arguments, ranks)
    code, out, err, _ = call(line, 120, **options)
    if code != 0:
        report("expected to succeed", line, [f"status {code}"], out, err)
    return out


def train(*arguments):
    """The arguments of a short training that would succeed."""
    return ("train", "--data", f"mnist:{root}/mnist", "--batch-size", "8", *arguments)


def changed(folder, change, name="mnist"):
    """A copy of a data set, with a change to it."""
    copy = shutil.copytree(root / name, root / folder)
    change(copy)
    return copy


def help_and_usage():
    for program, *arguments in (("lamina", "--help"), ("lamina", "train", "--help"),
                                ("lamina", "info", "--help"), ("bench_network", "--help"),
                                ("bench_collectives", "--help"), ("bench_inference", "--help"),
                                ("lamina", "--version"), ("bench_network", "--version"),
                                ("lamina", "train", "--list-models"),
                                ("bench_network", "--list-models")):
        out = fine(*arguments, program=program)
        wide = [l for l in out.splitlines() if len(l) > 100]
        if not out.strip() or wide:
            report("help", [program, *arguments], ["empty" if not wide else "wider than 100"],
                   "\n".join(wide), "")

    def usage(expected, *arguments, **options):
        bad(expected, *arguments, status=2, **options)

    usage("expected a command")
    usage(r"trian .*did you mean train\?", "trian")
    usage("unknown command frobnicate", "frobnicate")
    usage("--model.*belongs behind the command", "--model", "lenet", "train")
    usage(r"unknown flag --batchsize .*did you mean --batch-size\?", "train", "--batchsize", "8")
    usage(r"unknown flag --batchsize .*did you mean --batch-size\?", "train", "--batchsize=8",
          ranks=2)
    usage(r"unknown flag --iter .*did you mean --iters\?", "--iter", "3", program="bench_network")
    usage("unexpected argument resnet50", "train", "resnet50")
    usage(r"unknown flag --mni .*did you mean --min\?", "launch", "--mni", "2", "--", "train")
    usage("--epochs: expected one value", "train", "--epochs")
    usage("--epochs: expected one value", "train", "--epochs", "1", "--epochs", "2")
    usage("--epochs: expected a whole number from 1 .*three", "train", "--epochs", "three")
    usage("--epochs: expected a whole number from 1 .*1.5", "train", "--epochs", "1.5")
    usage("--epochs: expected a whole number from 1 .*0", "train", "--epochs", "0")
    usage("--batch-size.*-1", "train", "--batch-size", "-1")
    usage("--batch-size: .* to 2147483647", "train", "--batch-size", "99999999999999999999")
    usage("--micro-batch: expected auto or a whole number from 1 .*many", "train", "--micro-batch",
          "many")
    usage("--micro-batch: expected auto or a whole number .*'0'", "train", "--micro-batch", "0")
    usage("--memory: expected a size as 800MB, 4GB or 1.5GiB, got '4'", "train", "--memory", "4")
    usage("--memory: expected a size .*'0GB'", "train", "--memory", "0GB")
    usage("--memory: expected a size .*'-1MB'", "train", "--memory", "-1MB")
    usage("--memory: expected a size .*'nanMB'", "train", "--memory", "nanMB")
    usage("--seed: .* to 18446744073709551615", "train", "--seed", "-1")
    usage("--image-size: .* to 65535", "train", "--image-size", "65536")
    usage("--threads: .* to 1024", "train", "--threads", "1000000")
    usage("--loader-threads: .* to 256", "train", "--loader-threads", "1000000")
    usage("--momentum.*2", "train", "--momentum", "2")
    usage("--lr.*nan", "train", "--lr", "nan")
    usage("--lr.*inf", "train", "--lr", "inf")
    usage("--optimizer.*sgd.*adam", "train", "--optimizer", "sgdd")
    usage("--device.*auto.*cpu", "train", "--device", "gpu")
    usage("--comm.*auto.*mpi", "train", "--comm", "gloo")
    usage("--sort.*order.*time", "train", "--sort", "size")
    bad("--sort wasted: expected --ceilings auto or measure", *train("--sort", "wasted"),
        "--ceilings", "none")
    bad("--backend: expected --machine", "info", "--backend", "reference")
    bad("--image-size and --classes: expected --model", "info", "--classes", "7")
    usage("RANKS: expected a whole number from 1 .*, got 'many'", "resize", "job", "many")
    usage("--model: expected a value, got '--dtype'", "--model", "--dtype", "f32",
          program="elastic")
    usage("--iters", "--iters", "0", program="bench_network")
    usage("--scaling", "--scaling", "odd", program="bench_network")
    usage("--op: expected all_reduce.*scan", "--op", "scan", program="bench_collectives")
    usage("--grad-dtype", "--grad-dtype", "f8", program="bench_network")
    bad("gradients in f64 cannot go as bf16: expected bf16 for f32", "--model", "lenet", "--dtype",
        "f64", "--backend", "reference", "--grad-dtype", "bf16", program="bench_network")
    usage("--batch-size", "--batch-size", "0", program="bench_inference")
    bad("bench_inference: expected one rank, got 2", "--model", "lenet", program="bench_inference",
        ranks=2)
    out = fine("--model", "lenet", "--dtype", "auto", "--iters", "3", program="bench_inference")
    if not re.search(r"^latency ms: [\d.]+ .*\nimages/sec: [1-9]", out, re.M):
        report("bench_inference", [], ["no latency"], out, "")
    if not re.search(r"^# back end \S+: \w", out, re.M):  # compare_pytorch takes it from here
        report("bench_inference", [], ["no back end"], out, "")


def names():
    bad(r"model 'resnet51'.*did you mean resnet50\?", *train("--model", "resnet51"))
    bad(r"model 'resnet51'", "--model", "resnet51", program="bench_network", ranks=2)
    bad(r"model 'resnet51'", "info", "--model", "resnet51")
    bad(r"schedule 'cosin'.*expected.*cosine", *train("--schedule", "cosin"))
    bad(r"schedule 'step:2,x'.*expected.*step:EPOCHS,FACTOR", *train("--schedule", "step:2,x"))
    bad("data source 'imagenet'.*expected.*images:DIR", "train", "--data", "imagenet")
    bad("data source 'mnist'.*expected mnist:DIR", "train", "--data", "mnist")
    bad("back ?end.*'mkl'.*expected.*reference", *train("--backend", "mkl"))
    bad("dtype: expected f32.*bf16.*tf32.*auto.*'f8'", *train("--dtype", "f8"), status=2)
    bad("--dtype tf32: GPUs multiply so, expected --device cuda", *train("--dtype", "tf32"))
    bad("--workspace: it is for GPUs, expected --device cuda", *train("--workspace", "1GB"))
    bad("onednn.*f16", *train("--dtype", "f16", "--backend", "onednn"))
    bad("loss scale: expected a power of two from 1 to .*, got 1000",
        *train("--loss-scale", "1000"))
    bad("--loss-scale big: expected dynamic, off, or a power of two",
        *train("--loss-scale", "big"))
    for scale, got in (("auto", "none with --dtype f32"), ("off", "off"), ("64", "64")):
        bad(f"--loss-scale-steps: expected --loss-scale dynamic, got {got}",
            *train("--loss-scale", scale, "--loss-scale-steps", "10"))
    bad("onednn.*f64", *train("--dtype", "f64", "--backend", "onednn"))
    gpu = shutil.which("nvidia-smi")
    if not gpu:
        bad("device cuda.*not built in|no GPU can be used", *train("--device", "cuda"))
        bad("cuda.*not built in|no GPU can be used", *train("--backend", "cuda"))
        bad("cuda.*not built in|no GPU can be used", *train("--backend", "cuda:1"))
    bad("--backend cuda: expected --device auto or cuda|not built in",
        *train("--device", "cpu", "--backend", "cuda"))
    bad("--device cuda: expected --backend auto or cuda, got onednn|no.* built in",
        *train("--device", "cuda", "--backend", "onednn"))
    bad("back end 'cuda:x'.*expected.*cuda:N|not built in", *train("--backend", "cuda:x"))
    bad("--comm nccl.*(not built in|expected --device cuda)", *train("--comm", "nccl"))
    bad("--comm mpi.*mpirun", *train("--comm", "mpi"))
    bad("--batch-size.*--global-batch", *train("--global-batch", "8"))
    bad("--nesterov: expected --optimizer sgd, got adam",
        *train("--nesterov", "--optimizer", "adam"))
    bad("--momentum: expected --optimizer sgd or lars, got adamw",
        *train("--momentum", "0.9", "--optimizer", "adamw"))
    bad("--save-every needs --save", *train("--save-every", "2"))
    bad("--init-partly needs --init FILE", *train("--init-partly"))
    bad("--init and --resume: .*expected one of the two",
        *train("--init", good, "--resume", good))
    bad("--profile-steps 0: --json, .* are of recorded steps",
        *train("--profile-steps", "0", "--report", root / "report"))
    bad("--comm none .*for timing only: expected no --save",
        *train("--comm", "none", "--save", good), ranks=2)
    bad("--model and --machine or --measure", "info", "--model", "lenet", "--measure")
    bad("--keep needs --save", *train("--keep", "2"))
    bad("--keep-best needs --save", *train("--keep-best"))
    bad("--resume needs", *train("--resume"))


def files():
    images, labels = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"

    def mnist(expected, change, **options):
        folder = changed(f"mnist-{time.monotonic_ns()}", change)
        bad(f"{folder}.*{expected}", "train", "--data", f"mnist:{folder}", "--save", good,
            **options)

    bad("/nowhere: no such folder", "train", "--data", "mnist:/nowhere")
    bad("/nowhere: no such folder", "train", "--data", "mnist:/nowhere", ranks=2)
    bad("/nowhere: no such folder", "train", "--data", "cifar10:/nowhere", "--model", "resnet20")
    bad("/nowhere: no such folder", "train", "--data", "images:/nowhere", "--model", "resnet18")
    mnist(f"{images}: no such file", lambda d: (d / images).unlink())
    mnist("t10k-labels-idx1-ubyte: no such file", lambda d: (d / "t10k-labels-idx1-ubyte").unlink())
    mnist(f"{images}: truncated.*50192 bytes, found|truncated", lambda d: data.cut(d / images))
    mnist(f"{images}: truncated within the header", lambda d: data.cut(d / images, 1e-4))
    mnist(f"{images}: wrong magic number 0x.*expected 0x00000803",
          lambda d: data.flip(d / images, 2))
    mnist(f"{labels}: label 200 of image 5, expected 0 to 9",
          lambda d: data.flip(d / labels, 8 + 5, 200))
    mnist(f"{labels}: 60 labels for the 64 images", lambda d: data.write(
        d / labels, data.idx((60,), [0] * 60)))
    mnist(f"{images}: longer", lambda d: (d / images).open("ab").write(b"more"))
    mnist(f"{images}.gz: damaged", lambda d: data.flip(data.zip_file(d / images), 60))
    mnist(f"{images}.gz: truncated", lambda d: data.cut(data.zip_file(d / images)))
    mnist(f"{images}.gz", lambda d: data.cut(data.zip_file(d / images)), ranks=2)

    folder = changed("cifar-cut", lambda d: data.cut(d / "data_batch_3.bin", 0.7), "cifar")
    bad("data_batch_3.bin: .* bytes, expected whole records of 3073", "train", "--model",
        "resnet20", "--data", f"cifar10:{folder}")
    folder = changed("cifar-label", lambda d: data.flip(d / "test_batch.bin", 3073, 77), "cifar")
    bad("test_batch.bin: label 77 of image 1, expected 0 to 9", "train", "--model", "resnet20",
        "--data", f"cifar10:{folder}")

    def folder(expected, change, **options):
        copy = changed(f"images-{time.monotonic_ns()}", change, "images")
        bad(f"{copy}.*{expected}", "train", "--model", "resnet20", "--batch-size", "2", "--data",
            f"images:{copy}", "--save", good, **options)

    def empty(d):
        for image in (d / "class1").iterdir():
            image.unlink()

    def none(d):
        shutil.rmtree(d / "class0"), shutil.rmtree(d / "class1")

    folder("no class folders, expected CLASS", none)
    folder("class1: no images, expected .jpg", empty)
    # A picture is read when its turn comes.
    folder("class0/2.jpg: corrupt JPEG", lambda d: data.cut(d / "class0/2.jpg", 0.9), silent=False)
    folder("class0/2.jpg: corrupt JPEG", lambda d: data.cut(d / "class0/2.jpg", 0.9), silent=False,
           ranks=2)
    folder("class0/2.jpg: corrupt JPEG", lambda d: data.flip(d / "class0/2.jpg", 75), silent=False)
    folder("class1/3.png: corrupt PNG", lambda d: data.cut(d / "class1/3.png"), silent=False)
    folder("class1/3.png: neither a JPEG nor a PNG",
           lambda d: (d / "class1/3.png").write_text("not a picture\n"), silent=False)
    folder("class1/3.png: neither", lambda d: (d / "class1/3.png").write_text(""), silent=False)
    folder("class1/9.png: neither",  # of the validation set: after an epoch
           lambda d: (d / "class1/9.png").write_text(""), silent=False, ranks=1, saved=False)


def checkpoints():
    save = ("--save", good)
    bad("good.safetensors: checkpoint for another model.*conv1.weight 6x1x5x5/16x3x3x3", "train",
        "--model", "resnet20", "--init", good, *save)
    out = fine("train", "--classes", "4", "--batch-size", "4", "--steps", "1", "--init", good,
               "--init-partly", "--no-validation")
    said = " ".join(out.replace("\n#", "").split())
    if ("good.safetensors: 8 of 10 tensors; 2 of another shape, file/network "
            "(fc3.weight 10x84/4x84, fc3.bias 10/4)") not in said:
        report("--init-partly", [], ["does not say what it left out"], out, "")
    bad("good.safetensors: was saved with model lenet, but this run has resnet20", "train",
        "--model", "resnet20", "--batch-size", "8", "--resume", *save)
    bad("good.safetensors.*another model.*fc3.weight 10x84/4x84",
        "train", "--classes", "4", "--init", good, *save)
    bad("good.safetensors: was saved with model lenet, but this run has resnet20", "train",
        "--model", "resnet20", "--global-batch", "8", "--resume", *save, ranks=2)
    bad("good.safetensors: checkpoint for another model.*fc3.weight 10x84/12x84",
        *train("--classes", "12", "--resume", *save))
    bad("good.safetensors.*optimizer sgd.*adam", *train("--optimizer", "adam", "--resume", *save))
    bad("good.safetensors.*optimizer sgd.*lars", *train("--optimizer", "lars", "--resume", *save))
    bad("good.safetensors.*global_batch 8.*16", "train", "--data", f"mnist:{root}/mnist",
        "--batch-size", "16", "--resume", *save)
    bad("good.safetensors.*seed 1.*seed 2|good.safetensors.*seed 1.*has 2",
        *train("--seed", "2", "--resume", *save))
    bad("/nowhere.safetensors: cannot open: No such file", *train("--init", "/nowhere.safetensors"))
    bad("/nowhere.safetensors: cannot open: No such file",
        *train("--resume", "/nowhere.safetensors"), ranks=2)
    bad(f"{root}: .*regular file", *train("--init", root))
    offsets = (b'"data_offsets":[0,', b'"data_offsets":[8,')
    for name, change in (("cut", data.cut), ("empty", lambda p: data.cut(p, 0)),
                         ("length", lambda p: data.flip(p, 6)), ("json", lambda p: data.flip(p, 8)),
                         ("offset", lambda p: p.write_bytes(p.read_bytes().replace(*offsets)))):
        damaged = root / f"{name}.safetensors"
        shutil.copy(good, damaged)
        change(damaged)
        bad(f"{damaged}: ", *train("--init", damaged))
        bad(f"{damaged}: ", *train("--resume", damaged, *save))


def shapes():
    bad("conv2|pool2", *train("--image-size", "6"))
    bad("features|pool", "--model", "alexnet", "--image-size", "30", program="bench_network")
    bad("--classes 4: .*10 classes", *train("--classes", "4"))
    bad("global batch of 1 .*2 ranks|batch of 1 .*2 ranks", "train", "--data",
        f"mnist:{root}/mnist", "--global-batch", "1", ranks=2)
    bad("batch of 1 .*2 ranks", "--model", "lenet", "--global-batch", "1", ranks=2,
        program="bench_network")
    bad("batch of 100 .*64 images", "train", "--data", f"mnist:{root}/mnist", "--batch-size", "100")
    bad("batch of 100 .*64 images", "--model", "lenet", "--data", f"mnist:{root}/mnist",
        "--batch-size", "100", program="bench_network")
    bad("pool1 .*does not fit", "train", "--image-size", "1")
    bad("not enough memory", "train", "--batch-size", "2000000000")
    bad("--memory: expected --micro-batch auto or --plan auto", *train("--memory", "4GB"))
    bad("--micro-batch auto: no micro-batch fits into memory: the smallest, 1 of 8 samples, takes "
        "[0-9.]+ MB of a rank's 0.5 MB", *train("--micro-batch", "auto", "--memory", "0.5MB"))
    bad("the smallest, 2 of 8 samples, takes [0-9.]+ MB of a rank's 0.2 MB", "--model", "lenet",
        "--global-batch", "8", "--micro-batch", "auto", "--memory", "0.5MB", ranks=2,
        program="bench_network")
    bad("not enough memory", "train", "--image-size", "65535", "--batch-size", "1000")


def small_files():  # as on a disk with 100 kB left
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


def outputs():
    save = ("--save", good)
    missing = root / "missing" / "file"
    for flag in ("--save", "--log", "--json", "--csv"):
        bad(f"{flag} {missing}: cannot be written: .*No such file", *train(flag, missing))
        bad(f"{flag} {root}: cannot be written: .*folder", *train(flag, root))
    bad(f"{missing}.*No such file", *train("--log", missing), ranks=2)
    for flag in ("--json", "--csv"):
        bad(f"{missing}.*No such file", "--model", "lenet", flag, missing, program="bench_network")

    for more in (), ("--keep-best",):  # no regular file: known before anything is trained
        bad("--save /dev/null: cannot save here: expected a regular file or none",
            *train("--save", "/dev/null", *more))
    bad("--save /dev/null: cannot save here", *train("--save", "/dev/null"), ranks=2)
    same = root / "same"
    bad(f"--save and --json: both name {same}", *train("--save", same, "--json", same))
    bad("--log and --csv: both name .*same", *train("--log", same, "--csv", f"{root}/./same"))
    fine(*train("--limit", "16", "--no-validation", "--json", "/dev/null", "--csv", "/dev/null"))
    for flag in "--json", "--report", "--trace":
        bad("--profile-steps 0: --json, --csv, --trace and --report are of recorded steps",
            "--model", "lenet", "--profile-steps", "0", flag, same, program="bench_network")
    (root / "trace.1.json").mkdir()
    bad("rank 1: .*trace.1.json: expected a regular file", "--model", "lenet", "--trace",
        root / "trace.json", "--iters", "100000000", program="bench_network", ranks=2, silent=False)
    notes = data.write(root / "notes", b"remember the milk\n")
    bad("--log .*notes: line 1 is no JSON object: expected a log",
        *train("--log", notes, "--resume", *save))

    kept = data.write(root / "kept", b"content\n")
    for flag in ("--log", "--json", "--csv"):  # what was there stays where nothing is written
        bad("/nowhere", "train", "--data", "mnist:/nowhere", flag, kept)
        bad("/nowhere", *train("--init", "/nowhere", flag, kept))
        bad(str(missing), *train("--save", missing, flag, kept))
        if kept.read_bytes() != b"content\n":
            report(flag, [], ["an unused output file changed"], "", "")

    bad("--save .*good.safetensors: not saved: .*File too large.* bytes are needed", *train(*save),
        preexec_fn=small_files)
    bad("--save .*good.safetensors: not saved: .*File too large", *train(*save), ranks=2,
        wrapper=("sh", "-c", "ulimit -f 100; exec env --ignore-signal=XFSZ \"$0\" \"$@\""))
    # What cannot be logged is saved all the same.
    for ranks, how in ((1, ()), (1, ("--comm", "none")), (2, ()), (2, ("--elastic", "--ranks", 1))):
        unlogged = root / "unlogged.safetensors"
        bad("/dev/full: .*No space left", *train("--log", "/dev/full", "--save", unlogged, *how),
            silent=False, ranks=ranks)
        if not unlogged.exists():
            report("--log /dev/full", how, ["nothing was saved"], "", "")
        unlogged.unlink(missing_ok=True)
    bad("step 2: the loss is not a number: a lower learning rate",
        *train("--lr", "1e30", *save), silent=False)
    bad("step 2: the loss is not a number: a lower learning rate",
        *train("--lr", "1e30", *save), silent=False, ranks=2)


def plain_output():
    """Open MPI's ranks have a terminal of their own: no reason for a progress bar in a pipe."""
    out = fine(*train(), ranks=2)
    if "\r" in out or "\033" in out or not re.search("^epoch 1  loss", out, re.M):
        report("plain_output", [], ["no plain lines"], out, "")


def one_rank():
    """Only rank 1 fails: its arguments are others."""
    wrapper = data.write(root / "other.sh", b'#!/bin/sh\nif [ $OMPI_COMM_WORLD_RANK = 1 ]; then '
                         b'set -- "$1" $OTHER; fi\nexec "$@"\n')
    wrapper.chmod(0o755)

    def on_rank_1(other):
        return {"wrapper": (wrapper,), "env": {**os.environ, "OTHER": " ".join(map(str, other))}}

    for ranks in (2, 4):
        bad("^rank 1: /nowhere: no such folder", *train(), ranks=ranks,
            **on_rank_1(["train", "--data", "mnist:/nowhere", "--batch-size", "8"]))

    def damage(folder):
        for image in (folder / "class0").iterdir():
            image.write_bytes(b"")

    resnet = ("train", "--model", "resnet20", "--batch-size", "4", "--data")
    damaged = changed("images-of-rank-1", damage, "images")
    bad("^the ranks were started unlike: image 0 is 1 x .* on rank 0, but unreadable "
        r"\(.*class0/.*: neither .* on rank 1", *resnet, f"images:{root}/images", ranks=2,
        **on_rank_1([*resnet, f"images:{damaged}"]))


def ranks_alive():
    """The process of each rank of a job that lost() started."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            variables = (folder / "environ").read_bytes().split(b"\0")
            name = (folder / "comm").read_text().strip()
        except OSError:  # it has ended
            continue
        if name == "lamina" and f"BAD_INPUT={root}".encode() in variables:
            rank = [v for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")]
            found[int(rank[0].split(b"=")[1])] = int(folder.name)
    return found


def lost(ranks, how, expected, status, limit, **variables):
    """A rank gets a signal in the middle of training; all must end, and say which it was."""
    log = root / f"lost-{ranks}-{how}.json"
    # Without evaluations, before which ranks compare the data: they meet in layers only.
    line = command("lamina", train("--epochs", "100000", "--profile-steps", "0", "--no-validation",
                                   "--log", log), ranks)
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True, cwd=root,
                               env={**os.environ, "BAD_INPUT": str(root), **variables})
    begin = time.monotonic()
    while time.monotonic() < begin + 20 and not (log.exists() and '"step": 3' in log.read_text()):
        time.sleep(0.05)
    before = ranks_alive()
    if sorted(before) != list(range(ranks)):
        report("lost", line, [f"no {ranks} ranks but {before}"], "", "")
    else:
        os.kill(before[1], how)
    begin = time.monotonic()
    reasons = []
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        reasons.append(f"not ended {limit} s later")
    seconds = time.monotonic() - begin
    left = ranks_alive()
    if left:
        reasons.append(f"left behind: {left}")
        for pid in left.values():
            os.kill(pid, signal.SIGKILL)
    if process.returncode == 0 or (status and process.returncode != status):
        reasons.append(f"status {process.returncode}")
    if not re.search(expected, err + out):
        reasons.append(f"nothing says '{expected}'")
    if reasons:
        report(f"{how} to rank 1 of {ranks}", line, reasons, out, err)
    elif verbose:
        print(f"{seconds:5.1f} s  {how!r} to rank 1 of {ranks}\n         "
              + re.search(f".*({expected}).*", err + out)[0], flush=True)


def main():
    data.mnist(root / "mnist")
    data.cifar10(root / "cifar")
    data.images(root / "images")
    good.parent.mkdir()
    fine(*train("--save", good))
    fine("train", "--model", "resnet20", "--data", f"cifar10:{root}/cifar", "--steps", "1",
         "--batch-size", "4", "--no-validation")
    fine("train", "--model", "resnet20", "--data", f"images:{root}/images", "--batch-size", "4")
    shutil.copytree(good.parent, root / "copy")
    parts = (help_and_usage, names, files, checkpoints, shapes, outputs, plain_output, one_rank)
    only = [a for a in sys.argv[1:] if not a.startswith("-")]
    for part in parts:
        if not only or part.__name__ in only:
            begin = time.monotonic()
            part()
            print(f"{part.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    if not only or "lost" in only:
        begin = time.monotonic()
        for ranks in (2, 4):
            lost(ranks, signal.SIGKILL, r"rank 1 ", None, 30)
        lost(2, signal.SIGSTOP, r"lamina: error: .*all_reduce.*(layer|in) ", 1, 30,
             LAMINA_COMM_TIMEOUT="2")
        print(f"lost: {time.monotonic() - begin:.1f} s")


try:
    main()
finally:
    shutil.rmtree(root, ignore_errors=True)
sys.exit(failures > 0)
