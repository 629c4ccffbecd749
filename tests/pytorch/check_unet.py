#!/usr/bin/env python3
"""Compares U-Net with the PyTorch program: parameters, weights in both directions, gradients and 50 training steps.

Weights are moved from PyTorch to Lockstep as .pth and as safetensors, and back; outputs may differ by rounding. Gradients
of the first five batches, from the same weights, are compared with those in double precision, next to PyTorch's in f32.
Then `unet train` and PyTorch train from the same weights on the same images in the same order, without augmentation, by
cross-entropy and dice in f32, with weight decay 1e-8. For comparison, PyTorch also trains channels last in f32, which
rounds differently, and in f64. With AdamW at lr 1e-5 (the program's default) and RMSprop at 1e-6, losses must agree with
PyTorch's to 1e-3 of their value. This also holds for RMSprop at 1e-5 up to width 16. At full width PyTorch's two f32 runs
differ by more: some ReLUs are so close to 0 that rounding determines their sign, and RMSprop's first steps move all weights
by 10 lr, however small their gradients. Lockstep's distance from f64 may then be twice the larger one of PyTorch's two.
Needs the Python packages torch, safetensors, numpy and Pillow; not part of the normal tests.
usage: check_unet.py BUILD_DIR [WIDTH]     (BUILD_DIR contains bin/unet; WIDTH of the trained networks, default 64)
"""

import itertools
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import nn

STEPS, BATCH, IMAGES = 50, 2, 10


class DoubleConv(nn.Module):
    def __init__(self, before, after, middle=None):
        super().__init__()
        layers = []
        for channels, out in ((before, middle or after), (middle or after, after)):
            layers += [nn.Conv2d(channels, out, 3, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU(inplace=True)]
        self.double_conv = nn.Sequential(*layers)

    def forward(self, x):
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(before, after))

    def forward(self, x):
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, before, after, bilinear):
        super().__init__()
        if bilinear:
            self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.conv = DoubleConv(before, after, before // 2)
        else:
            self.up = nn.ConvTranspose2d(before, before // 2, 2, stride=2)
            self.conv = DoubleConv(before, after)

    def forward(self, x, skip):
        x = self.up(x)
        dy, dx = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
        return self.conv(torch.cat([skip, F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])], 1))


class OutConv(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.conv = nn.Conv2d(before, after, 1)

    def forward(self, x):
        return self.conv(x)


class UNet(nn.Module):
    def __init__(self, width=64, bilinear=False):
        super().__init__()
        w, factor = width, 2 if bilinear else 1
        self.inc = DoubleConv(3, w)
        self.down1, self.down2, self.down3 = Down(w, 2 * w), Down(2 * w, 4 * w), Down(4 * w, 8 * w)
        self.down4 = Down(8 * w, 16 * w // factor)
        self.up1, self.up2 = Up(16 * w, 8 * w // factor, bilinear), Up(8 * w, 4 * w // factor, bilinear)
        self.up3, self.up4 = Up(4 * w, 2 * w // factor, bilinear), Up(2 * w, w, bilinear)
        self.outc = OutConv(w, 2)

    def forward(self, x):
        x1 = self.inc(x)
        x2 = self.down1(x1)
        x3 = self.down2(x2)
        x4 = self.down3(x3)
        x = self.up1(self.down4(x4), x4)
        return self.outc(self.up4(self.up3(self.up2(x, x3), x2), x1))


def dice_loss(probabilities, truth, epsilon=1e-6):
    """The dice of the PyTorch program: over the whole batch, averaged over classes."""
    loss = 0
    for of_class, true_class in zip(probabilities.unbind(1), truth.unbind(1)):
        both = of_class.sum() + true_class.sum()
        loss += 1 - (2 * (of_class * true_class).sum() + epsilon) / (both + epsilon)
    return loss / probabilities.size(1)


def check_weights(programs, directory):
    """Weights in both file formats, for both kinds of upsampling, and images whose sides are not multiples of 16."""
    for width, bilinear, size in ((64, False, (48, 64)), (8, True, (33, 50))):
        model = UNet(width, bilinear).eval()
        for name, value in model.state_dict().items():
            if name.endswith("running_mean"):
                value.copy_(0.1 * torch.randn(value.shape))
            elif name.endswith("running_var"):
                value.copy_(0.5 + torch.rand(value.shape))
        images = torch.rand(2, 3, *size)
        with torch.no_grad():
            expected = model(images)
            exact = UNet(width, bilinear).double().eval()
            exact.load_state_dict(model.state_dict())
            truth = exact(images.double())
        save_file({"images": images}, directory / "images.safetensors")
        torch.save(dict(model.state_dict(), mask_values=[0, 1]), directory / "theirs.pth")
        save_file(model.state_dict(), directory / "theirs.safetensors")
        for kind in ("pth", "safetensors"):
            files = [directory / name for name in (f"theirs.{kind}", "images.safetensors", "logits", "ours.safetensors")]
            subprocess.run([programs / "dump_unet", "logits", files[0], str(width), str(int(bilinear)), *files[1:]],
                           check=True)
            found = load_file(files[2])["logits"]
            scale = truth.abs().max()
            ours, theirs = ((logits - truth).abs().max() / scale for logits in (found, expected))
            back = UNet(width, bilinear).eval()
            back.load_state_dict(load_file(files[3]), strict=True)
            with torch.no_grad():
                assert torch.equal(back(images), expected), "the weights changed in the round trip"
            print(f"width {width}{', bilinear' if bilinear else ''}, .{kind}: largest error of the logits against f64 "
                  f"{ours:.1e} (PyTorch's own in f32 {theirs:.1e})")
            assert ours < 1e-5, "outputs differ by more than rounding"


def load_set(data):
    """As BasicDataset of the PyTorch program, at scale 0.5."""
    images, masks = [], []
    for file in sorted((data / "imgs").iterdir()):
        image, mask = Image.open(file), Image.open(data / "masks" / f"{file.stem}_mask.gif")
        size = (image.width // 2, image.height // 2)
        images.append(torch.from_numpy(numpy.asarray(image.resize(size, Image.BICUBIC)) / 255.0).permute(2, 0, 1))
        masks.append(torch.from_numpy(numpy.asarray(mask.resize(size, Image.NEAREST)) != 0))
    return torch.stack(images).float(), torch.stack(masks).long()


def loss_of(model, images, masks):
    logits = model(images)
    truth = F.one_hot(masks, 2).permute(0, 3, 1, 2).to(logits.dtype)
    return F.cross_entropy(logits, masks) + dice_loss(F.softmax(logits, dim=1), truth)


def batches(programs, images, masks):
    """The batches of all epochs, in the order of `unet train`."""
    epochs = str(STEPS * BATCH // IMAGES)
    order = subprocess.run([programs / "dump_unet", "order", str(IMAGES), "0", epochs], check=True, capture_output=True,
                           text=True).stdout.split()
    for step in range(STEPS):
        rows = torch.tensor([int(row) for row in order[step * BATCH : (step + 1) * BATCH]])
        yield images[rows], masks[rows]


def network(width, start, dtype):
    model = UNet(width)
    model.load_state_dict(load_file(start))
    return model.to(dtype).train()


def check_gradients(programs, directory, width, start, data):
    """One batch of five must agree: a ReLU on the other side of 0 moves the gradients of all layers before it."""

    def gradients(dtype, images, masks):
        model = network(width, start, dtype)
        loss_of(model, images.to(dtype), masks).backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    def error(found, truth):
        return (sum((found[name] - truth[name]).norm() ** 2 for name in truth) /
                sum(truth[name].norm() ** 2 for name in truth)).sqrt().item()

    files = [directory / name for name in ("batch.safetensors", "gradients.safetensors")]
    errors = []
    for images, masks in itertools.islice(batches(programs, *data), IMAGES // BATCH):
        save_file({"images": images, "masks": masks}, files[0])
        subprocess.run([programs / "dump_unet", "gradients", start, str(width), *files], check=True)
        truth = gradients(torch.float64, images, masks)
        found = load_file(files[1]), gradients(torch.float32, images, masks)
        errors.append([error(of, truth) for of in found])
        print("all gradients, L2 error against f64: Lockstep {:.1e}, PyTorch {:.1e}".format(*errors[-1]))
    ours, theirs = (min(column) for column in zip(*errors))
    assert ours < 4 * theirs, "gradients differ by more than rounding"


def their_curve(model, optimizer, steps, memory_format=torch.contiguous_format):
    model = model.to(memory_format=memory_format)
    losses = []
    for images, masks in steps:
        loss = loss_of(model, images.to(memory_format=memory_format), masks)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def farthest(losses, others):
    return max(abs(a - b) / abs(b) for a, b in zip(losses, others, strict=True))


def check_curve(programs, directory, width, start, data, name, lr, flags, make):
    figures, end = directory / "figures.json", directory / "end.safetensors"
    subprocess.run([programs / "unet", "train", "--quiet", "--data", directory / "data", "--width", str(width), "--devices",
                    "cpu:0", "--shards", "1", "-b", str(BATCH), "-v", "0", "--scale", "0.5", "--schedule", "constant",
                    "--seed", "0", "--epochs", str(STEPS * BATCH // IMAGES), "--optimizer", name, "--lr", str(lr), "--load",
                    start, "--save", end, "--json", figures, *flags], check=True)
    UNet(width).load_state_dict(load_file(end), strict=True)
    ours = json.loads(figures.read_text())["losses"]
    assert len(ours) == STEPS

    def theirs(dtype, **how):
        model = network(width, start, dtype)
        steps = ((images.to(dtype), masks) for images, masks in batches(programs, *data))
        return their_curve(model, make(model.parameters(), lr=lr, weight_decay=1e-8), steps, **how)

    plain, last = theirs(torch.float32), theirs(torch.float32, memory_format=torch.channels_last)
    exact = theirs(torch.float64)
    curve = f"{name} at lr {lr}, width {width}"
    print(f"{curve}: losses of Lockstep, PyTorch, PyTorch channels last, and PyTorch in f64")
    for step in [*range(0, STEPS, 5), STEPS - 1]:
        print(f"  step {step:2}: " + "  ".join(f"{losses[step]:.6f}" for losses in (ours, plain, last, exact)))
    print("  farthest from f64: Lockstep {:.1e}, PyTorch {:.1e}, channels last {:.1e}".format(
        *(farthest(losses, exact) for losses in (ours, plain, last))))
    print(f"  farthest from PyTorch: Lockstep {farthest(ours, plain):.1e}, PyTorch channels last {farthest(last, plain):.1e}")
    if name == "rmsprop" and lr == 1e-5 and width > 16:
        own = max(farthest(losses, exact) for losses in (plain, last))
        assert farthest(ours, exact) < max(1e-3, 2 * own), f"{curve}: farther from f64 than PyTorch's own runs in f32"
    else:
        assert farthest(ours, plain) < 1e-3, f"{curve}: the curves part"


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    programs = pathlib.Path(sys.argv[1]) / "bin"
    width = int(sys.argv[2]) if len(sys.argv) == 3 else 64
    torch.manual_seed(0)
    parameters = sum(parameter.numel() for parameter in UNet().parameters())
    print(f"PyTorch {torch.__version__}: {parameters} parameters")
    assert parameters == 31_037_698
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        check_weights(programs, directory)
        subprocess.run([programs / "make-shapes", "--data", directory / "data", "--count", str(IMAGES), "--width", "128",
                        "--height", "96"], check=True, capture_output=True)
        start = directory / "start.safetensors"
        torch.manual_seed(0)
        save_file(UNet(width).state_dict(), start)
        common = (programs, directory, width, start, load_set(directory / "data"))
        check_gradients(*common)
        check_curve(*common, "adamw", 1e-5, [], torch.optim.AdamW)
        for lr in (1e-6, 1e-5):
            check_curve(*common, "rmsprop", lr, ["--momentum", "0"], torch.optim.RMSprop)
    print("check_unet: all agree")


if __name__ == "__main__":
    main()
