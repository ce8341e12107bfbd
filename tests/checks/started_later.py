#!/usr/bin/env python3
# Ranks that a job has mpirun start while it trains: bits are those of a run with all ranks from the
# start; what hinders them is one line, after which the training goes on; no process is left behind.
import os
import re
import shutil
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["LAMINA_SOURCE"] + "/tests/support")
from elastic_jobs import (commands, elastic, end, end_when_resized, expect, finish, lamina, log_of,
                          processes_of, resize, root, run, run_launched, start_launched, training,
                          wait_for)
from tiny_data import mnist


def trained(ranks, log, resizes, *flags):
    """Its losses and resizes, once there were so many of these."""
    job = root / "later"
    process = start_launched(ranks, *training, "--elastic", "--max-ranks", 4, "--steps", 1000000,
                             "--job", job, "--log", log, *flags)
    out = end_when_resized(process, log, resizes)
    expect(wait_for(lambda: not commands(job), 5), f"{log}: processes are left", out)
    return log_of(log)


def started_later():
    """Ranks that the job starts itself: to the bit what a rank alone computes; nothing is left."""
    (root / "growing").write_text("20 2\n30 4\n40 1\n60 4\n70 2\n80 4\n")
    for ranks in (1, 2):
        losses, resizes = trained(ranks, "l.log", 6, "--workers", 4, "--ranks", 1, "--events",
                                  "growing", "--save", "l.save")
        expect([r["ranks"] for r in resizes] == [2, 4, 1, 4, 2, 4], f"resized: {resizes}")
        alone = (*training, "--workers", 4, "--steps", len(losses) + 20)  # both end there
        run(1, *alone, "--resume", "l.save", "--log", "l.log", "--save", "l.save")
        run(1, *alone, "--log", "a.log", "--save", "a.save")
        expect(log_of("l.log")[0] == log_of("a.log")[0], f"{ranks} started: losses differ")
        expect((root / "l.save").read_bytes() == (root / "a.save").read_bytes(),
               f"{ranks} started: checkpoints differ")
        for file in ("l.log", "l.save"):
            (root / file).unlink()


def split_layers_on_ranks_started_later():
    (root / "splits").write_text("20 3\n30 1\n40 2\n50 4\n")
    losses, resizes = trained(1, "s.log", 4, "--plan", "owt", "--events", "splits")
    expect([r["ranks"] for r in resizes] == [3, 1, 2, 4], f"resized: {resizes}")
    run(1, *training, "--steps", len(losses), "--log", "w.log")
    whole = log_of("w.log")[0]
    expect(len(losses) == len(whole) and
           all(abs(a - b) <= 1e-3 * b for a, b in zip(losses, whole)), "losses differ")


def lost_later():
    """A rank that came later is lost, parked or not; then it is as if mpirun had started it."""
    for ranks, victim in ((2, 1), (1, 2)):
        job = root / f"lost{ranks}"
        process = start_launched(1, *training, *elastic, "--max-ranks", 3, "--steps", 1000000,
                                 "--job", job, "--log", "x.log")
        expect(wait_for(job.exists), "no job")
        for n, asked in enumerate((3, ranks)):
            resize(job, asked)
            expect(wait_for(lambda: len(log_of("x.log")[1]) > n), f"no resize to {asked}")
        killed = sorted(commands(job))[victim]
        os.kill(killed, signal.SIGKILL)
        begin = time.monotonic()
        out = end(process, 60)
        expect(process.returncode != 0 and time.monotonic() - begin < 20,
               f"lost: status {process.returncode}", out)
        # mpirun may end the others before one of them can say it; or two see it at once.
        lines = [line for line in out.splitlines() if "lamina: error: " in line]
        expect(all(f"(process {killed} on" in line for line in lines) and len(lines) <= 2 and
               (lines or "exited on signal 9" in out), f"lost: {lines}", out)
        expect(wait_for(lambda: not commands(job), 5), "processes are left", out)


def refused_later():
    """What hinders ranks that are started is a line, and the training goes on."""
    for ranks, flags, said in (
            (1, ["--max-ranks", 3], "need --elastic"),
            (2, ["--elastic", "--max-ranks", 1], "--max-ranks 1: 2 were started"),
            (1, ["--elastic", "--max-ranks", 3, "--plan", "auto"], "--plan auto")):
        out = run_launched(ranks, *training, "--steps", 4, *flags, status=1)
        expect(out.count("error: ") == 1 and said in out, f"{flags}", out)
    out = run(1, *training, "--elastic", "--max-ranks", 3, "--steps", 4, status=1)
    expect("--max-ranks: ranks are started by way of mpirun" in out, "without mpirun", out)

    job, program, data = root / "refused", root / "lamina", root / "mnist"
    shutil.copy(lamina, program)
    mnist(data, 48)
    process = start_launched(1, *training, "--data", f"mnist:{data}", *elastic, "--max-ranks", 3,
                             "--steps", 1000000, "--job", job, "--log", "r.log", program=program)
    expect(wait_for(job.exists), "no job")
    answer = resize(job, 4)
    expect("4 are more ranks than the 3 that there may be" in answer.stderr, "too many",
           answer.stderr)

    def asked(ranks):  # as soon as what was asked for before is done, or has come to nothing
        answers = []

        def taken():
            answers.append(resize(job, ranks))
            return answers[-1].returncode == 0

        expect(wait_for(taken), f"resize to {ranks} is not taken", answers[-1].stderr)

    data.rename(root / "elsewhere")
    asked(2)
    asked(3)  # is taken when that has come to nothing
    asked(1)  # and this, which is as it is
    (root / "elsewhere").rename(data)
    asked(2)
    expect(wait_for(lambda: [r["ranks"] for r in log_of("r.log")[1]] == [2]), "no resize")
    program.unlink()
    asked(3)
    asked(1)
    expect(wait_for(lambda: [r["ranks"] for r in log_of("r.log")[1]] == [2, 1]), "no resize back")
    os.kill(commands(job)[0], signal.SIGUSR1)
    out = end(process)
    said = " ".join(line.lstrip("# ") for line in out.splitlines())
    blamed = re.findall("no resize: rank ([0-9]+) failed: ", said)  # of two, either may be first
    expect(blamed in (["1", "1"], ["1", "2"]) and str(data) in said and
           said.count("no resize: no rank could be started: ") == 1 and "is not there any more" in
           said and "error: " not in said and process.returncode == 138,
           f"status {process.returncode}", out)


def start_that_hangs():
    """Where mpirun does not answer, it is a line, and the training goes on, and ends."""
    job = root / "hangs"
    os.environ["LAMINA_COMM_TIMEOUT"] = "3"
    process = start_launched(2, *training, *elastic, "--ranks", 1, "--max-ranks", 4, "--steps",
                             1000000, "--job", job, "--log", "h.log")
    del os.environ["LAMINA_COMM_TIMEOUT"]
    expect(wait_for(job.exists), "no job")
    os.kill(process.pid, signal.SIGSTOP)
    resize(job, 4)
    expect(wait_for(lambda: resize(job, 2).returncode == 0, 20), "it hangs for ever")
    expect(wait_for(lambda: [r["ranks"] for r in log_of("h.log")[1]] == [2]), "no other resize")
    ranks = processes_of(process)
    os.kill(process.pid, signal.SIGCONT)
    os.kill(ranks[0], signal.SIGTERM)
    out = end(process, 60)
    said = " ".join(line.lstrip("# ") for line in out.splitlines())
    expect("no rank could be started: mpirun has not started them in 1.5 s" in said and
           "SIGTERM: ended after step" in said, f"status {process.returncode}", out)
    expect(wait_for(lambda: not commands(job), 10), "processes are left", out)


def end_while_a_start_hangs():
    """Then the training waits as long as it would have, and says why nobody came."""
    job = root / "ends"
    os.environ["LAMINA_COMM_TIMEOUT"] = "5"
    process = start_launched(1, *training, *elastic, "--max-ranks", 4, "--steps", 400, "--job", job)
    del os.environ["LAMINA_COMM_TIMEOUT"]
    expect(wait_for(job.exists), "no job")
    os.kill(process.pid, signal.SIGSTOP)
    resize(job, 2)
    expect(wait_for(lambda: not commands(job), 60), "the training does not end")
    os.kill(process.pid, signal.SIGCONT)
    out = end(process, 60)
    said = " ".join(line.lstrip("# ") for line in out.splitlines())
    expect("no rank could be started: mpirun has not started them in 2.5 s" in said,
           f"status {process.returncode}", out)


finish((started_later, split_layers_on_ranks_started_later, lost_later, refused_later,
        start_that_hangs, end_while_a_start_hangs))
