#!/usr/bin/env python3
# Ranks whose processors have unlike instruction sets, as oneDNN's limit pretends: they agree on the
# least of theirs, say so in a line, and get the bits of ranks that have no better one.
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

lamina = str(pathlib.Path(os.environ["LAMINA_BUILD"]) / "bin/lamina")
if not shutil.which("mpirun"):
    print("no mpirun")
    sys.exit(77)
flags = pathlib.Path("/proc/cpuinfo").read_text().split()
if not {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= set(flags):
    print("this processor has no AVX-512: there is nothing above AVX2 to be limited")
    sys.exit(77)
for variable in [v for v in os.environ if v.startswith("LAMINA_") or "_MAX_CPU_ISA" in v]:
    del os.environ[variable]
os.environ |= {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
root = pathlib.Path(tempfile.mkdtemp(prefix="instruction_sets."))
failures = 0


def expect(that, what, out=""):
    global failures
    if not that:
        failures += 1
        print(f"{what}\n{out[-3000:]}---", flush=True)


def train(model, sets, *more, variable="DNNL_MAX_CPU_ISA"):
    """On a rank for each of these sets, empty for what the processor has: output, checkpoint."""
    saved = root / "saved"
    saved.unlink(missing_ok=True)
    command = ["mpirun"]
    for rank, name in enumerate(sets):
        limit = [f"{variable}={name}"] if name else []
        command += [*([":"] if rank else []), "-n", "1", "env", *limit, lamina, "train", "--model",
                    model, "--data", "synthetic", "--limit", "160", "--global-batch", "16",
                    "--epochs", "1", "--steps", "10", "--seed", "3", "--threads", "1",
                    "--no-validation", "--profile-steps", "0", "--save", str(saved), *more]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL,
                          cwd=root, timeout=300)
    out = done.stdout + done.stderr
    expect(done.returncode == 0, f"{model} {sets} {more}: status {done.returncode}", out)
    return out, saved.read_bytes() if saved.exists() else b""


def agreed(model, sets, least, *more, words=None, **how):
    """Ranks with these sets have the bits of ranks with `least`, and only they say a line."""
    out, saved = train(model, sets, *more, **how)
    lines = [line for line in out.splitlines() if "instruction sets differ" in line]
    expect(lines == [f"# instruction sets differ: all ranks use {words or least}, the least of "
                     "theirs"], f"{model} {sets} {more}: lines {lines}", out)
    key = (model, least, len(sets), more)
    if key not in alike:
        out, alike[key] = train(model, [least] * len(sets), *more)
        expect("instruction sets" not in out, f"{model} {least} {more}: says something", out)
    expect(saved and saved == alike[key], f"{model} {sets} {more}: other bits than {least}", out)


alike = {}
begin = time.monotonic()
for model in ("lenet", "resnet20"):
    for plan in ((), ("--workers", "2"), ("--plan", "owt"), ("--plan", "spatial")):
        agreed(model, ["AVX2", ""], "AVX2", *plan)
    print(f"{model}: {time.monotonic() - begin:.1f} s", flush=True)
agreed("lenet", ["", "AVX2"], "AVX2")
agreed("lenet", ["", "avx2"], "AVX2", variable="ONEDNN_MAX_CPU_ISA")
agreed("lenet", ["", "AVX2", "AVX512_CORE"], "AVX2")
agreed("lenet", ["", "AVX2", "SSE41"], "SSE41", words="SSE4.1")
agreed("lenet", ["AVX2_VNNI", ""], "AVX2")

# Parked ranks take part, too: they may join later.
out, elastic = train("lenet", ["", "AVX2"], "--workers", "2", "--elastic", "--ranks", "1")
expect("all ranks use AVX2" in out, "a parked rank did not take part", out)
expect(elastic == alike["lenet", "AVX2", 2, ("--workers", "2")], "--elastic: other bits", out)

# What is fastest is bf16 where all ranks multiply it, and f32 elsewhere, with the bits of that.
for sets in (["AVX2", ""], ["", "AVX2"], ["AVX2", "AVX2"]):
    out, saved = train("lenet", sets, "--dtype", "auto")
    expect(", f32\n" in out, f"{sets}: auto is not f32", out)
    expect(saved == alike["lenet", "AVX2", 2, ()], f"{sets}: auto has other bits than f32", out)
out, _ = train("lenet", ["", ""], "--dtype", "auto")
expect((", bf16\n" in out) == ("avx512_bf16" in flags), "auto is not as the processor", out)
out, _ = train("lenet", ["", ""], "--dtype", "auto", "--backend", "reference")
expect(", f32\n" in out, "the reference's auto is not f32", out)

# With equal ranks there is nothing to say, nor to limit; nor where oneDNN does not compute.
out, _ = train("lenet", ["", ""])
expect("instruction sets" not in out and "AVX-512" in out, "equal ranks", out)
out, _ = train("lenet", ["", "no such set"])
expect("instruction sets" not in out and "AVX-512" in out, "a limit that oneDNN ignores", out)
out, _ = train("lenet", ["", "AVX2"], "--dtype", "f64")
expect("instruction sets" not in out, "the reference back end", out)

if failures == 0:
    shutil.rmtree(root)
sys.exit(failures > 0)
