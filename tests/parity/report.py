# The lines and the page of `./dev parity`.
import collections
import re

import torch

import judge
from cases import PLANS

ORDER = ("f64", "f32", "bf16")
COLUMNS = ("loss", "gradients", "weights", "statistics", "evaluation")
HEADER = f"{'case':<64}" + "".join(f"{c:>12}" for c in COLUMNS) + f"{'torch':>12}  verdict"


def is_off(r):
    return bool(r["failure"]) or any(w["wrong"] for w in r["kinds"].values())


def figure(x):
    return f"{x:.1e}"


def gradients(r):
    """The worst gradient, or after several steps the worst state of the optimizer."""
    return r["kinds"].get("gradients") or r["kinds"].get("state")


def line(r, verbose=False):
    """A case: the worst error of each kind of values; PyTorch's own, of the worst gradient."""
    if r["failure"]:
        return f"{r['case']:<64} FAILED: {r['failure']}"
    kinds = {**r["kinds"], "gradients": gradients(r)}
    text = f"{r['case']:<64}"
    for column in COLUMNS:
        worst = kinds.get(column)
        text += f"{figure(worst['error']) if worst else '-':>12}"
    own = kinds["gradients"]["torch"] if kinds["gradients"] else 0
    text += f"{figure(own) if own else '-':>12}  "
    off = [w for w in r["kinds"].values() if w["wrong"]]
    if not off:
        return text + "right"
    text += "OFF: " + ", ".join(f"{w['wrong']} of {w['count']} {w['kind']}" for w in off)
    for w in off if verbose else []:
        text += (f"\n    {w['kind']}: {w['name']}: {figure(w['error'])}, "
                 f"allowed {figure(w['allowed'])}")
    return text


# ---- the page -----------------------------------------------------------------------------------

def cell(results, value):
    """The worst of some cases; off where one of them is."""
    if not results:
        return "-"
    if any(is_off(r) for r in results):
        return "**off**"
    values = [v for v in map(value, results) if v is not None]
    return figure(max(values)) if values else "-"


def gradient_error(r):
    return gradients(r) and gradients(r)["error"]


def own_error(r):
    return gradients(r) and gradients(r)["torch"]


def other_error(r):
    return max((w["error"] for k, w in r["kinds"].items() if k != "gradients"), default=None)


def any_error(r):
    return max((w["error"] for w in r["kinds"].values()), default=None)


def rows(table):
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    table = [table[0], ["-" * w for w in widths], *table[1:]]
    return "\n".join("| " + " | ".join(c.ljust(w) for c, w in zip(row, widths)) + " |"
                     for row in table) + "\n"


def grouped(results, *keys):
    groups = collections.OrderedDict()
    for r in results:
        groups.setdefault(tuple(r[k] for k in keys), []).append(r)
    return groups


def steps_table(results):
    table = [["model", "dtype", "threads", "ranks x batch", *PLANS, "random", "PyTorch's own",
              "other values"]]
    order = {name: i for i, name in enumerate(dict.fromkeys(r["model"] for r in results))}
    results = sorted(results, key=lambda r: (order[r["model"]], ORDER.index(r["dtype"]),
                                             r["threads"], r["isas"], r["ranks"], r["batch"]))
    for (model, dtype, threads, isas, ranks, batch), found in grouped(
            results, "model", "dtype", "threads", "isas", "ranks", "batch").items():
        by_plan = [cell([r for r in found if r["plan"] == p], gradient_error)
                   for p in (*PLANS, "random")]
        table.append([model, f"{dtype} {isas}".strip(), str(threads), f"{ranks} x {batch:g}",
                      *by_plan, figure(max(own_error(r) or 0 for r in found))
                      if dtype != "f64" else "-", cell(found, other_error)])
    return rows(table)


def trainings_section(results):
    if not results:
        return ""
    runs = dict.fromkeys((r["model"], r["ranks"]) for r in results)
    table = [["optimizer, schedule", "dtype", *(f"{m}, {n}" for m, n in runs)]]
    for (recipe, dtype), found in grouped(results, "recipe", "dtype").items():
        table.append([recipe, dtype, *(cell([r for r in found if (r["model"], r["ranks"]) == run],
                                            any_error) for run in runs)])
    return TRAININGS.format(trainings=rows(table))


PAGE = """\
# Compared with PyTorch

`./dev parity` trains every model by Lamina and by PyTorch from the same weights on the same images
and compares losses, gradients, updated weights, running statistics and the evaluation of images
that were not trained on. It makes a virtual environment with PyTorch of its own (`build/parity`,
some 600 MB from the Python package index), so it is no part of `./dev test`; it is run before a
release, and this page is what it wrote then (`./dev parity --table docs/parity.md`).

```sh
./dev parity --minutes 30            # what half an hour allows; the next call goes on from there
./dev parity --only 'resnet20.*2x8'  # the cases whose names match; --list prints the names
./dev parity --isa AVX2              # f32 by other kernels of oneDNN
./dev parity --isa AVX512_CORE,AVX2  # by these on even ranks, by those on odd ones
```

A figure is |Lamina - PyTorch in f64| / |PyTorch in f64| of a tensor (2-norm), the worst of all
tensors and cases that it stands for.

- **f64** is the reference back end. One step may be off by {f64_step}, twelve by {f64_trained}.
- **f32** is oneDNN. A tensor may be off {times} times as far as PyTorch's own f32, or {f32_step}.
  Where a ReLU is at its kink, rounding decides whether a gradient passes: nobody is wrong, and the
  gradient differs by 1e-3. So one step in f32 begins with biases that keep each ReLU away from its
  kink: three quarters of the channels above, the others below. Maximum pools have the same where
  two values of a window are alike but for rounding: of gradients below them {tied} times as much is
  allowed in addition as changes, in f64, where windows with values nearer than {tie} standard
  deviations take the other one.
- **bf16** is oneDNN, too, from the same weights as f32, and PyTorch's autocast beside it. A tensor
  may be off {bf16_times} times as far as that, or {bf16_step}.
- **Batch norm** has statistics of each part of the batch, as the plan cuts it, or of the whole one;
  PyTorch does the same. **Dropout** has Lamina's masks, which Python can draw as well.
- **Random plans** are drawn anew for each row: splits of all kinds, half of the layers recomputed
  in every second one, the optimizer sharded in every third one.
- The largest models have fewer images, of 64x64 in place of 224x224, or a fraction of the channels
  (`vgg11*0.125`), so that the reference back end takes seconds. All have 10 classes.
- Before anything else {mutants} are put into a result, such as a sign that is flipped in one
  channel of one gradient, and the judge must see each.

{date}: {about};
PyTorch {torch} (its oneDNN: {torch_onednn}).
{count} cases, {off}.{left}
{names}
## One step

The worst gradient under each plan; the same of PyTorch in f32 or bf16 itself; and the worst of all
other values: loss, updated weights, running statistics, evaluation.

{steps}{trainings}"""

TRAININGS = """
## Optimizers and schedules

Twelve steps, four to an epoch: the worst of all losses, rates, weights and states. A column is a
model and a number of ranks. PyTorch has no LARS: there its SGD has gradients that were scaled as
the paper says.

{trainings}"""


def page(done, left, mutants):
    off = sum(map(is_off, done))
    about = next((r["about"] for r in reversed(done) if r["about"]), "")
    return PAGE.format(
        f64_step=f"{judge.F64_STEP:g}", f64_trained=f"{judge.F64_TRAINED:g}",
        times=judge.F32_TIMES, f32_step=f"{judge.F32_STEP:g}", tied=judge.F32_TIED,
        tie=f"{judge.F32_TIE:g}", bf16_times=judge.BF16_TIMES, bf16_step=f"{judge.BF16_STEP:g}",
        mutants=f"{mutants} errors", date=max(r["date"] for r in done),
        about=re.sub(r", \d+ threads?$", "", about),
        torch=torch.__version__, torch_onednn=torch_onednn(), count=len(done),
        off=f"{off} off" if off else "none off",
        names="".join(f"\n- off: {r['case']}" for r in done if is_off(r)) + "\n" * bool(off),
        left=f" {left} were not run." if left else "",
        steps=steps_table([r for r in done if not r["recipe"]]),
        trainings=trainings_section([r for r in done if r["recipe"]]))


def torch_onednn():
    for text in torch.__config__.show().splitlines():
        if "MKL-DNN v" in text:
            return text.split("MKL-DNN v")[1].split()[0]
    return "unknown"
