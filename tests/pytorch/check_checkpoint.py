#!/usr/bin/env python3
"""Loads checkpoints of the mnist sample into PyTorch's network and the reverse, and compares outputs and accuracy.

The expected outputs are PyTorch's in double precision. Lockstep's relative L2 error may be twice that of PyTorch's f32, and
no single output may be off by more than 1e-4.

Needs the Python packages torch, numpy and safetensors; not part of the normal tests.
usage: check_checkpoint.py BUILD_DIR     (that contains bin/mnist, bin/make-digits and bin/dump_logits)
"""

import copy
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional


class Cnn(nn.Module):
    """The network of pytorch/examples/mnist."""

    mean, deviation = 0.0, 1.0

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = functional.dropout2d(functional.max_pool2d(x, 2), 0.25, self.training).flatten(1)
        x = functional.dropout(functional.relu(self.fc1(x)), 0.5, self.training)
        return functional.log_softmax(self.fc2(x), 1)


class Small(nn.Module):
    """The network of PyTorch's older examples."""

    mean, deviation = 0.1307, 0.3081

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x):
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(functional.dropout2d(self.conv2(x), 0.5, self.training), 2)).flatten(1)
        x = functional.dropout(functional.relu(self.fc1(x)), 0.5, self.training)
        return functional.log_softmax(self.fc2(x), 1)


def read_set(directory, name):
    """Images as bytes, labels."""
    pixels = numpy.fromfile(directory / f"{name}-images-idx3-ubyte", numpy.uint8)[16:].reshape(-1, 1, 28, 28)
    labels = numpy.fromfile(directory / f"{name}-labels-idx1-ubyte", numpy.uint8)[8:]
    return torch.tensor(pixels), torch.tensor(labels.astype(numpy.int64))


def inputs_of(model, images, dtype=torch.float32):
    return (images.to(dtype) / 255 - model.mean) / model.deviation


def outputs_of(model, images, dtype):
    model = copy.deepcopy(model).to(dtype).eval()
    with torch.no_grad():
        return torch.cat([model(inputs_of(model, some, dtype)) for some in images.split(500)]).double()


def accuracy(outputs, labels):
    return (outputs.argmax(1) == labels).double().mean().item()


class Checker:
    """One net: results of a checkpoint in Lockstep and in PyTorch."""

    def __init__(self, programs, directory, net, kind):
        self.programs, self.directory, self.net, self.kind = programs, directory, net, kind
        self.digits, self.figures = directory / "digits", directory / "figures.json"
        self.images, self.labels = read_set(self.digits, "t10k")

    def mnist(self, *flags):
        """Runs the sample; returns its test accuracy."""
        common = [self.programs / "mnist", "--data", self.digits, "--net", self.net, "--quiet", "--json", self.figures]
        subprocess.run([*common, *flags], check=True)
        return json.loads(self.figures.read_text())["test_accuracy"]

    def compare(self, checkpoint, model, reported):
        """Lockstep with `checkpoint` and PyTorch with `model`, which have the same weights, must agree."""
        dump = self.directory / "logits.safetensors"
        subprocess.run([self.programs / "dump_logits", self.net, checkpoint, self.digits, dump], check=True)
        ours = load_file(dump)["logits"].double()
        right, single = outputs_of(model, self.images, torch.float64), outputs_of(model, self.images, torch.float32)
        error, allowed = ((found - right).norm().item() / right.norm().item() for found in (ours, single))
        worst = (ours - right).abs().max().item()
        assert ours.shape == right.shape and error <= 2 * allowed and worst <= 1e-4, (self.net, error, allowed, worst)
        assert abs(reported - accuracy(right, self.labels)) <= 1.0 / len(self.labels), (self.net, reported)
        return f"outputs off by {error:.1e} (PyTorch's f32 by {allowed:.1e}), at most {worst:.1e}, accuracy {reported:.4f}"

    def ours_to_theirs(self):
        checkpoint, model = self.directory / "ours.safetensors", self.kind()
        reported = self.mnist("--epochs", "3", "--lr", "0.05", "--save", checkpoint)
        state = load_file(checkpoint)
        assert sorted(state) == sorted(model.state_dict()), (sorted(state), sorted(model.state_dict()))
        model.load_state_dict(state, strict=True)
        print(f"check_checkpoint: {self.net}, trained here: {self.compare(checkpoint, model, reported)}")

    def theirs_to_ours(self):
        """The same training by PyTorch: other weights and masks, the same network."""
        model = self.kind()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        images, labels = read_set(self.digits, "train")
        inputs = inputs_of(model, images)
        for _ in range(3):
            for rows in torch.randperm(len(labels)).split(64):
                optimizer.zero_grad()
                functional.nll_loss(model(inputs[rows]), labels[rows]).backward()
                optimizer.step()
        for prefix in ("", "module."):  # PyTorch's DataParallel adds it
            checkpoint, back = self.directory / "theirs.safetensors", self.directory / "back.safetensors"
            state = {key: value.contiguous() for key, value in model.state_dict().items()}
            named, pickled = {prefix + key: value for key, value in state.items()}, self.directory / "theirs.pth"
            save_file(named, checkpoint)
            torch.save(named, pickled)
            for saved in (checkpoint, pickled):
                reported = self.mnist("--epochs", "0", "--load", saved, "--save", back)
                returned = load_file(back)
                assert returned.keys() == state.keys()
                for key, value in state.items():
                    assert torch.equal(returned[key], value), (self.net, saved, prefix, key)
                print(f"check_checkpoint: {self.net}, trained by PyTorch: {self.compare(saved, model, reported)}")


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    programs = pathlib.Path(sys.argv[1]) / "bin"
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        sizes = ["--train", "6000", "--test", "1000"]
        subprocess.run([programs / "make-digits", "--data", directory / "digits", *sizes], check=True)
        for net, kind in (("cnn", Cnn), ("small", Small)):
            checker = Checker(programs, directory, net, kind)
            checker.ours_to_theirs()
            checker.theirs_to_ours()


if __name__ == "__main__":
    main()
