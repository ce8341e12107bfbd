"""How fast PyTorch trains a model of Lamina's on this machine's processors: a line of JSON.

usage: pytorch_rate.py MODEL BATCH --dtype f32|bf16 --mode eager|channels_last|compile|all
                       [--inference] [--threads N] [--steps N] [--warmup N]

SGD with momentum on synthetic data, as bench_network does it. bf16 is autocast: weights and updates
stay f32. `all` is channels_last and compile at once.

With --inference: how fast it answers, as bench_inference does it, from images in f32 to logits in
f32. bf16's weights are bf16 then, and what is compiled takes them for constants.
"""
import argparse, json, pathlib, statistics, sys, time

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests/parity"))
import torch
from torch import nn
import networks

parser = argparse.ArgumentParser(usage=__doc__)
parser.add_argument("model")
parser.add_argument("batch", type=int)
parser.add_argument("--dtype", default="f32")
parser.add_argument("--mode", default="eager")
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--warmup", type=int, default=2)
parser.add_argument("--inference", action="store_true")
o = parser.parse_args()
if o.threads:
    torch.set_num_threads(o.threads)
torch.manual_seed(1)
networks.rectify = lambda x, bias: x.relu_()  # in place, as torchvision's models do


def plain(module):
    """PyTorch's own dropout for that which takes a given mask."""
    for name, child in module.named_children():
        if isinstance(child, networks.Dropout):
            setattr(module, name, nn.Dropout(child.rate))
        else:
            plain(child)
    return module


model = plain(networks.MODELS[o.model](1000, 1))
if o.inference:
    torch.set_grad_enabled(False)
    model.eval()
    if o.dtype == "bf16":
        model = model.to(torch.bfloat16)
    if o.mode in ("compile", "all"):
        import torch._inductor.config
        torch._inductor.config.freezing = True
x = torch.randn(o.batch, 3, 224, 224)
labels = torch.randint(1000, (o.batch,))
if o.mode in ("channels_last", "all"):
    model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
forward = torch.compile(model) if o.mode in ("compile", "all") else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)


def autocast():
    return torch.autocast("cpu", torch.bfloat16, enabled=o.dtype == "bf16")


def train():
    optimizer.zero_grad(set_to_none=True)
    with autocast():
        loss = nn.functional.cross_entropy(forward(x), labels)
    loss.backward()
    optimizer.step()
    return loss.item()


def answer():
    return forward(x.to(torch.bfloat16) if o.dtype == "bf16" else x).float()


step = answer if o.inference else train
for _ in range(o.warmup):
    step()
times = []
for _ in range(o.steps):
    begin = time.perf_counter()
    step()
    times.append(time.perf_counter() - begin)
print(json.dumps({"rate": o.batch / statistics.median(times)}))
