#!/usr/bin/env python3
"""On a machine with a GPU, which need have no network: finds out in one go how Lamina does there.

usage: ./dev gpu-check [--pack FILE] [--build] [--out FILE] [--seconds N] [--parts NAME,...]
                       [--cells MODEL:BATCH:DTYPE,...] [--rounds N] [--python FILE]
                       [--limits NAME=SECONDS,...]

First it asks for GPU, driver and versions (machine), and for programs (build). Then come, in order
of worth, tests (tier gpu), sanitizer (compute-sanitizer over the tests of kernels) and race
(bench_network beside PyTorch, if --python has it, and a profile of each cell), or those of --parts.
Programs are those of --pack, which `./dev gpu-pack` makes; where they do not run, or with --build,
they are made here, from what the pack has. Each part has a time; one that takes longer is cut off.
Whatever goes wrong in one, the next one goes on. All is written to --out, as JSON, anew after each
part, and printed as a table. Status 1 where a part failed, and where there is no GPU.
"""
import argparse
import collections
import concurrent.futures
import datetime
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import time

SCHEMA = 1
ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77  # status of tests that need a GPU and find none
LIMITS = {"machine": 30, "build": 240, "tests": 130, "sanitizer": 90, "race": 480}  # seconds
CHOICE = ("tests", "sanitizer", "race")  # what the others are for
CELLS = ("resnet50:256:bf16,vgg16:64:bf16,alexnet:256:bf16,resnet50:64:tf32,resnet50:64:f32,"
         "vgg16:64:tf32,alexnet:256:tf32,resnet50:64:bf16,vgg16:64:f32,alexnet:256:f32")
TAIL = 12  # lines of what failed


class NoGpu(Exception):
    """Nothing can be found out without one."""


class Failed(Exception):
    """A part, for the reason that it has."""


def tail(text, lines=TAIL):
    return [line[:300] for line in text.strip().splitlines()[-lines:]]


def run(line, seconds, env=None):
    """Its status, or None where it was cut off, and all that it said. Never throws."""
    try:
        process = subprocess.Popen([str(word) for word in line], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=ROOT,
                                   env=env, start_new_session=True, text=True, errors="replace")
    except OSError as e:
        return 127, e.strerror
    try:
        said, _ = process.communicate(timeout=max(seconds, 0.1))
        return process.returncode, said
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # with what it started
        try:
            said, _ = process.communicate(timeout=5)
        except subprocess.TimeoutExpired as e:  # something has its output still
            said = (e.stdout or b"").decode(errors="replace")
        return None, said


def by_file(results):
    """Of what cases came to: a file is as its worst case, `cases` says how many were what."""
    files = {}
    for tag, result in results:
        files.setdefault(tag, []).append(result)
    worst = ("failed", "cut off", "passed", "skipped").index
    for tag, of in files.items():
        of.sort(key=lambda result: worst(result["status"]))
        counts = collections.Counter(result["status"] for result in of)
        yield tag, of[0] | {"seconds": round(sum(result["seconds"] for result in of), 1),
                            "cases": dict(counts)} if "case" in of[0] else of[0]


def sources_hash():
    """Of all that programs are made of: tells whether those of a pack are of this tree."""
    digest = hashlib.sha256()
    for top in ("CMakeLists.txt", "cmake", "include", "src", "kernels", "tests", "benchmarks"):
        top = ROOT / top
        for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if file.is_file() and file.suffix in (".txt", ".cmake", ".hpp", ".cpp", ".cu", ".in"):
                digest.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


class Check:
    def __init__(self, o):
        self.o = o
        self.began = time.monotonic()
        self.left_of_part = 0
        self.bin = None
        self.no_gpu = None  # why
        now = datetime.datetime.now(datetime.timezone.utc)
        self.results = {"schema": SCHEMA, "what": "gpu-check", "began": f"{now:%Y-%m-%dT%H:%M:%SZ}",
                        "sources": sources_hash(), "parts": {}}
        self.env = dict(os.environ)

    def left(self):
        """Seconds of the part that runs."""
        return self.left_of_part - time.monotonic()

    def run(self, line, most=1e9, env=None):
        return run(line, min(most, self.left()), env or self.env)

    def save(self):
        self.results["seconds"] = round(time.monotonic() - self.began, 1)
        out = pathlib.Path(self.o.out)
        out.parent.mkdir(parents=True, exist_ok=True)
        aside = out.with_name(out.name + ".new")
        aside.write_text(json.dumps(self.results, indent=1) + "\n")
        aside.replace(out)

    def part(self, name, work):
        """Records what work() does to its part of the results: passed, failed, cut off, skipped."""
        begin = time.monotonic()
        found = self.results["parts"][name] = {"status": "passed"}
        self.left_of_part = min(begin + self.o.limits[name], self.began + self.o.seconds)
        try:
            if name in CHOICE and name not in self.o.parts:
                found.update(status="skipped", why="not asked for")
            elif self.left() < 3:
                found.update(status="cut off", why="no time was left")
            else:
                print(f"== {name}, at most {self.left():.0f} s", flush=True)
                work(found)
                if found["status"] == "passed" and self.left() < 0:
                    found.update(status="cut off", why="it took too long")
        except NoGpu as e:
            found.update(status="skipped", why=str(e))
        except Failed as e:
            found.update(status="cut off" if self.left() < 0 else "failed", why=str(e))
        except Exception as e:  # of this script: the others go on
            found.update(status="failed", why=f"{type(e).__name__}: {e}")
        found["seconds"] = round(time.monotonic() - begin, 1)
        self.save()
        print(f"   {name}: {found['status']}, {found['seconds']} s"
              f"{'; ' + found['why'] if 'why' in found else ''}", flush=True)

    def needs_gpu(self):
        if self.no_gpu:
            raise NoGpu(self.no_gpu)

    def needs_programs(self):
        if not self.bin:
            raise Failed("there are no programs")

    # ---- machine ---------------------------------------------------------------------------------

    def machine(self, found):
        fields = ("name", "uuid", "driver_version", "memory.total", "compute_cap", "clocks.max.sm",
                  "clocks.max.memory", "power.limit", "ecc.mode.current", "temperature.gpu")
        status, said = self.run(["nvidia-smi", f"--query-gpu={','.join(fields)}",
                                 "--format=csv,noheader,nounits"], 15)
        if status != 0 or not said.strip():
            why = (tail(said, 1) or ["said nothing"])[0]
            self.no_gpu = f"no GPU can be used: nvidia-smi: {why}"
        else:
            found["gpus"] = [dict(zip(fields, (word.strip() for word in line.split(","))))
                             for line in said.strip().splitlines()]
        versions = {"nvcc": ["nvcc", "--version"],
                    "compute-sanitizer": ["compute-sanitizer", "--version"],
                    "cmake": ["cmake", "--version"], "c++": ["c++", "--version"],
                    "kernel": ["uname", "-sr"],
                    "pytorch": [self.o.python, "-c", "import torch; print(torch.__version__, "
                                "'CUDA', torch.version.cuda, 'cuDNN', "
                                "torch.backends.cudnn.version())"]}
        found["versions"] = {}
        for name, line in versions.items():
            status, said = self.run(line, 20)
            lines = [each for each in said.splitlines() if re.search(r"\d\.\d", each)]
            found["versions"][name] = lines[-1 if name in ("nvcc", "compute-sanitizer") else 0] \
                .strip() if status == 0 and lines else None
        found["processors"] = os.cpu_count()
        self.find_wheels(found)
        self.needs_gpu()

    def find_wheels(self, found):
        """NVIDIA's libraries, where its wheels for Python put them, are found from now on."""
        status, said = self.run([self.o.python, "-c", "import nvidia; print(*nvidia.__path__)"], 20)
        folders = said.split() if status == 0 else []
        self.wheels = folders[0] if folders else None
        libraries = sorted(str(lib) for folder in folders
                           for lib in pathlib.Path(folder).glob("*/lib"))
        found["wheels"] = self.wheels
        self.env["LD_LIBRARY_PATH"] = ":".join(
            libraries + [each for each in [self.env.get("LD_LIBRARY_PATH")] if each])

    # ---- build -----------------------------------------------------------------------------------

    def build(self, found):
        pack = pathlib.Path(self.o.out).resolve().parent / "pack"
        shutil.rmtree(pack, ignore_errors=True)
        if pathlib.Path(self.o.pack).exists():
            with tarfile.open(self.o.pack) as archive:
                archive.extractall(pack)
            found["pack"] = json.loads((pack / "manifest.json").read_text())
        if "pack" in found and not self.o.build:
            found["stale"] = found["pack"]["sources"] != self.results["sources"]
            why = self.why_not(pack / "bin")
            if not why:
                self.bin = pack / "bin"
                found["programs"] = str(self.bin)
                if found["stale"]:
                    found["why"] = "programs of the pack, made of other sources than lie here"
                return
            found["pack_failed"] = why
        self.build_here(found, pack)

    def why_not(self, folder):
        """The last lines of the program that does not start; empty where all do."""
        for program in (["lamina", "--version"], ["bench_network", "--version"],
                        ["gpu_tests", "--list-tags"]):
            status, said = self.run([folder / program[0], *program[1:]], 20)
            # Catch2 2 ends with how many there are.
            if status is None or status in (126, 127) or status < 0 or not said.strip():
                return [f"{program[0]}: status {status}", *tail(said, 4)]
        return []

    def build_here(self, found, pack):
        folder = ROOT / "build-gpu"
        line = ["cmake", "--preset", "gpu"]
        if (pack / "usr").is_dir():
            line.append(f"-DCMAKE_PREFIX_PATH={pack.resolve() / 'usr'}")
        if getattr(self, "wheels", None):
            site = pathlib.Path(self.wheels).parent
            line += [f"-DCUDNN_ROOT={site}", f"-DNCCL_ROOT={site}"]
        capability = re.sub(r"\D", "", self.results["parts"].get("machine", {})
                            .get("gpus", [{}])[0].get("compute_cap", ""))
        if capability:
            line.append(f"-DCMAKE_CUDA_ARCHITECTURES={capability}-real")
        # What races is there before the tests are, should time run out.
        make = ["cmake", "--build", "--preset", "gpu", "-j", os.cpu_count() or 1, "--target"]
        for step in (line, [*make, "lamina_tool", "bench_network"], [*make, "gpu_tests"]):
            status, said = self.run(step)
            if status != 0:
                found["tail"] = tail(said, 30)
                raise Failed(f"{' '.join(str(word) for word in step)}: " +
                             ("took too long" if status is None else f"status {status}"))
            if step is not line:
                self.bin = folder / "bin"
                found["programs"] = str(self.bin)
        why = self.why_not(folder / "bin")
        if why:
            found["tail"] = why
            raise Failed(why[0])

    # ---- tests -----------------------------------------------------------------------------------

    def test(self, tag, before=(), most=100, case=None):
        """One file's test cases, or one of them, in a process of their own: an error of a GPU's
        stays."""
        begin = time.monotonic()
        # Ranks that are threads have kernels of the host, too, which must not wait for each other.
        env = {**self.env, "OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "passive"}
        which = re.sub(r'([\\,\["])', r"\\\1", case) if case else f"[#{tag}]~[host]"
        status, said = self.run([*before, self.bin / "gpu_tests", "--filenames-as-tags", which],
                                most, env)
        ended = "cut off" if status is None else "skipped" if status == SKIPPED else \
            "passed" if status == 0 and "No test cases matched" not in said else "failed"
        result = {"status": ended, "seconds": round(time.monotonic() - begin, 1),
                  "summary": (tail(said, 1) or [""])[0]}
        if ended in ("failed", "cut off"):
            result["tail"] = tail(said, 40)
            print(f"   {case or tag}: {ended}: {result['summary']}", flush=True)
        return tag, result | ({"case": case} if case else {})

    def collect(self, found, results):
        found["files"] = dict(sorted(results))
        by = {}
        for result in found["files"].values():
            by[result["status"]] = by.get(result["status"], 0) + 1
        found["why"] = ", ".join(f"{n} {status}" for status, n in sorted(by.items()))
        if not by or set(by) - {"passed", "skipped"}:
            raise Failed(found.get("why") or "there are none")
        if "passed" not in by:
            found["status"] = "skipped"

    def cases(self, tag):
        """Of a file whose cases take long each by itself; of others, all as one."""
        if not any((ROOT / "tests" / folder / f"{tag}.cpp").exists() for folder in ("unit", "gpu")):
            return [None]
        _, said = self.run([self.bin / "gpu_tests", "--filenames-as-tags",
                            "--list-test-names-only", f"[#{tag}]~[host]"], 20)
        return said.strip().splitlines() or [None]

    def tests(self, found):
        self.needs_programs()
        _, said = self.run([self.bin / "gpu_tests", "--filenames-as-tags", "--list-tags"], 20)
        tags = re.findall(r"\[#([a-z_]+)\]", said)
        tags.sort(key=lambda tag: tag != "models")  # whose cases take longest
        every = [(tag, case) for tag in tags for case in self.cases(tag)]
        with concurrent.futures.ThreadPoolExecutor(max(2, (os.cpu_count() or 2) // 2)) as pool:
            results = list(pool.map(lambda of: self.test(
                of[0], most=1e9 if of[0] == "models" else 100, case=of[1]), every))
        self.collect(found, by_file(results))

    def sanitizer(self, found):
        self.needs_programs()
        self.needs_gpu()
        if not shutil.which("compute-sanitizer"):
            found.update(status="skipped", why="there is no compute-sanitizer")
            return
        results = []
        for tool in ("memcheck", "racecheck"):
            before = ["compute-sanitizer", "--tool", tool, "--error-exitcode", 86,
                      "--print-limit", 10]
            for file in sorted((ROOT / "tests/emulated").glob("*.cpp")):
                if self.left() < 2:
                    results.append((f"{tool} {file.stem}", {"status": "cut off", "seconds": 0,
                                                            "summary": "no time was left"}))
                    continue
                tag, result = self.test(file.stem, before, 60)
                results.append((f"{tool} {tag}", result))
        self.collect(found, results)

    # ---- race ------------------------------------------------------------------------------------

    def race(self, found):
        self.needs_programs()
        self.needs_gpu()
        found["cells"], failed = [], 0
        folder = pathlib.Path(self.o.out).resolve().parent
        for cell in self.o.cells.split(","):
            model, batch, dtype = cell.split(":")
            if self.left() < 20:
                found["cells"].append({"cell": cell, "status": "cut off"})
                failed += 1
                continue
            rows = folder / "rows.json"
            rows.unlink(missing_ok=True)
            status, said = self.run(
                [sys.executable, ROOT / "benchmarks/compare_pytorch", "--device", "cuda",
                 "--build", self.bin.parent, "--python", self.o.python, "--models",
                 f"{model}:{batch}", "--dtypes", dtype, "--rounds", self.o.rounds, "--steps", 20,
                 "--threads", 0, "--fuse", "--json", rows])
            row = (json.loads(rows.read_text()) if rows.exists() else [None])[0] or {}
            ok = row.get("lamina") is not None
            result = {"cell": cell, "status": "passed" if ok else
                      "cut off" if status is None else "failed", **row}
            if not ok or row.get("pytorch") is None:
                result["tail"] = tail(said)
            if self.left() > 10:
                result["profile"] = self.profile(folder / "profile.json", model, batch, dtype)
            rows.unlink(missing_ok=True)
            failed += not ok
            found["cells"].append(result)
            self.save()
            print("   " + self.cell(result), flush=True)
        if failed:
            raise Failed(f"{failed} of {len(found['cells'])} cells have no rate")

    def profile(self, path, model, batch, dtype):
        """What each layer costs, as bench_network writes it, or why there is none."""
        path.unlink(missing_ok=True)
        _, said = self.run([self.bin / "bench_network", "--device", "cuda", "--model", model,
                            "--batch-size", batch, "--dtype", dtype, "--fuse", "--warmup", 3,
                            "--iters", 5, "--profile-steps", 3, "--json", path], 60)
        found = json.loads(path.read_text()) if path.exists() else {"tail": tail(said)}
        path.unlink(missing_ok=True)
        return found

    # ---- what is printed -------------------------------------------------------------------------

    @staticmethod
    def cell(c):
        def number(name):
            return f"{c[name]:9.2f}" if c.get(name) is not None else f"{'-':>9}"
        return (f"{c['cell']:22} {c['status']:8} {number('lamina')} {number('pytorch')} "
                f"{c.get('mode') or '':11} {number('ratio')}")

    def table(self):
        parts = self.results["parts"]
        print(f"\n{'part':10} {'status':8} {'seconds':>8}")
        for name, found in parts.items():
            print(f"{name:10} {found['status']:8} {found['seconds']:8.1f}  {found.get('why', '')}")
        for gpu in parts["machine"].get("gpus", []):
            print(f"{gpu['name']}, driver {gpu['driver_version']}, {gpu['memory.total']} MiB")
        for name in ("tests", "sanitizer"):
            for tag, result in parts[name].get("files", {}).items():
                if result["status"] in ("failed", "cut off"):
                    print(f"{name}: {tag}: {result['status']}")
        cells = parts["race"].get("cells", [])
        if cells:
            print(f"\n{'cell':22} {'status':8} {'Lamina':>9} {'PyTorch':>9} {'as':11} {'ratio':>9}"
                  "   images/s")
            for c in cells:
                print(self.cell(c))
        print(f"\n{self.o.out}: {self.results['seconds']:.0f} s in all")

    def all(self):
        for name in LIMITS:
            self.part(name, getattr(self, name))
        self.table()
        ended = [found["status"] for found in self.results["parts"].values()]
        return int(ended[0] != "passed" or "failed" in ended or "cut off" in ended)


def main():
    what, usage, how = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(usage=usage[7:], description=what + "\n\n" + how,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pack", default=str(ROOT / "gpu-pack.tar.gz"))
    parser.add_argument("--build", action="store_true")
    parser.add_argument("--out", default=str(ROOT / "build-gpu/gpu-check.json"))
    parser.add_argument("--seconds", type=float, default=530)
    parser.add_argument("--parts", default=",".join(CHOICE), type=lambda s: s.split(","))
    parser.add_argument("--limits", default={}, type=lambda s: {
        name: float(seconds) for name, seconds in (each.split("=") for each in s.split(","))})
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--python", default="python3")
    o = parser.parse_args()
    for flag, names in (("--parts", set(o.parts) - set(CHOICE)),
                        ("--limits", set(o.limits) - set(LIMITS))):
        if names:
            parser.error(f"{flag}: no such part: {', '.join(sorted(names))}")
    o.limits = LIMITS | o.limits
    return Check(o).all()


if __name__ == "__main__":
    sys.exit(main())
