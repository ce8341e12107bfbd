# The lines and the table of `./dev parity`.

KINDS = ("loss", "gradients", "state", "weights", "statistics", "evaluation", "rate")
COLUMNS = ("loss", "gradients", "weights", "statistics", "evaluation")
HEADER = f"{'case':<58}" + "".join(f"{c:>12}" for c in COLUMNS) + f"{'f32: torch':>12}  verdict"


def is_off(r):
    return bool(r["failure"]) or any(w["wrong"] for w in r["kinds"].values())


def figure(x):
    return f"{x:.1e}"


def line(r, verbose=False):
    """A case: the worst error of each kind of values; PyTorch's own, of the worst gradient."""
    if r["failure"]:
        return f"{r['case']:<58} FAILED: {r['failure']}"
    kinds = dict(r["kinds"])
    if "state" in kinds:
        kinds["gradients"] = kinds["state"]
    text = f"{r['case']:<58}"
    for column in COLUMNS:
        text += f"{figure(kinds[column]['error']) if column in kinds else '-':>12}"
    own = kinds["gradients"]["torch"] if "gradients" in kinds else 0
    text += f"{figure(own) if own else '-':>12}  "
    off = [w for w in r["kinds"].values() if w["wrong"]]
    if not off:
        return text + "right"
    text += "OFF: " + ", ".join(f"{w['wrong']} of {w['count']} {w['kind']}" for w in off)
    for w in off if verbose else []:
        text += (f"\n    {w['kind']}: {w['name']}: {figure(w['error'])}, "
                 f"allowed {figure(w['allowed'])}")
    return text


def page(done, left, program):
    raise NotImplementedError
