# Expectations of a check: those that are not met are told and counted, and the check goes on.
import sys

failures = 0


def fail(what, out=""):
    global failures
    failures += 1
    print(f"{what}\n{out[-3000:]}---", flush=True)


def expect(that, what, out=""):
    if not that:
        fail(what, out)
    return that


def end():
    print("all well" if failures == 0 else f"{failures} failures")
    sys.exit(failures > 0)
