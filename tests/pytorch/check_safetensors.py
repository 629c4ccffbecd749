#!/usr/bin/env python3
"""Exchanges files between Lockstep's safetensors code and the safetensors package, in both directions.

Needs the Python packages torch and safetensors; not part of the normal tests.
usage: check_safetensors.py BUILD_DIR     (that contains bin/safetensors-exchange)
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool]
SHAPES = [(), (1,), (3,), (0, 5), (2, 3, 5), (7, 1)]


def tensors():
    torch.manual_seed(0)
    made = {}
    for dtype in DTYPES:
        for shape in SHAPES:
            made[f"{str(dtype).removeprefix('torch.')}.{'x'.join(map(str, shape)) or 'scalar'}"] = (
                torch.randn(shape) * 50
            ).abs().to(dtype)
    made['a name with "quotes", a \\ and ünïcode'] = torch.arange(5)
    return made


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    exchange = pathlib.Path(sys.argv[1]) / "bin" / "safetensors-exchange"
    expected = tensors()
    with tempfile.TemporaryDirectory() as directory:
        theirs = pathlib.Path(directory) / "theirs.safetensors"
        ours = pathlib.Path(directory) / "ours.safetensors"
        save_file(expected, theirs, metadata={"format": "pt", "note": "ünïcode"})
        subprocess.run([exchange, theirs, ours], check=True)
        found = load_file(ours)
        with safe_open(ours, framework="pt") as file:
            metadata = file.metadata()
            lazily = {name: file.get_tensor(name) for name in file.keys()}

        assert metadata == {"format": "pt", "note": "ünïcode"}, metadata
        assert found.keys() == expected.keys() == lazily.keys()
        for name, tensor in expected.items():
            assert same(found[name], tensor) and same(lazily[name], tensor), name
    print(f"check_safetensors: {len(expected)} tensors are unchanged after a round trip through Lockstep")


if __name__ == "__main__":
    main()
