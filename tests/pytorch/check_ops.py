#!/usr/bin/env python3
"""Compares the op table with PyTorch: values and gradients of every entry, computed by PyTorch in double precision.

    check_ops.py build/dev/bin/dump_ops [device]

Needs PyTorch; the normal test command does not run this. Exits with status 1 if the error of an entry exceeds its
bound.
"""
import json
import subprocess
import sys

import torch
import torch.nn.functional as F  # noqa: F401 - the expressions of the table use it


def tensor(described, dtype):
    return torch.tensor(described["values"], dtype=dtype).reshape(described["shape"])


def error(found, expected):
    """Largest difference relative to the largest finite element, or to 1; infinite if only one side has NaN or infinity."""
    if list(found.shape) != list(expected.shape):
        return float("inf")
    if expected.numel() == 0:
        return 0.0
    finite = expected.isfinite()
    scale = max(1.0, expected[finite].abs().max().item()) if finite.any() else 1.0
    same = (found == expected) | (found.isnan() & expected.isnan())
    difference = torch.where(same, 0.0, (found - expected).abs()).max().item() / scale
    return difference if difference == difference else float("inf")


def check(entry):
    """The entry's largest error, values and gradients together."""
    names = {"torch": torch, "F": F}
    leaves = []
    for letter, kind, described in zip("abcdef", entry["kinds"], entry["inputs"]):
        value = tensor(described, torch.int64 if kind == "classes" else torch.float64)
        if kind == "leaf":
            value.requires_grad_()
        leaves.append(value)
        names[letter] = value
    y = eval(entry["torch"], names)
    errors = [error(tensor(entry["y"], torch.float64), y.detach().double())]
    if any(leaf.requires_grad for leaf in leaves):
        y.backward(tensor(entry["dy"], torch.float64))
    for leaf, found in zip(leaves, entry["gradients"]):
        if leaf.requires_grad != (found is not None):
            # An input of the table that the expression does not use has no gradient in either library.
            if found is not None or leaf.grad is not None:
                errors.append(float("inf"))
        elif found is not None:
            errors.append(error(tensor(found, torch.float64), leaf.grad))
    return max(errors)


def main():
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    dump = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, check=True, text=True).stdout
    entries = [json.loads(line) for line in dump.splitlines()]
    bad = 0
    for entry in entries:
        off = check(entry)
        if not off <= entry["bound"]:
            bad += 1
            print(f"{entry['name']} [{entry['torch']}]: off by {off:.2e}, bound {entry['bound']:.0e}")
    print(f"{len(entries)} entries against PyTorch {torch.__version__}: {bad} disagree")
    return 1 if bad or not entries else 0


if __name__ == "__main__":
    sys.exit(main())
