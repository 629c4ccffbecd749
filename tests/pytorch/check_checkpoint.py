#!/usr/bin/env python3
"""Load checkpoints of the mnist sample into PyTorch's network, compare outputs and accuracy, and go the other way.

Needs the Python packages torch, numpy and safetensors; not part of the normal tests.
usage: check_checkpoint.py BUILD_DIR     (where bin/mnist and bin/make-digits lie)
"""

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
    pixels = numpy.fromfile(directory / f"{name}-images-idx3-ubyte", numpy.uint8)[16:].reshape(-1, 1, 28, 28)
    labels = numpy.fromfile(directory / f"{name}-labels-idx1-ubyte", numpy.uint8)[8:]
    return torch.tensor(pixels) / 255, torch.tensor(labels.astype(numpy.int64))


def accuracy(model, images, labels):
    model.eval()
    with torch.no_grad():
        return (model((images - model.mean) / model.deviation).argmax(1) == labels).double().mean().item()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    programs = pathlib.Path(sys.argv[1]) / "bin"
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        digits, checkpoint, figures = directory / "digits", directory / "ours.safetensors", directory / "figures.json"
        subprocess.run([programs / "make-digits", "--data", digits, "--train", "6000", "--test", "1000"], check=True)
        images, labels = read_set(digits, "t10k")
        train_images, train_labels = read_set(digits, "train")
        for net, kind in (("cnn", Cnn), ("small", Small)):
            common = [programs / "mnist", "--data", digits, "--net", net, "--quiet", "--json", figures]
            subprocess.run([*common, "--epochs", "3", "--lr", "0.05", "--save", checkpoint], check=True)
            model = kind()
            state = load_file(checkpoint)
            assert sorted(state) == sorted(model.state_dict()), (sorted(state), sorted(model.state_dict()))
            model.load_state_dict(state, strict=True)
            theirs = accuracy(model, images, labels)
            ours = json.loads(figures.read_text())["test_accuracy"]
            assert abs(ours - theirs) <= 1.0 / len(labels), (net, ours, theirs)

            # The same training by PyTorch: other weights and masks, the same network.
            reference = kind()
            optimizer = torch.optim.SGD(reference.parameters(), lr=0.05, momentum=0.5)
            for _ in range(3):
                reference.train()
                for rows in torch.randperm(len(train_labels)).split(64):
                    optimizer.zero_grad()
                    inputs = (train_images[rows] - kind.mean) / kind.deviation
                    functional.nll_loss(reference(inputs), train_labels[rows]).backward()
                    optimizer.step()
            trained = accuracy(reference, images, labels)

            # And back: ours evaluates PyTorch's weights, with the prefix that its DataParallel adds.
            save_file({f"module.{key}": value.contiguous() for key, value in reference.state_dict().items()}, checkpoint)
            (directory / "ours.safetensors.resume").unlink()
            subprocess.run([*common, "--epochs", "0", "--load", checkpoint], check=True)
            loaded = json.loads(figures.read_text())["test_accuracy"]
            assert abs(loaded - trained) <= 1.0 / len(labels), (net, loaded, trained)
            print(f"check_checkpoint: {net}: accuracy {ours:.4f} trained here, {trained:.4f} by PyTorch; both agree on both")


if __name__ == "__main__":
    main()
