# The library's models in PyTorch, from its own modules, under the same names of parameters.
import torch
from torch import nn
from torch.nn import functional

# Where a ReLU is at its kink, rounding decides whether a gradient passes, so that f32 and f64
# differ by 1e-3 and more with nobody being wrong. While this is set, each forward goes through it:
# settle(x, bias) shifts `bias`, which was added to x, and x with it.
settle = None


# Where two values of a window of a maximum pool are alike but for rounding, f32 may take the other
# one. While this is set, all windows do whose two largest values are nearer to each other than so
# many standard deviations of all values.
tied = None


def max_pool(x, window, stride, padding=0):
    y = functional.max_pool2d(x, window, stride, padding)
    if tied is None:
        return y
    padded = functional.pad(x, [padding] * 4, value=float("-inf"))
    windows = functional.unfold(padded, window, stride=stride)
    windows = windows.view(*x.shape[:2], window * window, -1)
    largest = windows.detach().topk(2, 2)
    (first, second), (winner, other) = largest.values.unbind(2), largest.indices.unbind(2)
    chosen = torch.where(first - second < tied * x.detach().std(), other, winner)
    return windows.gather(2, chosen.unsqueeze(2)).view(y.shape)


class MaxPool2d(nn.Module):
    def __init__(self, window, stride):
        super().__init__()
        self.shape = (window, stride)

    def forward(self, x):
        return max_pool(x, *self.shape)


def rectify(x, bias):
    return (settle(x, bias) if settle else x).relu()


class ReLU(nn.Module):
    """The ReLU behind a convolution or a linear layer of a Sequential."""

    def __init__(self, before):
        super().__init__()
        self.before = (before,)  # a tuple, so that it is no submodule

    def forward(self, x):
        return rectify(x, self.before[0].bias)


class BatchNorm(nn.BatchNorm2d):
    """Batch norm whose batch lies in parts, each with statistics of its own, as on ranks that do
    not share them: `local`, a row per part. For inference there are their means."""

    parts, local = 1, None

    def forward(self, x):
        if not self.training or self.parts == 1:
            return super().forward(x)
        if self.local is None:
            self.local = {k: v.repeat(self.parts, 1) for k, v in self.kept().items()}
        ys = [functional.batch_norm(part, self.local["running_mean"][i],
                                    self.local["running_var"][i], self.weight, self.bias, True,
                                    self.momentum, self.eps)
              for i, part in enumerate(x.tensor_split(self.parts))]  # the larger parts first
        for name, kept in self.kept().items():
            kept.copy_(self.local[name].mean(0))
        return torch.cat(ys)

    def kept(self):
        return {"running_mean": self.running_mean, "running_var": self.running_var}


class Dropout(nn.Module):
    """Dropout by masks that are given: mask(shape) says what stays."""

    def __init__(self, rate=0.5):
        super().__init__()
        self.rate, self.mask = rate, None

    def forward(self, x):
        return x * self.mask(x.shape).to(x.dtype) / (1 - self.rate) if self.training else x


class LeNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = (nn.Linear(400, 120), nn.Linear(120, 84),
                                        nn.Linear(84, classes))

    def forward(self, x):
        for conv in self.conv1, self.conv2:
            x = max_pool(rectify(conv(x), conv.bias), 2, 2)
        x = x.flatten(1)
        for linear in self.fc1, self.fc2:
            x = rectify(linear(x), linear.bias)
        return self.fc3(x)


class Classifier(nn.Module):
    """Features, an average to `size` and a classifier: AlexNet and VGG."""

    def __init__(self, features, size, classifier):
        super().__init__()
        self.features, self.size = nn.Sequential(*features), size
        self.classifier = nn.Sequential(*classifier)

    def forward(self, x):
        x = functional.adaptive_avg_pool2d(self.features(x), self.size)
        # Dropout counts elements in the shape that comes to it; flat ones count alike.
        return self.classifier(x.flatten(1))


def rectified(layer):
    return [layer, ReLU(layer)]


def widened(width, channels):
    return max(1, int(channels * width + 0.5))


def alexnet(classes, width):
    wide = [widened(width, c) for c in (64, 192, 384, 256, 256, 4096)]
    features, channels = [], 3
    shapes = ((11, 4, 2), (5, 1, 2), (3, 1, 1), (3, 1, 1), (3, 1, 1))
    for i, (kernel, stride, padding) in enumerate(shapes):
        features += rectified(nn.Conv2d(channels, wide[i], kernel, stride, padding))
        channels = wide[i]
        if i in (0, 1, 4):
            features.append(MaxPool2d(3, 2))
    return Classifier(features, 6, [
        Dropout(), *rectified(nn.Linear(36 * channels, wide[5])),
        Dropout(), *rectified(nn.Linear(wide[5], wide[5])), nn.Linear(wide[5], classes)])


def vgg(convolutions):
    def make(classes, width):
        features, channels = [], 3
        for stage, count in enumerate(convolutions):
            outputs = widened(width, min(64 << stage, 512))
            for _ in range(count):
                features += rectified(nn.Conv2d(channels, outputs, 3, padding=1))
                channels = outputs
            features.append(MaxPool2d(2, 2))
        hidden = widened(width, 4096)
        return Classifier(features, 7, [
            *rectified(nn.Linear(49 * channels, hidden)), Dropout(),
            *rectified(nn.Linear(hidden, hidden)), Dropout(), nn.Linear(hidden, classes)])
    return make


class Block(nn.Module):
    """A residual block: two 3x3 convolutions, or with a bottleneck 1x1, 3x3 and 1x1. The shortcut
    is a projection or, with `pad`, every second pixel and zeros for new channels."""

    def __init__(self, inputs, channels, stride, bottleneck=False, pad=False):
        super().__init__()
        outputs = 4 * channels if bottleneck else channels
        convolutions = ([(1, 1), (3, stride), (1, 1)] if bottleneck else [(3, stride), (3, 1)])
        self.count, self.stride, self.added = len(convolutions), stride, outputs - inputs
        for i, (kernel, step) in enumerate(convolutions, 1):
            to = outputs if i == self.count else channels
            self.add_module(f"conv{i}", nn.Conv2d(inputs if i == 1 else channels, to, kernel, step,
                                                  kernel // 2, bias=False))
            self.add_module(f"bn{i}", BatchNorm(to))
        self.downsample = None
        if not pad and (stride != 1 or inputs != outputs):
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                            BatchNorm(outputs))

    def shortcut(self, x):
        if self.downsample is not None:
            return self.downsample(x)
        if self.stride == 1:
            return x
        return functional.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, 0, self.added))

    def forward(self, x):
        y = x
        for i in range(1, self.count + 1):
            norm = self.get_submodule(f"bn{i}")
            y = norm(self.get_submodule(f"conv{i}")(y))
            if i < self.count:
                y = rectify(y, norm.bias)
        return rectify(y + self.shortcut(x), norm.bias)


class ResNet(nn.Module):
    def __init__(self, classes, blocks, bottleneck=False, small=False):
        super().__init__()
        first = 16 if small else 64
        self.conv1 = (nn.Conv2d(3, first, 3, padding=1, bias=False) if small else
                      nn.Conv2d(3, first, 7, 2, 3, bias=False))
        self.bn1, self.pools, self.stages = BatchNorm(first), not small, len(blocks)
        inputs = first
        for stage, count in enumerate(blocks):
            layers = []
            for i in range(count):
                layers.append(Block(inputs, first << stage, 2 if i == 0 and stage > 0 else 1,
                                    bottleneck, small))
                inputs = (first << stage) * (4 if bottleneck else 1)
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x):
        x = rectify(self.bn1(self.conv1(x)), self.bn1.bias)
        if self.pools:
            x = max_pool(x, 3, 2, 1)
        for stage in range(self.stages):
            x = self.get_submodule(f"layer{stage + 1}")(x)
        return self.fc(x.mean((2, 3)))


def fixed(make):
    """A model without a width."""
    def checked(classes, width):
        assert width == 1, "only AlexNet and VGG have a width"
        return make(classes)
    return checked


MODELS = {
    "lenet": fixed(LeNet),
    "alexnet": alexnet,
    "vgg11": vgg((1, 1, 2, 2, 2)),
    "vgg13": vgg((2, 2, 2, 2, 2)),
    "vgg16": vgg((2, 2, 3, 3, 3)),
    "vgg19": vgg((2, 2, 4, 4, 4)),
    "resnet18": fixed(lambda classes: ResNet(classes, (2, 2, 2, 2))),
    "resnet34": fixed(lambda classes: ResNet(classes, (3, 4, 6, 3))),
    "resnet50": fixed(lambda classes: ResNet(classes, (3, 4, 6, 3), bottleneck=True)),
    "resnet20": fixed(lambda classes: ResNet(classes, (3, 3, 3), small=True)),
    "resnet56": fixed(lambda classes: ResNet(classes, (9, 9, 9), small=True)),
}


def initialise(model, gain):
    """Random weights, none of them at a value that hides an error (batch norm's 1 and 0). `gain`:
    of a layer, by which a ReLU behind it takes away."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity=gain)
        if isinstance(module, (nn.Conv2d, nn.Linear)) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.05)
        if isinstance(module, BatchNorm):
            nn.init.uniform_(module.weight, 0.75, 1.25)
            nn.init.normal_(module.bias, std=0.1)


@torch.no_grad()
def settle_apart(x, bias):
    """Shifts each channel so that all its values are above zero, or of a quarter of the channels
    below, with room for those of other batches."""
    dims = [d for d in range(x.dim()) if d != 1]
    low, high, room = x.amin(dims), x.amax(dims), 1.5 * x.std(dims)
    shift = torch.where(torch.rand_like(low) < 0.75, room - low, -room - high)
    bias += shift
    return x + (shift[:, None, None] if x.dim() == 4 else shift)


def has_max_pools(model_name):
    return model_name not in ("resnet20", "resnet56")


def set_parts(model, parts):
    """parts: of each batch norm, by name, into how many parts the batch is cut."""
    for name, module in model.named_modules():
        if isinstance(module, BatchNorm):
            module.parts = parts.get(name, 1)


def dropouts(model):
    return [(n, m) for n, m in model.named_modules() if isinstance(m, Dropout)]
