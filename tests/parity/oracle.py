# What PyTorch makes of a run: losses, rates, gradients, weights, running statistics, evaluation.
import math

import numpy
import torch
from safetensors.torch import load_file
from torch.nn import functional
from torch.optim import lr_scheduler

import networks


# ---- Lamina's random numbers (base/random.hpp), of which dropout's masks are made ----------------

def mix(x):
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def words(seed, key0, key1, count):
    """The first words of a stream: Philox4x32-10."""
    key, low = mix((mix(seed) + key0) % 2**64), numpy.uint64(0xFFFFFFFF)
    blocks = numpy.arange((count + 3) // 4, dtype=numpy.uint64)
    same = numpy.ones_like(blocks)
    c = [blocks & low, blocks >> numpy.uint64(32), same * numpy.uint64(key1 & 0xFFFFFFFF),
         same * numpy.uint64(key1 >> 32)]
    k0, k1, half = key & 0xFFFFFFFF, key >> 32, numpy.uint64(32)
    for _ in range(10):
        a, b = numpy.uint64(0xD2511F53) * c[0], numpy.uint64(0xCD9E8D57) * c[2]
        c = [b >> half ^ c[1] ^ numpy.uint64(k0), b & low, a >> half ^ c[3] ^ numpy.uint64(k1),
             a & low]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return numpy.stack(c, 1).reshape(-1)[:count]


def dropout_mask(seed, step, layer, rate, shape):
    first = [int(w) for w in words(seed, step, layer, 2)]
    uniform = (words(first[0] << 32 | first[1], 0, 0, math.prod(shape)) >> numpy.uint64(8)) / 2**24
    return torch.from_numpy((uniform >= rate).reshape(tuple(shape)))


def give_masks(model, seed, step):
    """Keyed by the number of the layer in Lamina's network: the input, features, average, ..."""
    for name, module in networks.dropouts(model):
        layer = len(model.features) + 2 + int(name.split(".")[1])
        module.mask = lambda shape, n=layer, r=module.rate: dropout_mask(seed, step, n, r, shape)


# ---- optimizers and schedules --------------------------------------------------------------------

def make_optimizer(model, o):
    named = list(model.named_parameters())
    plain = [p for n, p in named if p.dim() == 1]
    groups = [{"params": [p for n, p in named if p.dim() > 1], "weight_decay": o.weight_decay},
              {"params": plain, "weight_decay": o.weight_decay if o.decay == "all" else 0}]
    if o.optimizer == "adam":
        return torch.optim.Adam(groups, lr=o.lr)
    if o.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=o.lr)
    if o.optimizer == "lars":  # PyTorch has none: SGD, of gradients that scale() has scaled
        groups[0]["weight_decay"] = groups[1]["weight_decay"] = 0
    return torch.optim.SGD(groups, lr=o.lr, momentum=o.momentum, nesterov=o.nesterov)


def scale(model, o):
    """What is done to gradients before the update: clipping, and the layer-wise rates of LARS."""
    if o.clip_norm > 0:  # torch.nn.utils.clip_grad_norm_ adds 1e-6 to the norm
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()]).item()
        for p in model.parameters():
            p.grad *= min(1.0, o.clip_norm / norm)
    if o.optimizer == "lars":
        for p in model.parameters():
            if p.dim() > 1:
                w, dw = p.detach().double().norm().item(), p.grad.double().norm().item()
                p.grad += o.weight_decay * p.detach()
                p.grad *= 1e-3 * w / (dw + o.weight_decay * w)


def make_schedule(optimizer, o, per_epoch, total):
    """A linear ramp over the warm-up's steps, then the schedule; drops count from the start."""
    kind, _, text = o.schedule.partition(":")
    numbers = [float(n) for n in text.split(",")] if text else []
    warm = math.ceil(o.warmup_epochs * per_epoch - 1e-9)
    ramp = lr_scheduler.LinearLR(optimizer, 1 / max(1, warm), 1, max(1, warm - 1))
    if kind == "step":
        drops = lr_scheduler.StepLR(optimizer, int(numbers[0] * per_epoch), numbers[1])
        return lr_scheduler.ChainedScheduler([ramp, drops])
    if kind == "multistep":
        at = [int(n * per_epoch) for n in numbers[:-1]]
        drops = lr_scheduler.MultiStepLR(optimizer, at, numbers[-1])
        return lr_scheduler.ChainedScheduler([ramp, drops])
    if kind == "constant":
        return ramp
    after = (lr_scheduler.CosineAnnealingLR(optimizer, total - warm) if kind == "cosine" else
             lr_scheduler.PolynomialLR(optimizer, total - warm, numbers[0] if numbers else 1))
    return lr_scheduler.SequentialLR(optimizer, [ramp, after], [warm]) if warm else after


# ---- a run ---------------------------------------------------------------------------------------

def hits(logits, labels, best):
    return (logits.topk(best).indices == labels[:, None]).any(1).sum().item()


def load_images(path, dtype):
    images = load_file(path)
    return images["pixels"].to(dtype) / 64 - 2, images["labels"].long()


def train(o, weights, images, parts, dtype):
    """`o` has the flags of parity_run. Returns the lines of its log and what is in its checkpoint,
    in f64. With bf16 PyTorch decides what of it is in f32 (autocast)."""
    if dtype == torch.bfloat16:
        with torch.autocast("cpu", dtype):
            return train(o, weights, images, parts, torch.float32)
    model = networks.MODELS[o.model](o.classes, o.width)
    model.load_state_dict(load_file(weights), strict=False)
    model.to(dtype)
    networks.set_parts(model, parts)
    x, labels = load_images(images, dtype)
    per_epoch = o.train_images // o.global_batch
    total = o.steps or per_epoch * o.epochs
    optimizer = make_optimizer(model, o)
    schedule = make_schedule(optimizer, o, per_epoch, total)
    lines = []
    model.train()
    for step in range(total):
        rows = slice(step % per_epoch * o.global_batch, (step % per_epoch + 1) * o.global_batch)
        give_masks(model, o.seed, step)
        logits = model(x[rows])
        loss = functional.cross_entropy(logits, labels[rows], label_smoothing=o.label_smoothing)
        optimizer.zero_grad()
        loss.backward()
        scale(model, o)
        lines.append({"step": step + 1, "samples": o.global_batch, "loss": loss.item(),
                      "top1": hits(logits, labels[rows], 1) / o.global_batch,
                      "rate": optimizer.param_groups[0]["lr"]})
        optimizer.step()
        schedule.step()
    lines.append(evaluate(model, o, x, labels))
    return lines, tensors(model, optimizer)


@torch.no_grad()
def evaluate(model, o, x, labels):
    model.eval()
    rows = slice(o.train_images, o.train_images + o.eval_images)
    logits = model(x[rows])
    loss = functional.cross_entropy(logits, labels[rows], label_smoothing=o.label_smoothing)
    return {"samples": o.eval_images, "loss": loss.item(),
            "top1": hits(logits, labels[rows], 1) / o.eval_images,
            "top5": hits(logits, labels[rows], 5) / o.eval_images}


def tensors(model, optimizer):
    """Under the names of Lamina's checkpoints."""
    found = {n: t for n, t in model.state_dict().items() if not n.endswith("num_batches_tracked")}
    for name, module in model.named_modules():
        for kept, rows in (getattr(module, "local", None) or {}).items():
            found[f"local/{name}.{kept}"] = rows
    for name, p in model.named_parameters():
        state = optimizer.state.get(p, {})
        for key, number in (("momentum_buffer", 0), ("exp_avg", 0), ("exp_avg_sq", 1)):
            if state.get(key) is not None:
                found[f"optimizer.{number}/{name}"] = state[key]
    return {n: t.detach().double() for n, t in found.items()}


# ---- inputs --------------------------------------------------------------------------------------

@torch.no_grad()
def make_weights(model_name, classes, width, x, apart):
    """A state of the model, f32, whose running statistics fit the images x. `apart`: no ReLU is
    near its kink."""
    torch.manual_seed(5)
    model = networks.MODELS[model_name](classes, width)
    networks.initialise(model, "linear" if apart else "relu")
    norms = [m for m in model.modules() if isinstance(m, networks.BatchNorm)]
    for m in norms:
        m.momentum = 1
    give_masks(model, 0, 0)
    networks.settle = networks.settle_apart if apart else None
    model.train()(x)
    networks.settle = None
    for m in norms:  # of other images, as it were
        m.running_mean += 0.1 * torch.randn_like(m.running_mean) * m.running_var.sqrt()
        m.running_var *= torch.empty_like(m.running_var).uniform_(0.8, 1.25)
    return {n: t.contiguous() for n, t in model.state_dict().items()
            if not n.endswith("num_batches_tracked")}


def make_images(count, channels, size, classes):
    generator = torch.Generator().manual_seed(7)
    pixels = torch.randint(0, 256, (count, channels, size, size), generator=generator)
    labels = torch.randint(0, classes, (count,), generator=generator, dtype=torch.int32)
    return {"pixels": pixels.to(torch.int32), "labels": labels}
