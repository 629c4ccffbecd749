"""PyTorch's side of compare_unet.py: a server that trains U-Net on the CPU or a GPU.

Every line of input names a way, the answer is seconds per training step: eager and channels_last in float32, eager_bf16
and channels_last_bf16 under autocast; "_tf32" allows TF32 (PyTorch's default for convolutions on a GPU), "_compile" is
torch.compile. Images are 3 x 160 x 240, the loss is cross-entropy plus dice, the optimizer AdamW.
"""
import argparse
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn


class DoubleConv(nn.Sequential):
    def __init__(self, channels, out):
        super().__init__(
            nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True),
            nn.Conv2d(out, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True))


class Up(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.up = nn.ConvTranspose2d(channels, channels // 2, 2, stride=2)
        self.conv = DoubleConv(channels, channels // 2)

    def forward(self, x, skip):  # (N, channels, h, w), (N, channels / 2, H, W) -> (N, channels / 2, H, W)
        x = self.up(x)
        rows, columns = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
        x = F.pad(x, [columns // 2, columns - columns // 2, rows // 2, rows - rows // 2])
        return self.conv(torch.cat([skip, x], 1))


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inc = DoubleConv(3, width)
        self.down = nn.ModuleList(
            nn.Sequential(nn.MaxPool2d(2), DoubleConv(width << level, width << level + 1)) for level in range(4))
        self.up = nn.ModuleList(Up(width << level) for level in (4, 3, 2, 1))
        self.outc = nn.Conv2d(width, 2, 1)

    def forward(self, x):  # (N, 3, H, W) -> (N, 2, H, W)
        skips = [self.inc(x)]
        for down in self.down:
            skips.append(down(skips[-1]))
        x = skips.pop()
        for up in self.up:
            x = up(x, skips.pop())
        return self.outc(x)


def loss_of(logits, masks):
    """Cross-entropy and one minus the dice of both classes over the batch."""
    there = F.softmax(logits, 1).float()
    wanted = F.one_hot(masks, 2).permute(0, 3, 1, 2).float()
    common = 2 * (there * wanted).sum((0, 2, 3))
    dice = ((common + 1e-6) / (there.sum((0, 2, 3)) + wanted.sum((0, 2, 3)) + 1e-6)).mean()
    return F.cross_entropy(logits, masks) + 1 - dice


def contestant(way, args):
    layout = torch.channels_last if way.startswith("channels_last") else torch.contiguous_format
    model = UNet(args.width).to(args.device, memory_format=layout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=1e-8)
    images = torch.rand(args.batch_size, 3, 160, 240).to(args.device).contiguous(memory_format=layout)
    masks = (torch.arange(args.batch_size * 160 * 240) // 7 % 2).view(args.batch_size, 160, 240).to(args.device)
    mixed = "_bf16" in way
    if "_compile" in way:
        model = torch.compile(model)
    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None

    def run(steps):
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = "_tf32" in way
        begin = time.perf_counter()
        for _ in range(steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(args.device, torch.bfloat16, enabled=mixed):
                loss = loss_of(model(images), masks)
            loss.backward()
            optimizer.step()
        wait()
        return (time.perf_counter() - begin) / steps

    return run


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    known = {}
    print("ready", torch.__version__, flush=True)
    for line in iter(sys.stdin.readline, ""):
        way = line.strip()
        if way not in known:
            known[way] = contestant(way, args)
        print(known[way](args.steps), flush=True)


if __name__ == "__main__":
    main()
