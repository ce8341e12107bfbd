# Whether two runs agree: the error of each tensor and number, and what is allowed.
import math
from dataclasses import dataclass

# All are relative to the norm of what PyTorch has in f64.
F64_STEP = 1e-10     # rounding, through as many layers as there are
F64_TRAINED = 1e-9   # after several steps, each of which amplifies it
# An error in f32 may be so many times that of PyTorch in f32, or this much where that happens to
# be small. Winograd's transforms amplify rounding by some ten.
F32_TIMES = 20
F32_STEP = 2e-5
# Where two values in a window of a maximum pool are alike but for rounding, f32 may take the other
# one. An error may be so many times what changes, in f64, where all windows with values nearer than
# that (see networks.tied) take the other one: some may do so, and what they change may cancel.
F32_TIED, F32_TIE = 4, 2e-5
F32_TRAINED = 5e-2   # ReLUs, too, take the other side
# bf16 has 8 bits, and rounding is all that an error consists of, PyTorch's as well.
BF16_TIMES, BF16_STEP = 3, 1e-2


def norm(values):
    return float(values.norm()) if hasattr(values, "norm") else abs(values)


def error(mine, theirs):
    """|mine - theirs| / |theirs|; infinite where they cannot be compared."""
    if getattr(mine, "shape", None) != getattr(theirs, "shape", None):
        return math.inf
    difference, size = norm(mine - theirs), norm(theirs)
    if not math.isfinite(difference):
        return math.inf
    return difference / size if size > 0 else difference


def kind_of(name, steps):
    if name.startswith("optimizer."):  # after one step of SGD the momentum is the gradient
        return "gradients" if steps == 1 else "state"
    return "statistics" if ".running_" in name else "weights"


@dataclass
class Worst:
    """Of one kind of values, the one that is worst against what is allowed."""
    kind: str
    name: str = ""
    error: float = 0.0
    torch: float = 0.0    # PyTorch's own error in f32
    allowed: float = 0.0
    wrong: int = 0        # values beyond what is allowed
    count: int = 0

    def add(self, name, mine, torch, allowed):
        self.count += 1
        self.wrong += not mine <= allowed
        # A NaN is worse than all.
        if not self.name or not mine / allowed <= self.error / self.allowed:
            self.name, self.error, self.torch, self.allowed = name, mine, torch, allowed


class Judge:
    """Compares runs with that of PyTorch in f64. `single`: PyTorch's run in f32 where f32 is
    judged, or in bf16 where that is (`narrow`); `tied`: its run in f64 where ties in maximum pools
    go the other way; `steps`: as many as were done."""

    def __init__(self, exact, single=None, tied=None, steps=1, narrow=False):
        self.exact, self.single, self.tied, self.steps = exact, single, tied, steps
        self.narrow = narrow

    def allowed(self, name, torch):
        if self.single is None:
            return F64_STEP if self.steps == 1 else F64_TRAINED
        if self.narrow:
            return max(BF16_STEP, BF16_TIMES * torch)
        least = F32_STEP if self.steps == 1 else F32_TRAINED
        if self.tied and name in self.tied[1]:
            least += F32_TIED * error(self.tied[1][name], self.exact[1][name])
        return max(least, F32_TIMES * torch)

    def verdict(self, lines, tensors):
        """The worst of each kind, by kind."""
        worst = {}

        def compare(kind, name, mine, exact, single):
            torch = 0.0 if single is None else error(single, exact)
            worst.setdefault(kind, Worst(kind)).add(name, error(mine, exact), torch,
                                                    self.allowed(name, torch))

        exact_lines, exact_tensors = self.exact
        single_lines, single_tensors = self.single or (None, None)
        self.same_names([f"line {i}" for i in range(len(lines))],
                        [f"line {i}" for i in range(len(exact_lines))], worst)
        self.same_names(tensors, exact_tensors, worst)
        for i, (mine, exact) in enumerate(zip(lines, exact_lines)):
            single = single_lines[i] if single_lines else None
            kind = "loss" if "step" in exact else "evaluation"
            place = f"step {exact['step']}" if "step" in exact else "evaluation"
            compare(kind, f"loss, {place}", mine.get("loss") or math.nan, exact["loss"],
                    single and single["loss"])
            self.count_hits(worst, kind, place, mine, exact)
            if "rate" in exact:  # f64 in any case
                worst.setdefault("rate", Worst("rate")).add(
                    place, error(mine["rate"], exact["rate"]), 0.0, 1e-12)
        for name in sorted(exact_tensors.keys() & tensors.keys()):
            compare(kind_of(name, self.steps), name, tensors[name].double(), exact_tensors[name],
                    single_tensors[name] if single_tensors else None)
        return worst

    def count_hits(self, worst, kind, place, mine, exact):
        """Of hits none may differ, but one image in f32 or bf16, where two classes may be as
        likely."""
        for what in ("top1", "top5"):
            if what in exact:
                difference = abs(mine[what] - exact[what])
                slack = 0.0 if self.single is None else 1 / exact["samples"]
                worst.setdefault(kind, Worst(kind)).add(f"{what}, {place}", difference, 0.0,
                                                        slack + 1e-9)

    @staticmethod
    def same_names(mine, theirs, worst):
        for name in sorted(set(mine) ^ set(theirs)):
            worst.setdefault("names", Worst("names")).add(
                f"{name}, only in {'Lamina' if name in mine else 'PyTorch'}", math.inf, 0.0, 1e-9)
