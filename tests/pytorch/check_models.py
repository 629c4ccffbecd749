#!/usr/bin/env python3
"""Trains the networks of tests/fixtures/models.h in PyTorch: 20 steps in f64 from the same weights on the same data.

usage: check_models.py BUILD_DIR     (that contains bin/dump_models)

Needs PyTorch and safetensors; the normal test command does not run this. Prints the largest difference of a loss, and of
the final weights relative to their change, for every network. Exits with status 1 if one exceeds 1e-8.
"""
import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file

CLASSES, LETTERS, LENGTH, BOUND = 5, 11, 12, 1e-8


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(channels, width, stride)

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        return (y + self.downsample(x)).relu()


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, channels, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = shortcut(channels, 4 * width, stride)

    def forward(self, x):
        y = self.bn3(self.conv3(self.bn2(self.conv2(self.bn1(self.conv1(x)).relu())).relu()))
        return (y + self.downsample(x)).relu()


def shortcut(channels, out, stride):
    if stride == 1 and channels == out:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    def __init__(self, block, counts):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.layers = nn.ModuleList()
        channels = 8
        for stage, count in enumerate(counts):
            blocks = nn.ModuleList()
            for i in range(count):
                blocks.append(block(channels, 8 << stage, 2 if stage > 0 and i == 0 else 1))
                channels = (8 << stage) * block.expansion
            self.layers.append(blocks)
        self.fc = nn.Linear(channels, CLASSES)

    def forward(self, x):
        y = F.max_pool2d(self.bn1(self.conv1(x)).relu(), 3, 2, 1)
        for stage in self.layers:
            for block in stage:
                y = block(y)
        return self.fc(F.adaptive_avg_pool2d(y, 1).flatten(1))


class SqueezeExcitation(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.fc1 = nn.Conv2d(channels, channels // 4, 1)
        self.fc2 = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x):
        return x * F.hardsigmoid(self.fc2(self.fc1(F.adaptive_avg_pool2d(x, 1)).relu()))


class InvertedResidual(nn.Module):
    def __init__(self, kernel, channels, expanded, out, squeezes, hard, stride):
        super().__init__()
        self.expand = nn.Conv2d(channels, expanded, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(expanded)
        self.depthwise = nn.Conv2d(expanded, expanded, kernel, stride, kernel // 2, groups=expanded, bias=False)
        self.bn2 = nn.BatchNorm2d(expanded)
        self.se = SqueezeExcitation(expanded) if squeezes else nn.Identity()
        self.project = nn.Conv2d(expanded, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        self.activation = F.hardswish if hard else F.relu
        self.residual = stride == 1 and channels == out

    def forward(self, x):
        y = self.activation(self.bn2(self.depthwise(self.activation(self.bn1(self.expand(x))))))
        y = self.bn3(self.project(self.se(y)))
        return y + x if self.residual else y


class MobileNetV3(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.blocks = nn.ModuleList(InvertedResidual(*config) for config in [
            (3, 4, 4, 4, True, False, 2), (3, 4, 18, 6, False, False, 2), (3, 6, 22, 6, False, False, 1),
            (5, 6, 24, 10, True, True, 2), (5, 10, 60, 10, True, True, 1), (5, 10, 60, 10, True, True, 1),
            (5, 10, 30, 12, True, True, 1), (5, 12, 36, 12, True, True, 1), (5, 12, 72, 24, True, True, 1),
            (5, 24, 144, 24, True, True, 1), (5, 24, 144, 24, True, True, 1)])
        self.last = nn.Conv2d(24, 144, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(144)
        self.fc1 = nn.Linear(144, 64)
        self.fc2 = nn.Linear(64, CLASSES)

    def forward(self, x):
        y = F.hardswish(self.bn1(self.stem(x)))
        for block in self.blocks:
            y = block(y)
        y = F.adaptive_avg_pool2d(F.hardswish(self.bn2(self.last(y))), 1).flatten(1)
        return self.fc2(F.hardswish(self.fc1(y)))


class MixerBlock(nn.Module):
    def __init__(self, tokens, width):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.token1 = nn.Linear(tokens, 2 * tokens)
        self.token2 = nn.Linear(2 * tokens, tokens)
        self.norm2 = nn.LayerNorm(width)
        self.channel1 = nn.Linear(width, 2 * width)
        self.channel2 = nn.Linear(2 * width, width)

    def forward(self, x):
        x = x + self.token2(F.gelu(self.token1(self.norm1(x).transpose(1, 2)))).transpose(1, 2)
        return x + self.channel2(F.gelu(self.channel1(self.norm2(x))))


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 8, 8)
        self.blocks = nn.ModuleList(MixerBlock(16, 24) for _ in range(3))
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x):
        y = self.patches(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            y = block(y)
        return self.head(self.norm(y).mean(1))


def layer(width, heads):
    return nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 24, 8, 8)
        self.class_token = nn.Parameter(torch.empty(1, 1, 24))
        self.positions = nn.Parameter(torch.empty(1, 17, 24))
        self.encoder = nn.TransformerEncoder(layer(24, 3), 3, nn.LayerNorm(24), enable_nested_tensor=False)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x):
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        first = self.class_token.expand(len(x), -1, -1)
        return self.head(self.encoder(torch.cat([first, tokens], 1) + self.positions)[:, 0])


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(LETTERS, 24)
        self.positions = nn.Embedding(LENGTH, 24)
        self.blocks = nn.ModuleList(layer(24, 4) for _ in range(3))
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, LETTERS, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, text):
        x = self.tokens(text) + self.positions.weight[:text.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1], dtype=x.dtype)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x)).transpose(1, 2)


class LetterLstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(LETTERS, 16)
        self.lstm = nn.LSTM(16, 24, 2, batch_first=True)
        self.head = nn.Linear(24, LETTERS)

    def forward(self, text):
        return self.head(self.lstm(self.tokens(text))[0]).transpose(1, 2)


class Vae(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 2, 1)
        self.conv2 = nn.Conv2d(8, 16, 3, 2, 1)
        self.mean = nn.Linear(256, 6)
        self.log_variance = nn.Linear(256, 6)
        self.widen = nn.Linear(6, 256)
        self.up1 = nn.ConvTranspose2d(16, 8, 4, 2, 1)
        self.up2 = nn.ConvTranspose2d(8, 1, 4, 2, 1)

    def forward(self, x, noise):
        hidden = self.conv2(self.conv1(x).relu()).relu().flatten(1)
        mu, log_var = self.mean(hidden), self.log_variance(hidden)
        code = self.widen(mu + (0.5 * log_var).exp() * noise).relu()
        return self.up2(self.up1(code.unflatten(1, (16, 4, 4))).relu()), mu, log_var


def vae_loss(outputs, x):
    logits, mu, log_var = outputs
    reconstruction = F.binary_cross_entropy_with_logits(logits, x, reduction="sum")
    return (reconstruction + 0.5 * (mu.square() + log_var.exp() - log_var - 1).sum()) / len(x)


class TimedBlock(nn.Module):
    def __init__(self, channels, out, times):
        super().__init__()
        self.norm1 = nn.GroupNorm(4, channels)
        self.conv1 = nn.Conv2d(channels, out, 3, 1, 1)
        self.time = nn.Linear(times, out)
        self.norm2 = nn.GroupNorm(4, out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1)
        self.skip = nn.Conv2d(channels, out, 1) if channels != out else nn.Identity()

    def forward(self, x, when):
        y = self.conv1(F.silu(self.norm1(x))) + self.time(F.silu(when))[:, :, None, None]
        return self.conv2(F.silu(self.norm2(y))) + self.skip(x)


class PixelAttention(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        # `in` is a keyword of Python, so the name cannot be that of an attribute.
        self.add_module("in", nn.Conv2d(channels, 3 * channels, 1))
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        parts = getattr(self, "in")(self.norm(x)).flatten(2).transpose(1, 2).unsqueeze(1).chunk(3, 3)
        mixed = F.scaled_dot_product_attention(*parts).squeeze(1).transpose(1, 2)
        return x + self.out(mixed.reshape(x.shape))


class DiffusionUnet(nn.Module):
    def __init__(self):
        super().__init__()
        self.time1 = nn.Linear(8, 16)
        self.time2 = nn.Linear(16, 16)
        self.first = nn.Conv2d(1, 8, 3, 1, 1)
        self.down1 = TimedBlock(8, 8, 16)
        self.halve = nn.Conv2d(8, 8, 3, 2, 1)
        self.down2 = TimedBlock(8, 16, 16)
        self.attention = PixelAttention(16)
        self.middle = TimedBlock(16, 16, 16)
        self.widen = nn.Conv2d(16, 8, 3, 1, 1)
        self.up = TimedBlock(16, 8, 16)
        self.norm = nn.GroupNorm(4, 8)
        self.last = nn.Conv2d(8, 1, 3, 1, 1)

    def forward(self, noisy, time):
        angles = [time.to(noisy.dtype)[:, None] * 0.1**wave for wave in range(4)]
        features = [function(angle) for angle in angles for function in (torch.sin, torch.cos)]
        when = self.time2(F.silu(self.time1(torch.cat(features, 1))))
        wide = self.down1(self.first(noisy), when)
        low = self.middle(self.attention(self.down2(self.halve(wide), when)), when)
        high = self.widen(F.interpolate(low, scale_factor=2))
        return self.last(F.silu(self.norm(self.up(torch.cat([high, wide], 1), when))))


NETS = {
    "resnet18": (lambda: ResNet(BasicBlock, (2, 2, 2, 2)), F.cross_entropy),
    "resnet50": (lambda: ResNet(Bottleneck, (3, 4, 6, 3)), F.cross_entropy),
    "mobilenet_v3": (MobileNetV3, F.cross_entropy),
    "mixer": (Mixer, F.cross_entropy),
    "vit": (ViT, F.cross_entropy),
    "gpt": (Gpt, F.cross_entropy),
    "lstm": (LetterLstm, F.cross_entropy),
    "vae": (Vae, vae_loss),
    "diffusion": (DiffusionUnet, F.mse_loss),
}


def part(tensors, prefix):
    return {name[len(prefix):]: value for name, value in tensors.items() if name.startswith(prefix)}


def check(name, tensors):
    make, loss_of = NETS[name]
    net = make().double()
    net.load_state_dict(part(tensors, "start."))
    inputs = part(tensors, "input.")
    adam = torch.optim.AdamW(net.parameters(), lr=1e-3)
    worst = 0
    for expected in tensors["losses"]:
        loss = loss_of(net(*(inputs[str(i)] for i in range(len(inputs)))), tensors["target"])
        adam.zero_grad()
        loss.backward()
        adam.step()
        worst = max(worst, abs(loss.item() - expected.item()))
    start, end, moved, error = part(tensors, "start."), net.state_dict(), 0, 0
    for key, found in part(tensors, "end.").items():
        moved += (end[key] - start[key]).double().square().sum().item()
        error += (end[key] - found).double().square().sum().item()
    error = (error / moved)**0.5
    print("%-14s losses %.4f to %.4f, largest difference %.1e; weights %.1e" %
          (name, tensors["losses"][0], tensors["losses"][-1], worst, error))
    return worst <= BOUND and error <= BOUND


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([pathlib.Path(sys.argv[1]) / "bin" / "dump_models", folder], check=True)
        files = sorted(pathlib.Path(folder).iterdir())
        good = [check(file.stem, load_file(file)) for file in files]
    print("%d of %d networks agree with PyTorch %s" % (sum(good), len(NETS), torch.__version__))
    return 0 if all(good) and len(files) == len(NETS) else 1


if __name__ == "__main__":
    sys.exit(main())
