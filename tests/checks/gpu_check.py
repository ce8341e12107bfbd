#!/usr/bin/env python3
# ./dev gpu-check where there is no GPU: programs in the place of NVIDIA's, of PyTorch's and of ours
# do well, fail or hang, and what it records of them is what they did; the next part goes on.
import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile

source = pathlib.Path(os.environ["LAMINA_SOURCE"])
root = pathlib.Path(tempfile.mkdtemp(prefix="gpu_check."))
pack, path = root / "pack", root / "path"

WELL = {
    "nvidia-smi": 'echo "Fake GPU, GPU-1, 580.1, 81559, 9.0, 1980, 2619, 700.00, Enabled, 30"',
    "compute-sanitizer": 'while (($#)) && [[ $1 != */gpu_tests ]]; do shift; done; "$@"',
    "python": r'case $2 in *pytorch_rate.py) [[ $* == *graphs* ]] && '
              r'echo "{\"rate\": 100, \"version\": \"2.0\"}" ;; '
              '"import nvidia"*) exit 1 ;; *) echo 2.0 ;; esac',
    "lamina": "echo 1.0",
    "bench_network": r'while (($#)); do [[ $1 != --json ]] || echo "{\"layers\": []}" >$2; shift; '
                     'done; echo "total images/sec: 125.00"',
    "gpu_tests": r'if [[ $* == *--list-tags* ]]; then printf "  1  [#%s]\n" bias models one two; '
                 r'elif [[ $* == *--list-test-names-only* ]]; then '
                 r'printf "%s\n" "in f32, too" "in f64"; '
                 'else echo "All tests passed"; fi',
}


def make(**instead):
    """Programs that do well, but for these."""
    for folder in (pack / "bin", path):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    for name, script in (WELL | {k.replace("_smi", "-smi").replace("_san", "-san"): v
                                 for k, v in instead.items()}).items():
        ours = name in ("lamina", "bench_network", "gpu_tests")
        file = (pack / "bin" if ours else path) / name
        file.write_text(f"#!/bin/bash\n{script}\n")
        file.chmod(0o755)
    (pack / "manifest.json").write_text('{"sources": "other"}')
    with tarfile.open(root / "pack.tar.gz", "w:gz") as archive:
        archive.add(pack, ".")


def check(status, *flags, seconds=1000, tests=200):
    """What gpu-check writes, which ends with this status. The machine may be busy: only where time
    is to run out is there little of it."""
    out = root / "found.json"
    out.unlink(missing_ok=True)
    env = os.environ | {"PATH": f"{path}:{os.environ['PATH']}"}
    ended = subprocess.run(
        [source / "dev", "gpu-check", "--pack", root / "pack.tar.gz", "--out", out,
         "--python", path / "python", "--cells", "resnet50:64:bf16,alexnet:8:f32",
         "--rounds", "1", "--seconds", str(seconds),
         "--limits", f"machine=200,build=200,tests={tests},sanitizer=200", *flags],
        env=env, capture_output=True, text=True)
    said = ended.stdout + ended.stderr
    assert ended.returncode == status, f"{flags}: status {ended.returncode}\n{said}"
    found = json.loads(out.read_text())
    assert found["schema"] == 1
    return found["parts"], said


def ended(parts):
    return {name: found["status"] for name, found in parts.items()}


def all_is_well():
    make()
    parts, said = check(0)
    assert set(ended(parts).values()) == {"passed"}, ended(parts)
    assert parts["machine"]["gpus"][0]["driver_version"] == "580.1"
    assert parts["build"]["stale"] and parts["build"]["programs"].endswith("/pack/bin")
    assert set(parts["tests"]["files"]) == {"bias", "models", "one", "two"}
    assert parts["tests"]["files"]["models"]["cases"] == {"passed": 2}, parts["tests"]
    kernels = {file.stem for file in (source / "tests/emulated").glob("*.cpp")}
    assert set(parts["sanitizer"]["files"]) == {
        f"{tool} {name}" for tool in ("memcheck", "racecheck") for name in kernels}
    cell = parts["race"]["cells"][0]
    assert (cell["lamina"], cell["pytorch"], cell["ratio"]) == (125, 100, 1.25), cell
    assert cell["mode"] == "graphs" and cell["profile"] == {"layers": []}, cell
    assert "resnet50:64:bf16" in said and "1.25" in said and "Fake GPU, driver 580.1" in said


def what_fails_is_told():
    make(gpu_tests=WELL["gpu_tests"].replace("else", 'elif [[ $* == *#one* ]]; then '
                                             'echo "f.cpp:7: wrong"; exit 1; '
                                             "elif [[ $* == *#two* ]]; then sleep 1000; else"),
         compute_sanitizer="echo ERROR SUMMARY: 3 errors; exit 86",
         bench_network=f'[[ $* != *alexnet* ]] || {{ echo out of memory >&2; exit 1; }}; '
                       f'{WELL["bench_network"]}')
    parts, said = check(1, tests=15)
    assert ended(parts) == {"machine": "passed", "build": "passed", "tests": "cut off",
                            "sanitizer": "failed", "race": "failed"}, ended(parts)
    files = parts["tests"]["files"]
    assert files["one"]["status"] == "failed" and files["one"]["tail"] == ["f.cpp:7: wrong"]
    assert files["two"]["status"] == "cut off" and files["bias"]["status"] == "passed"
    of_bias = parts["sanitizer"]["files"]["racecheck bias"]
    assert of_bias["status"] == "failed" and "3 errors" in of_bias["summary"]
    good, bad = parts["race"]["cells"]
    assert good["lamina"] == 125 and bad["lamina"] is None and bad["pytorch"] == 100, bad
    assert any("out of memory" in line for line in bad["tail"]), bad
    assert "tests: one: failed" in said


def a_file_is_as_its_worst_case():
    make(gpu_tests=WELL["gpu_tests"].replace(
        "else", r"""elif [[ $2 == 'in f32\, too' ]]; then echo "f.cpp:9: off"; exit 1; else"""))
    parts, said = check(1, "--parts", "tests")
    models = parts["tests"]["files"]["models"]
    assert (models["status"], models["case"]) == ("failed", "in f32, too"), models
    assert models["cases"] == {"failed": 1, "passed": 1} and models["tail"] == ["f.cpp:9: off"]
    assert parts["tests"]["files"]["bias"]["status"] == "passed"
    assert "in f32, too: failed" in said


def nothing_without_a_gpu():
    make(nvidia_smi="echo no devices; exit 9", gpu_tests=WELL["gpu_tests"].replace(
        'echo "All tests passed"', 'echo "skipped: no GPU"; exit 77'))
    parts, _ = check(1)
    assert ended(parts) == {"machine": "skipped", "build": "passed", "tests": "skipped",
                            "sanitizer": "skipped", "race": "skipped"}, ended(parts)
    assert "no devices" in parts["race"]["why"]
    assert parts["tests"]["files"]["one"]["summary"] == "skipped: no GPU"


def programs_that_do_not_start_are_built():
    make(lamina="echo libX.so: not found; exit 127", cmake='echo "cmake: $*"; exit 3')
    parts, _ = check(1)
    assert ended(parts) == {"machine": "passed", "build": "failed", "tests": "failed",
                            "sanitizer": "failed", "race": "failed"}, ended(parts)
    assert parts["build"]["pack_failed"][1] == "libX.so: not found"
    assert parts["build"]["tail"] == ["cmake: --preset gpu -DCMAKE_CUDA_ARCHITECTURES=90-real"]


def time_runs_out():
    make()
    parts, _ = check(1, "--parts", "tests,race", seconds=0.1)
    assert set(ended(parts).values()) <= {"cut off", "skipped"}, ended(parts)
    assert parts["sanitizer"]["why"] == "not asked for"


try:
    all_is_well()
    what_fails_is_told()
    a_file_is_as_its_worst_case()
    nothing_without_a_gpu()
    programs_that_do_not_start_are_built()
    time_runs_out()
finally:
    shutil.rmtree(root)
print("gpu-check records what programs do")
