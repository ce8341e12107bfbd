"""How fast PyTorch trains a model of Lamina's on this machine's processors or GPU: a line of JSON.

usage: pytorch_rate.py MODEL BATCH --dtype f32|tf32|bf16 --mode MODE [--device cpu|cuda]
                       [--inference] [--threads N] [--steps N] [--warmup N]

MODE is eager, channels_last, compile, all = channels_last and compile at once; on a GPU also graphs
and all_graphs: channels_last, or all, with the whole step as one CUDA graph.

SGD with momentum on synthetic data, as bench_network does it. bf16 is autocast: weights and updates
stay f32. f32 is exact, tf32 is f32 that may be multiplied as TF32.

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
parser.add_argument("--device", default="cpu")
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--warmup", type=int, default=2)
parser.add_argument("--inference", action="store_true")
o = parser.parse_args()
if o.threads:
    torch.set_num_threads(o.threads)
torch.manual_seed(1)
on_gpu = o.device == "cuda"
torch.backends.cudnn.benchmark = True  # the fastest of cuDNN's ways, by its clock
torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = o.dtype == "tf32"
channels_last = o.mode in ("channels_last", "all", "graphs", "all_graphs")
compiled = o.mode in ("compile", "all", "all_graphs")
captured = o.mode in ("graphs", "all_graphs")
networks.rectify = lambda x, bias: x.relu_()  # in place, as torchvision's models do


def plain(module):
    """PyTorch's own dropout for that which takes a given mask."""
    for name, child in module.named_children():
        if isinstance(child, networks.Dropout):
            setattr(module, name, nn.Dropout(child.rate))
        else:
            plain(child)
    return module


small = {"lenet": (1, 28), "resnet20": (3, 32), "resnet56": (3, 32)}
channels, size = small.get(o.model, (3, 224))
classes = 10 if o.model in small else 1000
model = plain(networks.MODELS[o.model](classes, 1))
if o.inference:
    torch.set_grad_enabled(False)
    model.eval()
    if o.dtype == "bf16":
        model = model.to(torch.bfloat16)
    if compiled:
        import torch._inductor.config
        torch._inductor.config.freezing = True
x = torch.randn(o.batch, channels, size, size).to(o.device)
labels = torch.randint(classes, (o.batch,)).to(o.device)
model = model.to(o.device)
if channels_last:
    model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
forward = torch.compile(model) if compiled else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)


def autocast():
    # Casts are part of a graph: none may be left over from outside of it.
    return torch.autocast(o.device, torch.bfloat16, enabled=o.dtype == "bf16",
                          cache_enabled=not captured)


def train():
    optimizer.zero_grad(set_to_none=True)
    with autocast():
        loss = nn.functional.cross_entropy(forward(x), labels)
    loss.backward()
    optimizer.step()
    return loss


def answer():
    return forward(x.to(torch.bfloat16) if o.dtype == "bf16" else x).float()


def capture(step):
    """The same as one CUDA graph."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def settle():
    if on_gpu:
        torch.cuda.synchronize()


step = answer if o.inference else train
if captured:
    step = capture(step)
for _ in range(o.warmup):
    step()
settle()
times = []
if o.inference and not on_gpu:  # the median, as bench_inference
    for _ in range(o.steps):
        begin = time.perf_counter()
        step()
        times.append(time.perf_counter() - begin)
else:  # all steps, as bench_network
    begin = time.perf_counter()
    for _ in range(o.steps):
        step()
    settle()
    times.append((time.perf_counter() - begin) / o.steps)
found = {"rate": o.batch / statistics.median(times)}
if on_gpu:
    found["gpu"] = torch.cuda.get_device_name()
    found["gpu_mb"] = torch.cuda.max_memory_reserved() / 1e6
print(json.dumps({**found, "version": torch.__version__}))
