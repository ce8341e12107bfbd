#!/usr/bin/env python3
# `lamina launch` and signals: what asks it to end, whoever else gets it, has the training end in
# order, with what is in memory saved; and what comes when all steps are done. With -v says what it
# does; names of functions are those checks alone.
import os
import re
import signal
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["LAMINA_SOURCE"] + "/tests/support")
from launched_jobs import (Job, check_restart, every, expect, finish, goes_on, lamina, patience,
                           rank_1_lost, root, script, training)


# With epochs of 1,000 steps, behind which it saves.
long = ["24000" if word == "480" else word for word in training]


def saved_step(job):
    header = job.saved()[:10000].decode(errors="replace")
    return int(re.search(r'"step":"(\d+)"', header)[1])


def ended_in_order(job):
    """After a step that is the last one of the log, and with what came of it saved."""
    out, steps = (job.folder / "out").read_text(), job.steps()
    said = re.search(r"^# SIG[A-Z0-9]+: ended after step (\d+)$", out, re.M)
    expect(said and steps == list(range(1, int(said[1]) + 1)), f"steps of the log are {steps}",
           out + job.err())
    expect(saved_step(job) == steps[-1], "another step was saved")


def to_all_processes():
    """As those who end a whole service send it: mpirun kills the ranks, which cannot save."""
    for attempt in range(2):
        job = Job(f"all{attempt}", ("--max", 2, "--snapshot-every", every), *long)
        job.wait_for(lambda: job.logged() >= 120)
        ranks = [p for rank in (0, 1) for p in job.processes(rank)]
        for number, processes in ((signal.SIGSTOP, ranks),
                                  (signal.SIGTERM, [job.process.pid, *job.processes()])):
            for process in processes:
                os.kill(process, number)
        job.process.wait(patience)
        quicker = not job.err()  # than mpirun, although they stood still
        lines = [] if quicker else [goes_on("SIGTERM ended all ranks", "2 ranks")]
        check_restart(job.ends(143, *lines))
        ended_in_order(job)


def ignored_children():
    """Who starts it may ignore that children end: nobody can wait for them then."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        job = Job("ignored", ("--max", 1), "true")
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    job.ends(0)


def newer_on_disk():
    """What is in memory takes the place of nothing that is newer."""
    job = Job("newer", ("--max", 2, "--snapshot-every", 100), *long, "--save-every", 7)
    job.wait_for(lambda: job.logged() >= 190)
    ranks = [p for rank in (0, 1) for p in job.processes(rank)]
    for process in ranks:
        os.kill(process, signal.SIGSTOP)
    before = saved_step(job)
    for process in [job.process.pid, *job.processes()]:
        os.kill(process, signal.SIGTERM)
    job.process.wait(patience)
    expect(before >= 180 and saved_step(job) >= before,
           f"saved was step {before}, and is {saved_step(job)}", job.err())
    job.leaves_nothing()


def cannot_be_saved():
    """Said once, by the program; with what it saved before as it was."""
    program = ["sub/save" if word == "save" else word for word in long]
    (root / "unsaved/sub").mkdir(parents=True)
    job = Job("unsaved", ("--max", 2, "--snapshot-every", every), *program)
    job.wait_for(lambda: job.logged() >= 120)
    os.kill(job.process.pid, signal.SIGSTOP)
    (job.folder / "sub").rename(job.folder / "gone")
    for number in signal.SIGTERM, signal.SIGCONT:
        os.kill(job.process.pid, number)
    found = job.process.wait(patience)
    expect(found == 1 and job.err().count("error: ") == 1 and "going on" not in job.err(),
           f"status {found}", job.err())
    job.leaves_nothing()


# Not by exec: mpirun's child is the shell. It would say "Terminated" where one rank was done first,
# and mpirun ended the other one, which was done as well.
SHELL = """#!/bin/bash
exec 2>/dev/null
{}
"$@"
status=$?
true
exit $status
"""


def through_a_script():
    for name, first in (("shell", "true"), ("trap", "trap : TERM USR1")):
        program = script(f"{name}.sh", SHELL.format(first))
        for number in (signal.SIGTERM, signal.SIGUSR1):
            job = Job(f"{name}-{number}", ("--max", 2, "--snapshot-every", every), program,
                      *training)
            job.wait_for(lambda: job.logged() >= 120)
            os.kill(job.process.pid, number)
            job.ends(128 + number)
            ended_in_order(job)


def patient_mpirun():
    """Time that ranks are to have when mpirun is asked to end them; not when one is lost."""
    job = Job("patient", ("--max", 2, "--regrow", 1000, "--snapshot-every", every), *training,
              OMPI_MCA_odls_base_sigkill_timeout="30")
    job.kill(1, after=120)
    begin = time.monotonic()
    job.wait_for(lambda: "going on with" in job.err())
    expect(time.monotonic() - begin < 28, "goes on late", job.err())
    os.kill(job.process.pid, signal.SIGTERM)
    check_restart(job.ends(143, goes_on(rank_1_lost, "1 rank")))
    ended_in_order(job)


def lost_in_the_last_evaluation():
    """It is said, and a signal is heard, though no step is left to be done."""
    steps = 5
    for seconds in 1, 5, 25:  # until there is a snapshot, which comes right behind the checkpoint
        job = Job(f"evaluation{seconds}", ("--max", 2, "--regrow", 0, "--snapshot-every", steps),
                  lamina, "train", "--model", "resnet20", "--data", "synthetic", "--global-batch",
                  16, "--steps", steps, "--threads", 1, "--profile-steps", 0, "--log", "log",
                  "--save", "save")
        job.wait_for((job.folder / "save").exists)
        time.sleep(seconds)
        job.kill(1, after=steps)
        job.wait_for(lambda: "going on with" in job.err())
        os.kill(job.process.pid, signal.SIGTERM)
        if f"from step {steps}, 0 steps" in job.ends(143, goes_on(rank_1_lost, "2 ranks")):
            break
    job.has_restarts((2, 2, rank_1_lost))
    ended_in_order(job)


finish((ignored_children, to_all_processes, newer_on_disk, cannot_be_saved, through_a_script,
        patient_mpirun, lost_in_the_last_evaluation))
