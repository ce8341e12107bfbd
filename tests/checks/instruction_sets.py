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
if "avx2" not in flags:
    print("this processor has no AVX2: there is nothing to be limited")
    sys.exit(77)
avx512 = {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= set(flags)
# What the processor has, and something less.
best, less, least = ("AVX-512", "AVX2", "AVX2") if avx512 else ("AVX2", "SSE41", "SSE4.1")
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


def agreed(model, sets, least, words, *more, **how):
    """Ranks with these sets have the bits of ranks with `least`, and only they say a line."""
    out, saved = train(model, sets, *more, **how)
    lines = [line for line in out.splitlines() if "instruction sets differ" in line]
    expect(lines == [f"# instruction sets differ: all ranks use {words}, the least of "
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
        agreed(model, [less, ""], less, least, *plan)
    print(f"{model}: {time.monotonic() - begin:.1f} s", flush=True)
agreed("lenet", ["", less], less, least)
agreed("lenet", ["", less.lower()], less, least, variable="ONEDNN_MAX_CPU_ISA")
agreed("lenet", ["", "AVX2", "SSE41"], "SSE41", "SSE4.1")
if avx512:
    agreed("lenet", ["", "AVX2", "AVX512_CORE"], "AVX2", "AVX2")
    agreed("lenet", ["AVX2_VNNI", ""], "AVX2", "AVX2")

# Parked ranks take part, too: they may join later.
out, elastic = train("lenet", ["", less], "--workers", "2", "--elastic", "--ranks", "1")
expect(f"all ranks use {least}" in out, "a parked rank did not take part", out)
expect(elastic == alike["lenet", less, 2, ("--workers", "2")], "--elastic: other bits", out)

# What is fastest is bf16 where all ranks multiply it, and f32 elsewhere, with the bits of that.
for sets in ([less, ""], ["", less], [less, less]):
    out, saved = train("resnet20", sets, "--dtype", "auto")
    expect(", f32\n" in out, f"{sets}: auto is not f32", out)
    expect(saved == alike["resnet20", less, 2, ()], f"{sets}: auto has other bits than f32", out)
out, _ = train("resnet20", ["", ""], "--dtype", "auto")
expect((", bf16\n" in out) == ("avx512_bf16" in flags), "auto is not as the processor", out)
for model, *more in (("resnet20", "--backend", "reference"), ("lenet",)):  # which has few channels
    out, _ = train(model, ["", ""], "--dtype", "auto", *more)
    expect(", f32\n" in out, f"auto of {model} {more} is not f32", out)

# bf16 that is not multiplied saves memory only.
for sets in (["", ""], [less, less]):
    out, _ = train("lenet", sets, "--dtype", "bf16")
    expect(("# bf16 is computed in f32 here: that saves memory, not time\n" in out) ==
           (sets[0] == less or "avx512_bf16" not in flags), f"{sets}: what bf16 is for", out)

# With equal ranks there is nothing to say, nor to limit; nor where oneDNN does not compute.
out, _ = train("lenet", ["", ""])
expect("instruction sets" not in out and best in out, "equal ranks", out)
out, _ = train("lenet", ["", "no such set"])
expect("instruction sets" not in out and best in out, "a limit that oneDNN ignores", out)
out, _ = train("lenet", ["", less], "--dtype", "f64")
expect("instruction sets" not in out, "the reference back end", out)

if failures == 0:
    shutil.rmtree(root)
sys.exit(failures > 0)
