#!/usr/bin/env python3
"""Compare U-Net with the PyTorch program's: its parameters, its weights both ways, and 50 steps of training.

Weights go from PyTorch to Lockstep as .pth and as safetensors, and back; the outputs of both may differ by rounding. Then
`unet train` and PyTorch train from the same weights on the same images in the same order, without augmentation, by
cross-entropy and dice in f32, with RMSprop (lr 1e-6) and AdamW (lr 1e-5), weight decay 1e-8. Losses may differ
by 1e-3 of their value. (RMSprop at lr 1e-5 exceeds that: 1.7e-3 at width 64, and 3.5e-2 with
momentum 0.999.)
Needs the Python packages torch, safetensors, numpy and Pillow; not part of the normal tests.
usage: check_unet.py BUILD_DIR [WIDTH]     (where bin/unet lies; width of the networks that are trained, 64)
"""

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
    """The PyTorch program's: over the whole batch, all classes averaged."""
    loss = 0
    for of_class, true_class in zip(probabilities.unbind(1), truth.unbind(1)):
        both = of_class.sum() + true_class.sum()
        loss += 1 - (2 * (of_class * true_class).sum() + epsilon) / (both + epsilon)
    return loss / probabilities.size(1)


def check_weights(programs, directory):
    """Through both kinds of files, for both ways to go up, and images whose sides are no multiples of 16."""
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
                assert torch.equal(back(images), expected), "the weights that came back are others"
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


def check_curve(programs, directory, width, name, flags, make):
    data, start, figures = directory / "data", directory / "start.safetensors", directory / "figures.json"
    torch.manual_seed(0)
    model = UNet(width).train()
    save_file(model.state_dict(), start)
    epochs = STEPS * BATCH // IMAGES
    subprocess.run([programs / "unet", "train", "--quiet", "--data", data, "--width", str(width), "--devices", "cpu:0",
                    "--shards", "1", "-b", str(BATCH), "-v", "0", "--scale", "0.5", "--schedule", "constant", "--seed",
                    "0", "--epochs", str(epochs), "--optimizer", name, "--load", start, "--save", directory / "end.safetensors",
                    "--json", figures, *flags], check=True)
    ours = json.loads(figures.read_text())["losses"]
    order = subprocess.run([programs / "dump_unet", "order", str(IMAGES), "0", str(epochs)], check=True,
                           capture_output=True, text=True).stdout.split()
    images, masks = load_set(data)
    optimizer, theirs = make(model.parameters()), []
    for step in range(STEPS):
        rows = torch.tensor([int(row) for row in order[step * BATCH : (step + 1) * BATCH]])
        logits, truth = model(images[rows]), masks[rows]
        loss = F.cross_entropy(logits, truth)
        loss = loss + dice_loss(F.softmax(logits, dim=1), F.one_hot(truth, 2).permute(0, 3, 1, 2).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    assert len(ours) == STEPS
    difference = [abs(a - b) / abs(b) for a, b in zip(ours, theirs)]
    for step in [*range(0, STEPS, 5), STEPS - 1]:
        print(f"{name} step {step:2}: Lockstep {ours[step]:.6f}  PyTorch {theirs[step]:.6f}  {difference[step]:.1e}")
    print(f"{name}: the largest difference is {max(difference):.1e} of the loss")
    UNet(width).load_state_dict(load_file(directory / "end.safetensors"), strict=True)
    assert max(difference) < 1e-3, f"{name}: the curves part"


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
        check_curve(programs, directory, width, "rmsprop", ["--lr", "1e-6", "--momentum", "0"],
                    lambda p: torch.optim.RMSprop(p, lr=1e-6, weight_decay=1e-8))
        check_curve(programs, directory, width, "adamw", ["--lr", "1e-5"],
                    lambda p: torch.optim.AdamW(p, lr=1e-5, weight_decay=1e-8))
    print("check_unet: all agree")


if __name__ == "__main__":
    main()
