"""What the comparisons in this folder have in common: their flags, the programs that they run, and
how they end: by one line, and with nothing left running."""
import argparse, contextlib, os, pathlib, re, signal, subprocess, sys, threading

NAME = pathlib.Path(sys.argv[0]).name
running = set()  # processes, each with a group of its own
ending = False
starting = False  # in the main thread: a process of which nobody knows yet
asked = 0         # signal that came


def end(why, status=1):
    """Also of a thread: the first one says why, and no process goes on."""
    if not ending:
        print(f"{NAME}: {why}", file=sys.stderr, flush=True)
    stop_all()
    sys.exit(status)


class Flags(argparse.ArgumentParser):
    """Of a script's description: what it is, its usage, how it goes about it. What the script has
    no flag for is left for others; nothing is abbreviated, since these have similar ones."""

    def __init__(self, doc):
        what, usage, how = doc.split("\n\n", 2)
        super().__init__(usage=usage[7:], description=what + "\n\n" + how, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--build", default="build")

    def error(self, message):
        end(message.removeprefix("argument "), 2)


def count(text, least=1):
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} on, got '{text}'")
    return int(text)


def counts(text):
    return [count(n) for n in text.split(",")]


def part(text):
    """Of a whole."""
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number above 0, up to 1, got '{text}'")
    return value


def program(build, name):
    path = pathlib.Path(build) / "bin" / name
    if not os.access(path, os.X_OK):
        end(f"there is no {path}: build it, or name the folder with --build")
    return str(path)


def value_of(flags, name):
    """What a program's flags say of this one; nothing where it is not there."""
    found = None
    for i, flag in enumerate(flags):
        if flag.startswith(name + "="):
            found = flag.partition("=")[2]
        elif flag == name and i + 1 < len(flags):
            found = flags[i + 1]
    return found


def stop_all():
    """Of all threads, and from now on."""
    global ending
    ending = True
    for process in list(running):
        stop(process)


@contextlib.contextmanager
def started(line, **how):
    """A process that does not outlive what follows."""
    global starting
    main = threading.current_thread() is threading.main_thread()
    process = None
    try:
        starting = starting or main
        # Of the same session: Linux may share processors out by these, and change what is measured.
        process = subprocess.Popen([str(word) for word in line], text=True, process_group=0,
                                   stdin=subprocess.DEVNULL, **how)
        running.add(process)
        starting = starting and not main
        if ending:
            sys.exit(128 + asked if asked else 1)
        yield process
    finally:
        starting = starting and not main
        if process:
            stop(process)
            running.discard(process)


def stop(process):
    """With what it has started."""
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(10)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def run(line, **how):
    """status, output, errors"""
    with started(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how) as process:
        out, err = process.communicate()
    return process.returncode, out, err


def reason(out, err):
    """What one of our programs says went wrong, in one line; mpirun says more around it."""
    lines = [line for line in (err + "\n" + out).splitlines() if line.strip("- ")]
    ours = [line for line in lines if re.match(r"(rank \d+: )?(lamina|bench_\w+|elastic|cluster): ",
                                               line)]
    return (ours or lines or ["nothing said"])[0]


def rate(out):
    """Images/s, of what bench_network prints; nothing where it has none."""
    found = re.search(r"^total images/sec: ([\d.]+)", out, re.M)
    return float(found[1]) if found else None


def rate_of(line, status, out, err):
    """The same of a run; where there is none this script ends."""
    found = rate(out)
    if status or found is None:
        end(f"{pathlib.Path(line[0]).name}: status {status}: {reason(out, err)}", status or 1)
    return found


def measured(line, **how):
    return rate_of(line, *run(line, **how))


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _end_by(number, _):
    global ending, asked
    ending, asked = True, number
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    if not starting:
        sys.exit(128 + number)  # what is running is stopped on the way


for _each in SIGNALS:
    if signal.getsignal(_each) is not signal.SIG_IGN:  # as nohup has it
        signal.signal(_each, _end_by)
