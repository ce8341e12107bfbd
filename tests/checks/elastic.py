#!/usr/bin/env python3
# Ranks that come and go under mpirun: losses and checkpoints are those of an undisturbed run, and
# parked ranks sleep; what cannot be is one line, after which the training goes on.
import contextlib
import fcntl
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["LAMINA_SOURCE"] + "/tests/support")
from elastic_jobs import (ask_to_end, elastic, end, end_when_resized, ended, expect, finish,
                          held_mb, lamina, largest_mappings, log_of, processes_of, resize, root,
                          run, run_launched, start, start_launched, ticks, training, wait_for)


def events_leave_no_trace():
    steps = 1000  # the last change has time to come about, whatever else runs here
    for ranks in (1, 2):
        run(ranks, *training, "--workers", 4, "--steps", steps, "--log", f"{ranks}.log", "--save",
            f"{ranks}.save")
    (root / "events").write_text("# step, ranks\n20 4\n200 1\n\n260 2  # and back\n")
    out = run(4, *training, *elastic, "--ranks", 2, "--steps", steps, "--events", "events", "--log",
              "e.log", "--save", "e.save")
    losses, resizes = log_of("e.log")
    expect(losses == log_of("1.log")[0] == log_of("2.log")[0], "losses differ", out)
    saves = [(root / f"{name}.save").read_bytes() for name in ("1", "2", "e")]
    expect(saves[0] == saves[1] == saves[2], "checkpoints differ", out)
    expect([r["ranks"] for r in resizes] == [4, 1, 2], f"resized: {resizes}", out)
    # With other rules, and in bf16, fused: on 1 rank, and on ranks that come and go.
    (root / "sooner").write_text("20 4\n60 1\n")
    for how in (("--optimizer", "adamw"), ("--optimizer", "lars", "--clip-norm", "0.5"),
                ("--dtype", "bf16", "--fuse")):
        more = (*training, *how, "--steps", 400)
        run(1, *more, "--workers", 4, "--save", "how1")
        out = run(4, *more, *elastic, "--ranks", 2, "--events", "sooner", "--log", "how.log",
                  "--save", "how4")
        expect((root / "how1").read_bytes() == (root / "how4").read_bytes(),
               f"{how}: checkpoints differ", out)
        expect([r["ranks"] for r in log_of("how.log")[1]] == [4, 1], f"{how}: resizes", out)
    # MPI alone would add up in another order; and between nodes, of which there are two here.
    for name, value in (("LAMINA_SHM", "0"), ("LAMINA_NODE_SIZE", "2")):
        os.environ[name] = value
        out = run(4, *training, *elastic, "--ranks", 2, "--steps", steps, "--events", "events",
                  "--log", "other.log")
        del os.environ[name]
        there, resizes = log_of("other.log")
        expect(there == losses, f"{name}={value}: losses differ", out)
        expect([r["ranks"] for r in resizes] == [4, 1, 2], f"{name}={value}: {resizes}", out)


def profile_after_resizes():
    """A profile is of steps that were alike: those after the last change."""
    os.environ["LAMINA_CACHE"] = str(root / "cache")
    flags = [f for f in training if f not in ("--profile-steps", "0")]
    for name, last, steps, ranks in (("grown", "15 2", 2000, 2), ("shrunk", "15 1", 2000, 1)):
        (root / "profiled").write_text(f"5 {3 - ranks}\n{last}\n")
        out = run(2, *flags, "--elastic", "--ranks", ranks, "--events", "profiled", "--steps",
                  steps, "--log", f"{name}.log", "--json", f"{name}.json", "--report", name,
                  "--profile-steps", 4, "--ceilings", "none")
        found = json.loads((root / f"{name}.json").read_text())
        resizes = log_of(f"{name}.log")[1]
        over = found["ranks_over_time"]
        said = [{**r, "pause_ms": 1e3 * r["pause_s"]} for r in over["changes"]]
        expect(found["ranks"] == ranks and found["steps"] == 4 and over["steps"] == steps,
               f"{name}: a profile of other ranks or steps", out)
        expect([r["ranks"] for r in resizes] == [3 - ranks, ranks] and
               all(a[k] == b[k] if k in ("why", "workers") else
                   abs(a[k] - b[k]) < 1e-9 * a[k] + 1e-12
                   for a, b in zip(resizes, said) for k in a), f"{name}: {said}, {resizes}", out)
        expect({r["why"] for r in resizes} == {"--events"} and "(--events)" in out,
               f"{name}: who asked?", out)
        expect("Ranks over time" in (root / name / "index.html").read_text() and
               (root / name / "ranks.svg").exists(), f"{name}: not in the report")
    out = end(start(2, *flags, "--elastic", "--trace", "trace"))
    expect("there is no --trace of ranks that come and go" in out, "a trace", out)


def send_slowly(to):
    with contextlib.suppress(OSError):
        while True:
            to.send(b"r")
            time.sleep(1)


def asked_from_outside():
    job = root / "job"
    process = start(4, *training, *elastic, "--ranks", 1, "--steps", 100000, "--job", "job",
                    "--log", "o.log", "--save", "o.save")
    expect(wait_for(lambda: job.exists() and (root / "o.log").exists()), "no job")
    ranks = processes_of(process)
    time.sleep(0.5)
    before = ticks(ranks[3])
    time.sleep(1)
    slept = ticks(ranks[3]) - before  # of hundred
    expect(slept <= 5, f"a parked rank took {slept} ms/10 of a second")
    out = run(1, *training, *elastic, "--steps", 4, "--job", "job", status=1)
    expect(out.count("error: ") == 1 and "another job has this socket" in out, "two jobs", out)
    for asked, said in ((5, "5 are more ranks than the 4 started"),
                        (0, "RANKS: expected a whole number from 1 "),
                        (-1, "RANKS: expected a whole number from 1 "), ("x", "RANKS")):
        answer = resize("job", asked)
        expect(answer.returncode != 0 and said in answer.stderr, f"resize {asked}", answer.stderr)
    with socket.socket(socket.AF_UNIX) as other:  # who has asked without lamina resize
        other.connect(str(job))
        other.recv(256)
        other.sendall(b"resize 0\n")
        answer = other.recv(256)
    expect(b"expected a rank or more, got 0" in answer, "resize 0 by hand", str(answer))
    os.kill(ranks[3], signal.SIGSTOP)  # so that the resize is not over before the next is asked for
    answer = resize("job", 4)
    expect(answer.returncode == 0 and "goes on with 4 ranks" in answer.stdout, "resize 4",
           answer.stdout + answer.stderr)
    answer = resize("job", 2)
    os.kill(ranks[3], signal.SIGCONT)
    expect("a resize to 4 ranks is under way" in answer.stderr, "a resize during a resize",
           answer.stderr)
    expect(wait_for(lambda: len(log_of("o.log")[1]) == 1), "no resize")
    expect(resize("job", 1).returncode == 0, "resize 1")
    expect(wait_for(lambda: len(log_of("o.log")[1]) == 2), "no second resize")
    resize("job", 2)
    slow = socket.socket(socket.AF_UNIX)  # who asks for something, a letter a second
    slow.connect(str(job))
    letters = threading.Thread(target=send_slowly, args=(slow,))
    letters.start()
    os.kill(ranks[0], signal.SIGTERM)  # in the middle of it
    out = end(process)
    letters.join()
    expect("SIGTERM: ended after step" in out, "does not end in order", out)
    expect(not job.exists(), "the socket is left behind")
    done = len(log_of("o.log")[0])
    more = done + 200
    run(2, *training, "--workers", 4, "--steps", more, "--resume", "o.save", "--log", "o.log")
    run(1, *training, "--workers", 4, "--steps", more, "--log", "u.log")
    expect(log_of("o.log")[0] == log_of("u.log")[0], "resumed losses differ")


def parked_without_memory():
    """A network's memory is there when a rank is to train, not before and not afterwards."""
    job, flags = root / "parked", [f if f != "lenet" else "resnet18" for f in training]
    process = start(2, *flags, "--image-size", 32, *elastic, "--ranks", 1, "--steps", 1000000,
                    "--job", job, "--log", "m.log")
    expect(wait_for(lambda: job.exists() and (root / "m.log").exists() and
                    len(log_of("m.log")[0]) > 2), "no job")
    ranks = processes_of(process)
    alone, held = held_mb([ranks[1]]), [held_mb(ranks.values())]
    for n, asked in enumerate((2, 1)):
        resize(job, asked)
        expect(wait_for(lambda: len(log_of("m.log")[1]) > n), f"no resize to {asked}")
        wait_for(lambda: asked > 1 or held_mb(ranks.values()) < held[0] + 35, 5)
        held.append(held_mb(ranks.values()))
    most = {rank: largest_mappings(pid) for rank, pid in ranks.items()}
    os.kill(ranks[0], signal.SIGTERM)
    out = end(process)
    # Parameters, gradients and momentum of 11.7 million are 140 MB, each of them 47.
    expect(alone < 25 and held[1] > held[0] + 140 and held[2] < held[0] + 35,
           f"a parked rank has {alone} MB; both with it parked, training, parked: {held}; "
           f"then mostly {most}", out)


def many_leave_nothing():
    """Neither memory nor files, whether ranks are processes or threads."""
    program = str(pathlib.Path(lamina).parent / "elastic")
    for ranks in (4, 0):
        os.environ |= {} if ranks else {"LAMINA_RANKS": "4"}
        process = start_launched(ranks, "--model", "lenet", "--global-batch", 8, "--threads", 1,
                                 "--steps", 1, "--resizes", 200, program=program)
        os.environ.pop("LAMINA_RANKS", None)
        out = ended(process, 0)
        rows = re.findall(r"^ *(\d) +(\d+) +[\d.]+ +[\d.]+ +(-?[\d.]+) +(\d+) +(\d+)$", out, re.M)
        expect(len(rows) == 4 and int(rows[0][1]) == 200, f"{rows}", out)
        least = min((float(row[2]) for row in rows), default=0)  # threads share one process
        for rank, _, mb, files, then in rows:
            kept = float(mb) if ranks else least
            expect(kept < 5 and int(then) <= int(files) + 3, f"rank {rank} keeps something", out)


def stopped_while_parked():
    """A signal to a parked rank alone ends the job in order."""
    job = root / "parked"
    process = start(3, *training, *elastic, "--ranks", 2, "--steps", 1000000, "--job", job,
                    "--log", "p.log")
    expect(wait_for(lambda: job.exists() and (root / "p.log").exists()), "no job")
    ask_to_end(processes_of(process)[2])
    out = end(process, 60)
    expect(process.returncode == 143 and "SIGTERM: ended after step" in out,
           f"status {process.returncode}", out)


def events_of_the_past():
    """Who resumes goes on as the events before have led; what comes too late is said."""
    (root / "past").write_text("2 1\n4 3\n6 2\n300 3\n1499 1\n")
    run(1, *training, "--workers", 4, "--steps", 40, "--save", "past.save")
    out = run(3, *training, *elastic, "--ranks", 1, "--steps", 1500, "--resume", "past.save",
              "--events", "past", "--log", "past.log")
    resizes = log_of("past.log")[1]
    expect([r["ranks"] for r in resizes] == [2, 3], f"resized: {resizes}", out)
    expect("# no resize: the training ended before it could go on with 1 rank\n" in out,
           "a resize that came to nothing is not said", out)
    expect([r["workers"] for r in resizes] == [[2, 2], [2, 1, 1]], f"{resizes}", out)


def epochs_of_other_data():
    """All end with the last epoch, though the one before the resume had more steps."""
    flags = ["train", "--model", "lenet", "--global-batch", 24, "--no-validation",
             "--profile-steps", 0]
    run(1, *flags, "--workers", 4, "--limit", 480, "--epochs", 1, "--save", "more.save")
    (root / "once").write_text("22 2\n")
    late = ["--max-ranks", 2]  # such a rank comes when the others have resumed
    for ranks, most in ((2, []), (2, ["--steps", 100000]), (1, late),
                        (1, ["--steps", 100000, *late])):
        out = run_launched(ranks, *flags, *elastic, "--limit", 48, "--epochs", 500, *most,
                           "--ranks", 1, "--resume", "more.save", "--events", "once", "--log",
                           "less.log")
        losses, resizes = log_of("less.log")
        expect(len(losses) == 499 * 2 and [r["ranks"] for r in resizes] == [2],
               f"{most}: {len(losses)} steps, {resizes}", out)
    # A rank that joins records the steps that the others do, up to the end that they know of.
    flags = ["train", "--model", "lenet", "--global-batch", 4, "--no-validation", "--ceilings",
             "none", "--workers", 4]
    run(1, *flags, "--limit", 12000, "--epochs", 1, "--profile-steps", 0, "--save", "more.save")
    (root / "once").write_text("3002 2\n")
    out = run(2, *flags, "--elastic", "--limit", 8, "--epochs", 1500, "--ranks", 1, "--resume",
              "more.save", "--events", "once", "--json", "late.json")
    expect(json.loads((root / "late.json").read_text())["ranks"] == 2, "not recorded on both", out)


def shared_out_unevenly():
    """Three workers on one rank, one on the other: sums round otherwise, and no more."""
    flags = [*training, "--workers", 4, "--steps", 20, "--log"]
    run(1, *flags, "even.log")
    out = run(2, *flags, "uneven.log", "--balance", "3:1")
    even, uneven = log_of("even.log")[0], log_of("uneven.log")[0]
    off = max(abs(a - b) / b for a, b in zip(uneven, even))
    expect(len(uneven) == 20 and 0 < off < 1e-5, f"losses differ by {off}", out)


def balanced():
    """Workers leave a rank whose back end is slower, and a line, the log and the table say so."""
    if "oneDNN" not in run(1, "info"):
        return  # and so no back end that is faster than the reference
    mixed = root / "mixed"
    mixed.write_text('#!/bin/sh\n[ "$OMPI_COMM_WORLD_RANK" = 1 ] && set -- "$@" --backend '
                     f'reference\nexec {lamina} "$@"\n')
    mixed.chmod(0o755)
    flags = [x for x in training if x not in ("--profile-steps", "0")]
    process = start_launched(2, *flags, "--workers", 12, "--balance", "auto", "--steps", 300,
                             "--ceilings", "none", "--log", "b.log", program=str(mixed))
    out = ended(process, 0)
    said = re.findall(r"^# balance at step (\d+): slowest over mean ([\d.]+) -> ([\d.]+), pause "
                      r"[\d.]+ ms, workers (\d+), (\d+)$", out.replace("\n#   ", " "), re.M)
    losses, moves = log_of("b.log")  # how many depends on what else runs here
    expect(len(said) == len(moves) >= 1 and len(losses) == 300, f"{said}, {moves}", out)
    for (step, before, after, fast, slow), move in zip(said, moves):
        expect(move["step"] == int(step) and move["workers"] == [int(fast), int(slow)]
               and sum(move["workers"]) == 12 and before == f"{move['imbalance']:.2f}"
               and after == f"{move['expected_imbalance']:.2f}", f"{said}, {moves}", out)
    expect(said and int(said[0][3]) > int(said[0][4]), f"the slower rank got more: {said}", out)
    # Beside other tests workers may move until the end; and where they do, nothing is recorded.
    process = start_launched(2, *flags, "--workers", 12, "--steps", 100, "--ceilings", "none",
                             program=str(mixed))
    out = ended(process, 0)
    expect("imbalance" in out and "unlike back ends" in out, "no profile of both", out)


def killed():
    for victim in (0, 2):
        job = root / f"k{victim}"
        process = start(3, *training, *elastic, "--ranks", 1, "--steps", 100000, "--job", job)
        expect(wait_for(job.exists), "no job")
        ranks = processes_of(process)
        resize(job, 2)
        os.kill(ranks[victim], signal.SIGKILL)
        out = end(process, 60)
        expect(process.returncode != 0, f"rank {victim} killed: status 0", out)
        expect(f"rank {victim} " in out and out.count("lamina: error: ") <= 1,
               f"rank {victim} killed: not one line", out)
        if victim == 0:  # who leaves its socket behind
            answer = resize(job, 2)
            expect("no job answers there" in answer.stderr, "a dead job", answer.stderr)
            run(1, *training, *elastic, "--steps", 4, "--job", job)  # takes its place
            expect(not job.exists(), "the socket of the second job is left behind")
        job.unlink(missing_ok=True)


def default_sockets():
    """Those of jobs that were killed go when another one begins; those of living jobs stay. One
    that is stopped, with a full queue, holds nobody up."""
    folder = root / "sockets"
    folder.mkdir()
    dead, living = folder / "lamina-1.job", folder / "lamina-2.job"
    socket.socket(socket.AF_UNIX).bind(str(dead))
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(living)), listening.listen(0)
    waiting = socket.socket(socket.AF_UNIX)
    waiting.connect(str(living))
    (folder / "lamina-3.job").write_text("no socket")
    os.environ["TMPDIR"] = str(folder)
    run(1, *training, *elastic, "--steps", 4)
    waiting.close()
    del os.environ["TMPDIR"]
    left = sorted(path.name for path in folder.glob("*.job"))
    expect(left == ["lamina-2.job", "lamina-3.job"], f"sockets: {left}")


def one_takes_over():
    """Of two jobs that find a dead socket at once; and they wait for whoever is at it."""
    job = root / "dead"
    socket.socket(socket.AF_UNIX).bind(str(job))
    folder = os.open(root, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    both = [start(1, *training, *elastic, "--steps", 1000000, "--job", job) for _ in range(2)]
    time.sleep(0.5)
    answer = resize(job, 1)
    expect("no job answers there" in answer.stderr, "a socket that is being made was replaced",
           answer.stdout)
    os.close(folder)
    expect(wait_for(lambda: any(p.poll() is not None for p in both)), "two jobs have a socket")
    both.sort(key=lambda process: process.poll() is None)
    expect("another job has this socket" in end(both[0]), "nobody has the socket")
    expect(resize(job, 1).returncode == 0, "nobody answers there")
    ask_to_end(both[1].pid)
    end(both[1])
    expect(both[1].returncode == 143 and not job.exists(), "the socket is left behind")


def failed():
    """An error of ranks that train is the only line, and parked ranks do not keep it waiting."""
    process = start(3, *training, *elastic, "--ranks", 2, "--steps", 100, "--lr", "1e30")
    out = end(process, 60)
    lines = [line for line in out.splitlines() if "error: " in line]
    expect(process.returncode == 1 and len(lines) == 1 and "the loss is" in lines[0]
           and "no answer" not in lines[0], "a loss that is no number", out)


def illegal_splits():
    """What a flag says about a layer may not do for other ranks: then it stays as it is."""
    (root / "fewer").write_text("3 1\n6 3\n")
    process = start(3, *training, "--elastic", "--ranks", 2, "--split", "conv2=channel:2",
                    "--steps", 1000000, "--events", "fewer", "--log", "i.log")
    out = end_when_resized(process, "i.log", 1)
    refused = [line for line in out.splitlines() if "--events: step 3: on 1 rank: " in line]
    expect(len(refused) == 1 and "conv2 (Conv2D): split channel:2 has 2 parts" in refused[0],
           "an illegal split is not refused", out)
    resizes = log_of("i.log")[1]
    expect([r["ranks"] for r in resizes] == [3], f"{resizes}", out)


def bad_input():
    (root / "plain").write_text("no job")
    (root / "bad").write_text("3 2\n1 4\n")
    (root / "worse").write_text("3 two\n")
    short = [*training, "--steps", 4]
    for ranks, flags, said in (
            (1, ["--ranks", 1], "need --elastic"),
            (2, ["--elastic", "--ranks", 3], "only 2 ranks were started"),
            (1, ["--workers", 5], "cannot be cut into equal parts for 5 workers"),
            (2, ["--workers", 1], "2 ranks cannot share 1 worker"),
            (1, ["--workers", 2, "--micro-batch", 12], "expected one of the two"),
            (1, ["--workers", 2, "--shard-optimizer"], "a sharded optimizer"),
            (1, ["--workers", 2, "--global-norm"], "batch norm statistics of their own"),
            (2, ["--elastic", "--global-norm"], "batch norm statistics of their own"),
            (1, ["--balance", "3:1"], "expected --workers"),
            (1, ["--workers", 2, "--balance", "3:x"], "expected auto, even, or numbers"),
            (1, ["--elastic", "--events", "bad"], "line 2: step 1 comes after 3"),
            (1, ["--elastic", "--events", "worse"], "line 1: expected a step and a number"),
            (1, ["--elastic", "--events", "."], "cannot be read: Is a directory"),
            (1, ["--elastic", "--job", "plain"], "cannot be made"),
            (1, ["--elastic", "--job", "x" * 200], "has less than")):
        process = start(ranks, *short, *flags)
        out = end(process)
        lines = [line for line in out.splitlines() if "error" in line]
        expect(process.returncode != 0 and len(lines) == 1 and said in lines[0], f"{flags}", out)
    os.environ["TMPDIR"] = str(root / "nowhere")
    out = run(1, *short, "--elastic", status=1)
    del os.environ["TMPDIR"]
    expect("error: --job lies in the folder that TMPDIR names" in out, "TMPDIR", out)
    run(1, *short, "--workers", 1, "--global-norm")  # of the whole batch
    other = socket.socket(socket.AF_UNIX)
    other.bind(str(root / "other"))
    other.listen()
    threading.Thread(target=lambda: other.accept()[0].sendall(b"SSH-2.0\n"), daemon=True).start()
    full = socket.socket(socket.AF_UNIX)  # of a job that is stopped, which others wait for
    full.bind(str(root / "full"))
    full.listen(0)
    others = []
    try:
        while True:
            others.append(socket.socket(socket.AF_UNIX))
            others[-1].setblocking(False)
            others[-1].connect(str(root / "full"))
    except BlockingIOError:
        pass
    for job, said in (("plain", "is no socket of a job"), ("nothing", "No such file"),
                      ("other", "who answers there is no job"), ("full", "others have asked")):
        answer = resize(job, 2)
        expect(answer.returncode != 0 and said in answer.stderr, f"resize {job}", answer.stderr)
    expect((root / "plain").read_text() == "no job", "a file that is no socket was touched")
    for arguments, said in ((["plain"], "RANKS is required"), ([], "JOB is required")):
        answer = subprocess.run([lamina, "resize", *arguments], capture_output=True, text=True)
        expect(answer.returncode == 2 and said in answer.stderr, f"{arguments}", answer.stderr)


finish((bad_input, events_leave_no_trace, profile_after_resizes, asked_from_outside,
        parked_without_memory, many_leave_nothing, stopped_while_parked, events_of_the_past,
        epochs_of_other_data, shared_out_unevenly, balanced, illegal_splits, killed,
        default_sockets, one_takes_over, failed))
