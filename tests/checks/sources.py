#!/usr/bin/env python3
"""What is under src/ calls an SDK or the operating system, reads or writes files, or prints: each
file there has a reason. All else is a header, which has no names of its own translation unit and
includes no SDK. First the check is tried on planted files."""
import os
import re
import sys
import tempfile

# What only a source file includes, and what is a reason to be one.
SDK = (r"mpi\.h|nccl|cuda|cudnn|cublas|nvtx|dnnl|oneapi|omp\.h|nlohmann|CLI/|png\.h|zlib\.h|"
       r"turbojpeg")
SYSTEM = (r"unistd\.h|fcntl\.h|dirent\.h|dlfcn\.h|sched\.h|signal\.h|csignal|sys/|linux/|"
          r"filesystem|fstream|iostream|cpuid\.h|x86intrin|immintrin|lamina/base/file\.hpp")

# The headers that ask the system something in a line.
ASKING = ("include/lamina/base/folder_lock.hpp", "include/lamina/base/host.hpp",
          "include/lamina/tensor/large_pages.hpp", "include/lamina/tensor/memory_space.hpp",
          "include/lamina/tensor/reserve.hpp")
# Or it says so in these words.
WORDS = r"\b(read_file|write_file)\(|#pragma omp|\bLAMINA_SIMD\b"

# Those that show neither. A folder stands for all that is in it.
REASONS = {
    "machine/time_collective.cpp": "measures the machine, as what stands beside it does",
    "machine/measure_cluster.cpp": "the same",
    "report/": "what is written to files: drawings and the page",
    "tool/": "what the command prints",
}


def includes(path):
    with open(path, encoding="utf-8") as file:
        return re.findall(r'^[ \t]*#[ \t]*include[ \t]*([<"][^>"]+)', file.read(), re.M)


def reaches(root, path, seen):
    """Whether it includes an SDK or the system, itself or by way of private headers."""
    seen.add(path)
    with open(path, encoding="utf-8") as file:
        if re.search(WORDS, file.read()):
            return True
    for name in includes(path):
        if name[0] == "<":
            if re.match(f"<({SDK}|{SYSTEM})", name):
                return True
            continue
        for folder in (os.path.dirname(path), os.path.join(root, "src"), root):
            other = os.path.normpath(os.path.join(folder, name[1:]))
            if os.path.exists(other) and other not in seen and reaches(root, other, seen):
                return True
    return False


def thin(path):
    """Nothing but implementation headers."""
    with open(path, encoding="utf-8") as file:
        lines = [line.strip() for line in file if line.strip() and not line.startswith("//")]
    return all(re.fullmatch(r"#include <lamina/.*impl.*\.hpp>", line) for line in lines)


def scan(root, reasons):
    found, used = [], set()
    for folder, _, names in os.walk(os.path.join(root, "src")):
        for name in sorted(names):
            path = os.path.join(folder, name)
            short = os.path.relpath(path, os.path.join(root, "src"))
            if not name.endswith((".cpp", ".cu")):  # private headers go with what includes them
                continue
            if short.startswith("floors/"):
                if not thin(path):
                    found.append(f"src/{short}: more than implementation headers")
                continue
            if reaches(root, path, set()) or name.endswith("absent.cpp"):
                continue
            reason = [r for r in reasons if short == r or (r[-1] == "/" and short.startswith(r))]
            used.update(reason)
            if not reason:
                found.append(f"src/{short}: no reason to be compiled: its place is under include/")
    found += [f"the reason for src/{r} is not needed" for r in reasons if r not in used]
    for folder, _, names in os.walk(os.path.join(root, "include")):
        for name in sorted(names):
            path = os.path.join(folder, name)
            with open(path, encoding="utf-8") as file:
                content = file.read()
            if re.search(r"^[ \t]*(inline )?namespace \{", content, re.M):
                found.append(f"{os.path.relpath(path, root)}: names of one translation unit")
            short = os.path.relpath(path, root)
            for header in includes(path):
                own = header.startswith("<lamina/")
                if re.match(f"<({SDK})", header):
                    found.append(f"{short}: includes an SDK")
                elif re.match(f"<({SYSTEM})", header) and not own and short not in ASKING:
                    found.append(f"{short}: calls the system or files")
    return found


def plant(file, content, findings):
    with tempfile.TemporaryDirectory() as root:
        for name, text in {**file, **content}.items():
            path = os.path.join(root, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as out:
                out.write(text)
        found = scan(root, {})
        if len(found) != findings:
            sys.exit(f"self-test: {content}: expected {findings} findings, got {found}")


PRIVATE = {"src/deep/sdk.hpp": "#include <mpi.h>\n"}
plant(PRIVATE, {"src/a/a.cpp": "int f() { return 1; }\n"}, 1)
plant(PRIVATE, {"src/a/a.cpp": "#include <fstream>\n"}, 0)
plant(PRIVATE, {"src/a/a.cpp": '#include "deep/sdk.hpp"\n'}, 0)
KERNELS = {"kernels/k.hpp": "#include <cuda_runtime.h>\n"}
plant(KERNELS, {"src/a/a.cpp": '#include "kernels/k.hpp"\n'}, 0)
plant(PRIVATE, {"src/a/a.cpp": '#include "b.hpp"\n', "src/a/b.hpp": "#include <vector>\n"}, 1)
plant(PRIVATE, {"src/a/a.cpp": 'auto s = read_file("a");\n'}, 0)
plant(PRIVATE, {"src/a/b_absent.cpp": "int f() { return 1; }\n"}, 0)
plant(PRIVATE, {"src/floors/a.cpp": "// All.\n#include <lamina/cost/impl.hpp>\n"}, 0)
plant(PRIVATE, {"src/floors/a.cpp": "#include <lamina/cost/impl.hpp>\nint f() { return 1; }\n"}, 1)
plant(PRIVATE, {"include/lamina/a.hpp": "namespace {\nint f();\n}\n"}, 1)
plant(PRIVATE, {"include/lamina/a.hpp": "#include <nlohmann/json.hpp>\n"}, 1)
plant(PRIVATE, {"include/lamina/a.hpp": "#include <unistd.h>\n"}, 1)
plant(PRIVATE, {"include/lamina/base/host.hpp": "#include <unistd.h>\n"}, 0)

findings = scan(os.environ["LAMINA_SOURCE"], REASONS)
print("\n".join(findings) or "every file under src/ has a reason to be there")
sys.exit(bool(findings))
