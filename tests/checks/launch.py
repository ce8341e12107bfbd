#!/usr/bin/env python3
# `lamina launch`: ranks are killed, and training goes on to the same bits; where it cannot go on,
# one line says why, and no process is left behind. With -v says what it does;
# names of functions are those checks alone, and numbers the seeds of what happens at random.
import os
import random
import re
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.environ["LAMINA_SOURCE"] + "/tests/support")
from launched_jobs import (Job, anew, check_restart, cluster, every, exact, expect, finish, flags,
                           goes_on, lamina, normed, outlive, patience, rank_1_lost, script, seeds,
                           training, verbose)


def same_ranks():
    """Killed on the same number of ranks, it ends with the bits of one that was left alone."""
    steps = ("--steps", "700")
    alone = Job("left-alone", None, "mpirun", "-n", "2", *training, *steps)
    flags = ("--min", 2, "--max", 2, "--regrow", 0, "--snapshot-every", every)
    job = Job("killed", flags, *training, *steps)
    job.kill(0, after=180)  # that which takes the snapshots
    job.wait_for(lambda: "rank 0" in job.err())
    job.kill(1, after=420, number=signal.SIGSEGV)
    job.wait_for(lambda: "rank 1" in job.err())
    status = alone.process.wait(patience)
    expect(status == 0, "left alone", alone.err())
    expect(job.process.wait(patience) == 0, "killed twice", job.err())
    said = [line for line in job.err().splitlines() if line.startswith("lamina launch: ")]
    lines = (goes_on(r"rank 0 was lost \(signal 9\)", "2 ranks"),
             goes_on(r"rank 1 was lost \(signal 11\)", "2 ranks"))
    if expect(len(said) == 2 and all(map(re.fullmatch, lines, said)), "two lines", job.err()):
        check_restart(said[0]), check_restart(said[1])
    if verbose:
        print(job.err(), end="", flush=True)
    expect(job.steps() == list(range(1, 701)), f"steps of the log are {job.steps()}")
    job.has_restarts((2, 2, r"rank 0 was lost \(signal 9\)"),
                     (2, 2, r"rank 1 was lost \(signal 11\)"))
    expect(job.losses() == alone.losses(), "other losses")
    expect(job.saved() == alone.saved(), "other bits")
    expect(sorted(p.name for p in job.folder.iterdir()) == ["err", "log", "out", "save"],
           "files are left behind")
    job.leaves_nothing()


def asked_while_a_rank_is_replaced():
    """What is in memory is saved, whenever the signal comes."""
    for number, later in enumerate((0, 0.05, 0.2, 0.4)):
        flags = ("--min", 2, "--max", 2, "--regrow", 0, "--snapshot-every", every)
        job = Job(f"asked{number}", flags, *training)
        job.kill(1, after=120)
        time.sleep(later)
        os.kill(job.process.pid, signal.SIGTERM)
        check_restart(job.ends(143, goes_on(r"rank 1 was lost \(signal 9\)", "2 ranks")))
        expect("# SIGTERM: ended after step" in (job.folder / "out").read_text(), "not in order")
        expect(len(job.saved()) > 1e5, "nothing saved")


def fewer_and_more():
    """One rank less; a second later as many as before."""
    job = Job("fewer", ("--max", 3, "--regrow", 1, "--snapshot-every", every), *training,
              "--steps", "100000", "--save-every", "1000")
    job.kill(1, after=120)
    job.wait_for(lambda: job.err().count("\n") >= 2)
    at = job.logged()
    job.wait_for(lambda: job.logged() > at)
    os.kill(job.process.pid, signal.SIGTERM)
    out = job.ends(143, goes_on(rank_1_lost, "2 ranks"),
                   goes_on("there is room again", "3 ranks"))
    for line in out.splitlines():
        check_restart(line)
    job.has_restarts((3, 2, rank_1_lost), (2, 3, "there is room again"))
    steps = job.steps()
    expect(steps == list(range(1, len(steps) + 1)), f"steps of the log are {steps}")
    expect("# SIGTERM: ended after step" in (job.folder / "out").read_text(), "not told to end")


# A program that trains nothing, as far as the launcher can know, and is lost the first time.
ONCE = "[ -e been ] || { >been; kill -9 $$; }"


def given_up():
    job = Job("below-min", ("--min", 2, "--max", 2), *training[:training.index("--save")])
    job.kill(1, after=20)
    job.ends(137, rf"lamina: error: {rank_1_lost}: 1 rank left, expected --min 2 or more: "
             r"given up after step \d+")
    Job("not-found", ("--max", 2), "no/such/program").ends(
        1, "lamina: error: launch: no/such/program: no such program")
    Job("no-mpirun", ("--mpirun", "no-mpirun -q"), lamina).ends(
        1, "lamina: error: launch: no-mpirun: not found: .*")
    Job("bad-flags", ("--max", 2), lamina, "train", "--modle", "lenet").ends(
        2, r"lamina: error: unknown flag --modle \(did you mean --model\?\): see --help",
        "lamina: error: .*/lamina ended with status 2 before its first step: not tried again")
    Job("no-workers", ("--max", 1), *training, "--elastic").ends(
        1, "lamina: error: --elastic under lamina launch: expected --workers N, .*",
        "lamina: error: .*/lamina ended with status 1 before its first step: not tried again")
    Job("more-than-max", ("--min", 3, "--max", 2), lamina).ends(
        1, "lamina: error: launch: --min 3, but --max is 2")
    lost = r"(rank \d|a rank) was lost \(signal 9\)"
    Job("crashes", ("--max", 2, "--regrow", 0), "sh", "-c", "kill -9 $$").ends(
        137, *[f"lamina launch: {lost}{anew}"] * 2,
        f"lamina: error: {lost}: 3 times in a row without a new step: given up")
    Job("no-training", ("--max", 1, "--regrow", 0), "sh", "-c", ONCE).ends(
        0, f"lamina launch: {lost}{anew}")
    # An error of its own, at the same step each time.
    error = "lamina: error: step .*: the loss is .*"
    job = Job("diverges", ("--max", 1, "--snapshot-every", 2), *training, "--lr", "1e9")
    job.process.wait(patience)
    out = job.err()
    expect(job.process.returncode == 1 and out.count("given up") + out.count("not tried") == 1,
           f"a loss that is not finite ({error})", out)
    job.leaves_nothing()


def given_up_saved():
    """What is newer in memory than on the disk goes on from a file."""
    long = ["24000" if word == "480" else word for word in training]  # a save after 1,000 steps
    job = Job("saved", ("--min", 2, "--max", 2, "--snapshot-every", every), *long)
    job.kill(1, after=every + 10)
    out = job.ends(137, rf"lamina: error: {rank_1_lost}: 1 rank left, expected .*",
                   r"lamina launch: step \d+ is saved as .*/saved/save\.newest")
    step = int(re.search(r"step (\d+) is saved", out)[1])
    on = Job("saved", (), *long, "--resume", "save.newest", "--steps", step + 3)
    on.ends(0)
    expect(step % every == 0 and on.steps()[-3:] == [step + 1, step + 2, step + 3],
           f"saved was step {step}", f"{on.steps()}")
    job = Job("on-disk", ("--min", 2, "--max", 2, "--snapshot-every", every), *training,
              "--save-every", 1)
    job.kill(1, after=every + 10)
    job.ends(137, rf"lamina: error: {rank_1_lost}: 1 rank left, expected .*")


class Elastic(Job):
    """Whose ranks come and go."""

    def __init__(self, folder, ranks, *launch, program=normed):
        super().__init__(folder, ("--snapshot-every", 10, *launch), *program, "--elastic",
                         "--ranks", ranks, "--job", "job")
        self.wait_for(lambda: self.now()[0] > 0 and self.logged())

    def now(self):
        """How often the program has begun, with how many ranks, and how many train."""
        begun = (self.folder / "out").read_text().split("# elastic: ")
        train, started = (re.findall(r"^(\d+) of (\d+) ", begun[-1]) or [(0, 0)])[0]
        resized = re.findall(r"# resize at .* -> (\d+) rank", begun[-1])
        return len(begun) - 1, int(started), int(resized[-1] if resized else train)

    def step(self):
        with open(self.folder / "log", "rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 1000))
            return int((re.findall(rb'"step": (\d+), "epoch"', log.read()) or [0])[-1])

    def goes_further(self, begun=0):
        """To a step that there was not yet, once the program has begun more often than that."""
        at = self.step()
        return self.wait_for(lambda: self.now()[0] > begun and self.step() > at)

    def resize(self, chance):
        """To a number at random. It may be refused where one is under way, or the job gone."""
        now = self.now()
        others = [n for n in (1, 2, 4) if n <= now[1] and n != now[2]]
        if not others:
            return
        ask = [lamina, "resize", "job", str(chance.choice(others))]
        answer = subprocess.run(ask, cwd=self.folder, capture_output=True)
        if answer.returncode == 0 and chance.random() < 0.6:
            self.wait_for(lambda: self.now() != now)

    def lose(self, rank):
        """Unless it is the last one."""
        begun, started, _ = self.now()
        ranks = self.kill(rank, after=0) if started > 1 else []
        if ranks:
            self.goes_further(begun)
        return len(ranks)

    def resizes(self):
        return (self.folder / "out").read_text().count("# resize at ")

    def disturb(self, seed):
        """Resizes and losses at random; then it ends, with all its ranks."""
        chance, lost = random.Random(seed), 0
        while lost + self.resizes() < 26 and self.process.poll() is None:
            if chance.random() < 0.2:
                lost += self.lose(chance.randrange(4))
            else:
                self.resize(chance)
            time.sleep(0.1 * chance.random())
        self.wait_for(lambda: self.now()[1] == 4)  # or it would begin again in the meantime
        self.goes_further()
        self.stops()
        if verbose:
            print(f"{self.folder.name}: {lost} ranks lost, {self.resizes()} resizes, "
                  f"step {self.step()}")


def fewer_than_train_first():
    """Where fewer are left than --ranks says, all of them train."""
    job = Elastic("fewer-than-ranks", 2, "--max", 2)
    job.lose(1)
    expect(job.now() == (2, 1, 1), f"{job.now()}", job.err())
    os.kill(job.process.pid, signal.SIGTERM)
    job.ends(143, goes_on(rank_1_lost, "1 rank"))


def uneven_shares():
    """A proportion for ranks of which one is lost."""
    job = Job("uneven", ("--max", 2, "--regrow", 60, "--snapshot-every", every), *normed,
              "--balance", "3:1")
    job.kill(1, after=60)
    job.wait_for(lambda: job.err().count("\n") >= 1)
    os.kill(job.process.pid, signal.SIGTERM)
    job.ends(143, goes_on(rank_1_lost, "1 rank"))
    expect("# --balance 3:1: 2 ranks were to train, not 1: workers are shared out evenly" in
           (job.folder / "out").read_text(), "not said")


def disturbed(name, program_of):
    """A job for each seed, of its program, that has had its resizes and losses."""
    jobs = []
    for seed in seeds:
        jobs.append(Elastic(f"{name}-{seed}", 1 + seed % 2, "--max", 4, "--regrow", seed % 2,
                            program=program_of(seed)))
        jobs[-1].disturb(seed)
    return jobs


def at_random():
    """Ranks are resized and killed at random: training has the bits of one rank left alone."""
    jobs = disturbed("random", lambda seed: normed)
    for job, alone in go_on_with_one_left_alone(jobs, normed):
        expect(job.losses() == alone.losses(), f"{job.folder.name}: other losses")
        expect(job.saved() == alone.saved(), f"{job.folder.name}: other bits")


def lost_meanwhile():
    """A rank is lost while the others see to one that was lost before it."""
    program, jobs = (*exact, "--workers", "4"), []
    for number, later in enumerate((0, 0.02, 0.1, 0.3, 0.6) if outlive else (0.1, 0.6)):
        job = Elastic(f"meanwhile-{number}", 4, "--max", 4, "--regrow", 60, program=program)
        jobs.append(job)
        victim = (0, 2)[number % 2]
        job.wait_for(lambda: job.logged() >= 20)
        left = [p for rank in {0, 2, 3} - {victim} for p in job.processes(rank)]
        job.kill(1, after=20)
        time.sleep(later)
        job.wait_for(lambda: job.processes(victim))
        job.kill(victim, after=0)
        job.wait_for(lambda: "with 2 ranks" in job.err() or "with 3 ranks" in job.err())
        job.goes_further()
        if outlive and "all ranks" not in job.err():  # Open MPI 5.0.11 crashes at times
            expect(set(left) <= set(job.processes()), "they did not go on in place", job.err())
        job.stops()
        if verbose:
            print(f"{later} s later: {job.err()}", end="")
    expect(any(job.err().count("was lost") > 1 for job in jobs), "no second loss in any of them",
           "".join(job.err() for job in jobs))
    same_losses(jobs, program)


def all_at_once():
    """Where none is left, others take over."""
    job = Job("all-at-once", ("--max", 3, "--snapshot-every", every), *training)
    job.kill(0, 1, 2, after=120)
    job.wait_for(lambda: "going on with" in job.err())
    job.stops()
    # mpirun 4 at times dies of what it still writes to them (SIGPIPE).
    lost = ("all ranks were lost" if outlive else
            r"((rank \d|a rank) was lost \(signal 9\)|mpirun was lost \(signal 13\))")
    expect(re.search(goes_on(lost, r"\d ranks?"), job.err()), "no line", job.err())
    steps = job.steps()
    expect(steps == list(range(1, len(steps) + 1)), f"steps of the log are {steps}")


def split_at_random():
    """The same with layers that are split: other ranks add up in another order, here in f64."""
    plans = ("owt", "filter")
    jobs = disturbed("split", lambda seed: (*exact, "--plan", plans[seed % 2]))
    same_losses(jobs, exact)


def go_on_with_one_left_alone(jobs, program):
    """One rank goes on from each, to the same step. Yields each with one that did all of it."""
    steps = ("--steps", max(job.step() for job in jobs) + 20)
    alone = Job(f"{jobs[0].folder.name}-alone", None, *program, *steps)
    expect(alone.process.wait(10 * patience) == 0, "left alone", alone.err())
    for job in jobs:
        expect(subprocess.run([*program, "--resume", *map(str, steps)], cwd=job.folder,
                              capture_output=True).returncode == 0, "not to be resumed")
        expect(job.steps() == alone.steps(), f"{job.folder.name}: other steps")
        yield job, alone


def same_losses(jobs, program):
    """But for how f64 rounds."""
    for job, alone in go_on_with_one_left_alone(jobs, program):
        off = max(abs(a - b) / max(b, 1e-3) for a, b in zip(job.losses(), alone.losses()))
        if verbose:
            print(f"{job.folder.name}: losses of {len(alone.losses())} steps are off by {off:.0e}")
        expect(off < 1e-9, f"{job.folder.name}: losses are off by {off}")


def in_place():
    """Where MPI outlives lost ranks: several at once, signals meanwhile, and spare slots."""
    if not outlive:
        return
    job = Job("at-once", ("--max", 5, "--snapshot-every", every), *training)
    job.kill(0, 1, 3, 4, after=120)
    job.wait_for(lambda: "with 1 rank" in job.err())
    job.stops()
    expect(job.err().count("was lost") == 4, "four losses", job.err())
    job.has_restarts((5, 1, r"rank \d was lost(, then rank \d was lost){3}"))
    for number, later in enumerate((0, 0.05, 0.2, 0.5)):
        job = Job(f"asked-in-place{number}", ("--max", 3, "--snapshot-every", every), *training)
        job.kill(1, after=120)
        time.sleep(later)
        job.stops()
        expect(re.search(goes_on("rank 1 was lost", "2 ranks"), job.err()), "no line", job.err())
        expect("# SIGTERM: ended after step" in (job.folder / "out").read_text(), "not in order")
        expect(len(job.saved()) > 1e5, "nothing saved")
    spare = f"{os.uname().nodename}:3"
    job = Job("spare", ("--hosts", spare, "--min", 2, "--max", 2, "--snapshot-every", every),
              *training)
    job.kill(1, after=120)
    job.wait_for(lambda: "with 2 ranks" in job.err())
    job.stops()
    expect(job.err().count("lamina launch: ") == 1, "not one line", job.err())


def killed_launcher():
    for number in signal.SIGKILL, signal.SIGHUP:
        job = Job(f"launcher-{number}", ("--max", 2), *training)
        job.wait_for(lambda: job.logged() >= 20)
        expect(len(job.processes()) >= 3, "expected mpirun and two ranks")
        os.kill(job.process.pid, number)
        job.process.wait()
        job.leaves_nothing()
    job = Job("mpirun-killed", ("--max", 2, "--snapshot-every", every), *training, "--steps", 900)
    job.wait_for(lambda: job.logged() >= 120)
    ranks = job.processes(0) + job.processes(1)
    for process in set(job.processes()) - set(ranks):
        os.kill(process, signal.SIGKILL)
    job.ends(0, goes_on(r"mpirun was lost \(signal 9\)", "2 ranks"))
    expect(job.steps() == list(range(1, 901)), f"steps of the log are {job.steps()}")


# The first time its rank ends, and it takes no note of that; then it does its work, after a word on
# nothing and one on an error.
STUCK = """#!/bin/sh
setpgid='[host0:00315] plm:rsh: Warning: setpgid(321,321) failed in parent with errno='
[ ! -e been ] || echo "${setpgid}Permission denied(13)" >&2
[ ! -e been ] || echo "${setpgid}No such process(3)" >&2
[ ! -e been ] || exec mpirun "$@"
: >been
sleep 0.1 &
exec sleep 1000
"""


def stuck_mpirun():
    job = Job("stuck", ("--max", 1, "--mpirun", script("stuck.sh", STUCK)), *training, "--steps",
              20)
    job.ends(0, r"lamina launch: mpirun was lost \(signal 9\)" + anew,
             r".*Warning: setpgid.*=No such process\(3\)")
    expect(job.steps() == list(range(1, 21)), f"steps of the log are {job.steps()}")


# One rank of two does not come, the first time.
LATE = """#!/bin/sh
[ "$OMPI_COMM_WORLD_RANK" = 0 ] || { [ -e been ] || { >been; exec sleep 1000; }; }
exec "$@"
"""


def never_comes():
    """Ranks do not wait for ever for one that hangs before they have met."""
    job = Job("never-comes", ("--max", 2, "--regrow", 0), script("late.sh", LATE), *training,
              "--steps", 20, LAMINA_COMM_TIMEOUT="20")
    job.ends(0, r"lamina launch: not all ranks came within 20 s \(LAMINA_COMM_TIMEOUT\)",
             f"lamina launch: a rank was lost{anew}")
    expect(job.steps() == list(range(1, 21)), f"steps of the log are {job.steps()}")


# Each time it trains 20 steps more, and ends with an error of its own.
FAILING = """#!/bin/sh
echo again >>tries
"$@" --steps $((20 * $(wc -l <tries)))
exit 3
"""


def tries_again():
    """A program that fails by itself, but gets further: each time later, and not for ever."""
    begin = time.monotonic()
    job = Job("tries-again", ("--max", 1, "--snapshot-every", 5), script("failing.sh", FAILING),
              *training)
    found = job.process.wait(patience)
    lines, failed = [], r".*/failing.sh ended with status 3"
    for step, seconds in ((20, 1), (40, 2), (60, 4)):
        lines += [rf"lamina launch: {failed} after step {step}: trying again in {seconds} s",
                  goes_on(failed, "1 rank")]
    lines.append(rf"lamina: error: {failed} after step 80, the 4th time in a row: given up")
    said = [line for line in job.err().splitlines() if "lamina" in line and "ended with" in line]
    expect(found == 3 and len(said) == len(lines) and all(map(re.fullmatch, lines, said)),
           f"status {found}", job.err())
    expect(time.monotonic() - begin > 7, "tried again at once")
    expect(job.steps() == list(range(1, 81)), f"steps of the log are {job.steps()}")
    job.leaves_nothing()


# Starts two ranks only where none was lost, and again when that is mended.
REFUSING = """#!/bin/sh
[ "$1" = -n ] && ranks=$2 || ranks=$4
[ $ranks = 1 ] || date +%s.%N >>starts
[ $ranks = 1 ] || [ ! -e lost ] || [ -e mended ] || exit 1
exec mpirun "$@"
"""


def cannot_grow():
    """More ranks that cannot be started: tried again, each time after twice as long."""
    job = Job("cannot-grow", ("--max", 2, "--regrow", 1, "--snapshot-every", 10, "--mpirun",
                              " ".join([str(script("refusing.sh", REFUSING)), *outlive])),
              *training, "--steps", "1000000")
    job.wait_for(lambda: job.logged() >= 20)
    (job.folder / "lost").touch()
    job.kill(1, after=20)
    job.wait_for(lambda: job.err().count("could not be started") >= 2)
    (job.folder / "mended").touch()
    job.wait_for(lambda: "with 2 ranks" in job.err())
    os.kill(job.process.pid, signal.SIGTERM)
    fails = "there is room again, then they could not be started"
    job.ends(143, goes_on(rank_1_lost, "1 rank"), goes_on(fails, "1 rank"),
             goes_on(fails, "1 rank"), goes_on("there is room again", "2 ranks"))
    starts = [float(line) for line in (job.folder / "starts").read_text().split()]
    between = [b - a for a, b in zip(starts[1:], starts[2:])]
    expect(len(between) == 2 and between[0] > 5 and between[1] > 10, f"tried after {between} s")
    steps = job.steps()
    expect(steps == list(range(1, len(steps) + 1)), f"steps of the log are {steps[-30:]}")


# On the first of three virtual hosts; the others go by their addresses. The link of the last one is
# cut, and repaired: `enter` stands in for ssh, which would not get through.
LOST_HOST = r"""
enter=$1 lamina=$2
shift 2
cat >agent <<END
#!/bin/sh
host=host\$((\${1##*.} - 1))
shift
ip -n \$host link show eth0 | grep -q ',UP' && exec $enter \$host "\$@"
END
chmod +x agent
export OMPI_MCA_plm_rsh_agent=$PWD/agent PRTE_MCA_plm_ssh_agent=$PWD/agent
wait_for() { for i in $(seq 600); do ! eval "$1" || break; sleep 0.1; done; }
logged() { cat log 2>/dev/null | wc -l; }
"$lamina" launch --hosts host0:1,10.0.0.2:1,10.0.0.3:1 --regrow 1 --snapshot-every 50 -- "$@" &
wait_for '[ $(logged) -gt 120 ]'
ip -n host2 link set eth0 down
wait_for 'grep -q "10.0.0.3 was lost" err'
ip -n host2 link set eth0 up
wait_for 'grep -q "room again" err'
at=$(logged)
wait_for '[ $(logged) -gt $((at + 10)) ]'
kill -TERM $!
wait $!
"""


def lost_host():
    job = Job("lost-host", None, cluster / "run", "--hosts", 3, "--alone", "--", "bash", "-c",
              LOST_HOST, "bash", cluster / "enter", *training[:1], *training)
    try:
        if job.process.wait(patience) == 77:
            print(f"without hosts: {job.err()}", end="")
            return
    except subprocess.TimeoutExpired:
        job.process.kill()
    out = job.ends(143, goes_on("host 10.0.0.3 was lost", "2 ranks"),
                   goes_on("there is room again", "3 ranks"))
    for line in out.splitlines():
        check_restart(line)
    steps = job.steps()
    expect(steps == list(range(1, len(steps) + 1)), f"steps of the log are {steps}")


finish((same_ranks, asked_while_a_rank_is_replaced, fewer_and_more, given_up, given_up_saved,
        fewer_than_train_first, uneven_shares, lost_meanwhile, all_at_once, at_random,
        split_at_random, in_place, killed_launcher, stuck_mpirun, never_comes, tries_again,
        cannot_grow, lost_host))
