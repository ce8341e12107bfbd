# What is compared: models, dtypes, ranks, plans, batches; optimizers and schedules.
from dataclasses import dataclass, replace

PLANS = ("data", "owt", "spatial", "filter")
RANDOM_PLANS = 2  # for each number of ranks

# The flags of a step whose momentum is the gradient.
STEP = {"optimizer": "sgd", "lr": 0.02, "momentum": 0.9}


@dataclass(frozen=True)
class Model:
    name: str
    size: int               # of an image, height and width
    batches: tuple          # per rank
    width: float = 1        # of hidden channels and features
    plans: tuple = PLANS
    random_plans: int = RANDOM_PLANS
    channels: int = 3
    exact_batches: tuple = None  # in f64; None: the same

    @property
    def label(self):
        width = "" if self.width == 1 else f"*{self.width:g}"
        return f"{self.name}{width}@{self.size}"

    @property
    def norms(self):
        """Whether statistics are of the global batch; of both kinds where there is batch norm."""
        return (False, True) if self.name.startswith("resnet") else (False,)


# The largest models have fewer images of fewer pixels, fewer channels, or are tried under fewer
# plans, so that f64, which the reference back end computes, takes seconds.
MODELS = {m.name: m for m in (
    Model("lenet", 28, (4, 8, 16, 64), channels=1),
    Model("resnet20", 32, (4, 8, 16, 64), exact_batches=(4, 8, 16)),
    Model("resnet18", 64, (4, 8, 16), exact_batches=(4,)),
    Model("resnet50", 64, (4, 8), exact_batches=(4,)),
    Model("alexnet", 224, (4, 8), width=0.25, exact_batches=(4,)),
    Model("vgg11", 224, (4, 8), width=0.125, exact_batches=(4,)),
    Model("resnet56", 32, (4, 8), exact_batches=(4,), plans=("data", "spatial", "filter"),
          random_plans=1),
    Model("resnet34", 64, (4, 8), exact_batches=(4,), plans=("spatial", "filter"),
          random_plans=1),
    Model("vgg13", 224, (8,), width=0.125, exact_batches=(), plans=("spatial",), random_plans=1),
    Model("vgg16", 224, (8,), width=0.125, exact_batches=(), plans=("spatial",), random_plans=1),
    Model("vgg19", 224, (8,), width=0.125, exact_batches=(4,), plans=("spatial",),
          random_plans=1),
)}

# Twelve steps, four to an epoch: every optimizer with another schedule and warm-up.
RECIPES = {
    "sgd, step": {"optimizer": "sgd", "lr": 0.05, "momentum": 0, "schedule": "step:0.5,0.5"},
    "momentum, multistep, warm-up": {
        "optimizer": "sgd", "lr": 0.02, "momentum": 0.9, "weight-decay": 5e-4,
        "schedule": "multistep:1.5,2,0.1", "warmup-epochs": 1},
    "nesterov, cosine, warm-up": {
        "optimizer": "sgd", "lr": 0.02, "momentum": 0.9, "nesterov": True, "weight-decay": 1e-3,
        "schedule": "cosine", "warmup-epochs": 1},
    "clipped, weights decay, poly:2": {
        "optimizer": "sgd", "lr": 0.05, "momentum": 0.9, "weight-decay": 1e-2, "decay": "weights",
        "clip-norm": 0.5, "schedule": "poly:2"},
    "adam, cosine": {
        "optimizer": "adam", "lr": 1e-3, "weight-decay": 1e-2, "schedule": "cosine"},
    "adamw, poly, warm-up": {
        "optimizer": "adamw", "lr": 1e-3, "weight-decay": 0.05, "schedule": "poly:1",
        "warmup-epochs": 0.5, "label-smoothing": 0.1},
    "lars, constant, warm-up": {
        "optimizer": "lars", "lr": 2, "momentum": 0.9, "weight-decay": 1e-4,
        "warmup-epochs": 1.5},
    "sgd, warm-up of half a step": {
        "optimizer": "sgd", "lr": 0.02, "momentum": 0.9, "warmup-epochs": 0.125},
    "sgd, warm-up of 2.5 steps": {
        "optimizer": "sgd", "lr": 0.02, "momentum": 0.9, "warmup-epochs": 0.625},
}


@dataclass(frozen=True)
class Case:
    model: Model
    dtype: str
    ranks: int
    batch: int                # global
    plan: str                 # a built-in one, or "random"
    seed: int = 0             # of a random plan
    global_norm: bool = False
    threads: int = 1
    isas: tuple = ()          # DNNL_MAX_CPU_ISA by rank, over and over; empty: the machine's
    recipe: str = ""          # of RECIPES; empty: one step

    @property
    def flags(self):
        return RECIPES.get(self.recipe, STEP)

    @property
    def name(self):
        plan = f"random {self.seed}" if self.plan == "random" else self.plan
        per_rank = self.batch / self.ranks
        words = [self.model.label, self.dtype,
                 f"{self.ranks}x{per_rank:g}", plan,
                 *(["global norm"] if self.global_norm else []),
                 *([f"{self.threads} threads"] if self.threads > 1 else []),
                 *(["+".join(self.isas)] if self.isas else []),
                 *([self.recipe] if self.recipe else [])]
        return ", ".join(words)


def steps_of(model):
    """The cases of one step of a model, those of one batch together, since they share what PyTorch
    finds."""
    for batch in sorted({*model.batches, *(model.exact_batches or ())}):
        for ranks in (1, 2, 3):
            for dtype in ("f64", "f32"):
                batches = model.batches if dtype == "f32" or model.exact_batches is None else (
                    model.exact_batches)
                if batch not in batches:
                    continue
                yield from plans_of(model, dtype, ranks, ranks * batch)


def plans_of(model, dtype, ranks, batch):
    one = Case(model, dtype, ranks, batch, "data")
    if ranks < 3 and dtype == "f32":  # the reference back end has one thread
        yield replace(one, threads=2, plan="data" if ranks == 1 else "spatial")
    if ranks == 1:
        yield one
        return
    if "data" in model.plans:
        for global_norm in model.norms:
            yield replace(one, global_norm=global_norm)
    for i, plan in enumerate(p for p in model.plans if p != "data"):
        yield replace(one, plan=plan, global_norm=model.norms[i % len(model.norms)])
    for seed in range(model.random_plans):
        # Another plan for each batch and dtype.
        drawn = 100 * batch + 10 * (dtype == "f32") + seed
        yield replace(one, plan="random", seed=drawn, global_norm=model.norms[seed % 2 - 1])


def trainings():
    lenet, residual = MODELS["lenet"], replace(MODELS["resnet20"], size=16)
    dropping = replace(MODELS["alexnet"], width=0.0625)
    for i, recipe in enumerate(RECIPES):
        for dtype in ("f64", "f32"):
            yield Case(lenet, dtype, 1, 12, "data", recipe=recipe)
            yield Case(lenet, dtype, 3, 12, PLANS[1 + i % 3], recipe=recipe)
            yield Case(lenet, dtype, 2, 12, "random", seed=3 * i, recipe=recipe)
            yield Case(residual, dtype, 2, 12, "random", seed=i, global_norm=i % 2 == 0,
                       recipe=recipe)
    for recipe in ("nesterov, cosine, warm-up", "adam, cosine"):
        for dtype in ("f64", "f32"):
            yield Case(dropping, dtype, 2, 12, "owt", recipe=recipe)


def instruction_sets():
    """f32 by other kernels of oneDNN than this machine's best, and by unlike ones on two ranks."""
    for model in ("lenet", "resnet20", "resnet18"):
        for isas in (("SSE41",), ("AVX2",), ("AVX512_CORE", "AVX2")):
            for plan in ("spatial", "filter", "random"):
                yield Case(MODELS[model], "f32", 2, 16, plan, seed=7 * len(plan), isas=isas)


def narrow():
    """A step in bf16."""
    for name in ("lenet", "resnet20", "resnet18", "resnet50", "alexnet", "vgg11"):
        model = MODELS[name]
        yield Case(model, "bf16", 1, 8, "data", threads=2)
        for plan in model.plans:
            yield Case(model, "bf16", 2, 16, plan, global_norm=model.norms[-1])
        yield Case(model, "bf16", 2, 16, "random", seed=5, global_norm=model.norms[-1])


def comes_first(case):
    """A case of each model, dtype and plan, so that a limit of time leaves out none of them."""
    return case.ranks == 2 and case.threads == 1 and case.batch == (
        8 if case.dtype == "f64" else 16)


def all_cases():
    steps = [c for model in MODELS.values() for c in steps_of(model)]
    first = [c for c in steps if comes_first(c)]
    return list(dict.fromkeys((*first, *narrow(), *trainings(), *instruction_sets(), *steps)))
