#!/usr/bin/env python3
"""Writes the files of torch.save that tests/parallel/test_pth.cpp reads. Their values count up from 0 in row-major order.

Needs the Python packages torch and numpy; run it only to change those files. cpp_module.pt and cpp_tensors.pt are from C++:
torch::save of a module with Linear(3, 4) "body", Linear(4, 2) "head" and BatchNorm1d(2) "norm", whose parameters count up
from 0, and of a vector of arange(3.f) and ones({2}).
usage: make_pth.py DIRECTORY     (tests/parallel/pth)
"""

import argparse
import collections
import datetime
import enum
import math
import pathlib
import sys

import numpy
import torch
from torch import nn


def count(*shape, dtype=torch.float32):
    return torch.arange(torch.Size(shape).numel()).reshape(shape).to(dtype)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 2)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(count(*parameter.shape))


def checkpoint():
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=5)
    state = {name: value.clone() for name, value in net.state_dict().items()}
    net.head(net.body(torch.ones(1, 3))).sum().backward()
    optimizer.step()
    return {
        "epoch": 3,
        "model_state_dict": state,
        "optimizer_state_dict": optimizer.state_dict(),
        "scheduler_state_dict": schedule.state_dict(),
        "loss": 0.25,
        "best": None,
        "seed": 2**63,
        "history": [0.5, 0.25, -1, 70000],
        "size": torch.Size([2, 3]),
        "dtype": torch.float32,
    }


class Colour(enum.Enum):
    red = 1


def beside():
    """A state_dict two of whose tensors have attributes, and values of many kinds."""
    state = dict(Net().state_dict())
    noted, parameter = state["body.weight"].clone(), nn.Parameter(state["head.weight"].clone())
    noted.note, parameter.tags = "mine", {"a": 1}
    state |= {"body.weight": noted, "head.weight": parameter}
    return {
        "model": state,
        "device": torch.device("cuda", 1),
        "set": {1, 2},
        "frozenset": frozenset([3]),
        "counter": collections.Counter("aab"),
        "default": collections.defaultdict(list, {"k": [1]}),
        "bytes": b"\xff\x00",
        "bytearray": bytearray(b"ab"),
        "namespace": argparse.Namespace(lr=0.1),
        "when": datetime.datetime(2024, 1, 2),
        "path": pathlib.Path("/data/x"),
        "enum": Colour.red,
        "function": math.sqrt,
        "class": Net,
        "numpy scalar": numpy.float64(0.5),
        "array": numpy.arange(3.0),
        "complex": 1j,
        "none": None,
        "true": True,
        "large": 2**100,
        "nested": [(1, {"x": [0.5]})],
        "sparse": torch.eye(2).to_sparse(),
        "quantized": torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
        "generator state": torch.zeros(2, dtype=torch.uint8),
    }


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    directory = pathlib.Path(sys.argv[1])
    dtypes = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8]
    others = [torch.int16, torch.int8, torch.uint16, torch.complex64, torch.float8_e4m3fn]
    named = {str(dtype).removeprefix("torch."): count(2, 3, dtype=dtype) for dtype in dtypes + others}
    named |= {"bool": torch.tensor([True, False, True]), "scalar": torch.tensor(1.5), "empty": torch.zeros(0, 4)}
    torch.save(named | {"long": torch.zeros([1] * 9), "mask_values": [0, 255]}, directory / "dtypes.pth")

    shared, tied = count(8), count(2, 2)
    strides = {
        "transposed": count(2, 3).t(),
        "every third": count(10)[2:9:3],
        "expanded": count(3, 1).expand(3, 4),
        "channels last": count(1, 2, 3, 4).contiguous(memory_format=torch.channels_last),
        "first half": shared[:4],
        "second half": shared[4:],
        "tied": tied,
        "tied too": tied,
        "bools": torch.tensor([[True, False], [False, False]]).t(),
        "longs": count(3, 3, dtype=torch.int64)[:, 1],
    }
    torch.save(strides, directory / "strides.pth")

    net = Net()
    torch.save(net.state_dict(), directory / "net.pth")
    torch.save(net.state_dict(), directory / "protocol4.pth", pickle_protocol=4)
    torch.save(nn.DataParallel(net).state_dict(), directory / "module.pth")
    torch.save({"_orig_mod." + name: value for name, value in net.named_parameters()}, directory / "parameters.pth")
    torch.save(checkpoint(), directory / "checkpoint.pth")
    half = {name: value + 0.5 for name, value in net.state_dict().items()}
    torch.save({"model": net.state_dict(), "ema": half, "best": torch.tensor(0.5)}, directory / "averaged.pth")
    torch.save({"generator": net.state_dict(), "critic": half}, directory / "several.pth")
    torch.save({"state_dict": net.state_dict(), "args": argparse.Namespace(lr=0.1)}, directory / "namespace.pth")
    for protocol in (2, 5):
        torch.save(beside(), directory / f"beside{protocol}.pth", pickle_protocol=protocol)
    layers = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    torch.jit.save(torch.jit.script(layers), directory / "script.pt")
    torch.save(net.state_dict(), directory / "legacy.pth", _use_new_zipfile_serialization=False)


if __name__ == "__main__":
    main()
