#!/usr/bin/env python3
"""Loads a U-Net's random state_dict from PyTorch's .pth and from safetensors, and compares the weights that Lockstep saves.

Needs the Python packages torch and safetensors; not part of the normal tests.
usage: check_pth.py BUILD_DIR     (that contains bin/load-and-save)
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from torch import nn


class DoubleConv(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        layers = []
        for channels in (before, after):
            layers += [nn.Conv2d(channels, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        self.double_conv = nn.Sequential(*layers)


class Down(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(before, after))


class Up(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.up = nn.ConvTranspose2d(before, after, 2, stride=2)
        self.conv = DoubleConv(before, after)


class OutConv(nn.Module):
    def __init__(self, before, after):
        super().__init__()
        self.conv = nn.Conv2d(before, after, 1)


class UNet(nn.Module):
    """The public U-Net for Carvana, smaller."""

    def __init__(self):
        super().__init__()
        self.inc, self.down1, self.down2 = DoubleConv(3, 8), Down(8, 16), Down(16, 32)
        self.up1, self.up2, self.outc = Up(32, 16), Up(16, 8), OutConv(8, 2)


def randomised(model):
    for value in model.state_dict().values():
        value.copy_(torch.randn(value.shape) if value.is_floating_point() else torch.randint(0, 10**12, value.shape))
    return model


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    program = pathlib.Path(sys.argv[1]) / "bin" / "load-and-save"
    torch.manual_seed(0)
    model = randomised(UNet())
    state = model.state_dict()
    optimizer = torch.optim.RMSprop(model.parameters(), momentum=0.9, foreach=True)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    ways = {
        "state_dict": state,
        "with mask values": dict(state, mask_values=[0, 1]),
        "DataParallel's": nn.DataParallel(model).state_dict(),
        "compiled": {"_orig_mod." + name: value for name, value in state.items()},
        "parameters": dict(state, **dict(model.named_parameters())),
        "channels last": UNet().to(memory_format=torch.channels_last).state_dict(),
        "checkpoint": {
            "epoch": 5,
            "model_state_dict": state,
            "optimizer_state_dict": optimizer.state_dict(),
            "scheduler_state_dict": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5).state_dict(),
            "scaler_state_dict": torch.amp.GradScaler("cpu").state_dict(),
        },
        "double": {name: value.double() if value.is_floating_point() else value for name, value in state.items()},
    }
    with tempfile.TemporaryDirectory() as directory:
        files = []
        for way, saved in ways.items():
            for protocol in (2, 4):
                path = pathlib.Path(directory) / f"{way} {protocol}.pth"
                torch.save(saved, path, pickle_protocol=protocol)
                files.append((path, saved if way == "channels last" else state))
        path = pathlib.Path(directory) / "theirs.safetensors"
        save_file({name: value.contiguous() for name, value in state.items()}, path)
        files.append((path, state))
        for path, expected in files:
            ours = pathlib.Path(directory) / "ours.safetensors"
            subprocess.run([program, path, ours], check=True)
            found = load_file(ours)
            assert found.keys() == expected.keys(), path
            for name, value in expected.items():
                same = found[name].dtype == value.dtype and torch.equal(found[name], value)
                assert same and found[name].shape == value.shape, (path, name)
            UNet().load_state_dict(found, strict=True)
        print(f"check_pth: {len(state)} tensors of each of {len(files)} files went through Lockstep with equal bits")


if __name__ == "__main__":
    main()
