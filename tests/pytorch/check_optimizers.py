#!/usr/bin/env python3
"""Compares every optimizer and schedule with PyTorch's: 100 steps on the same numbers and gradients.

    check_optimizers.py build/dev/bin/dump_optimizers

Needs PyTorch; the normal test command does not run this. Prints the worst relative difference of each case, PyTorch's
numbers in the same dtype, and ends with status 1 when one is beyond its bound.
"""
import json
import subprocess
import sys
import warnings

import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, RMSprop  # noqa: F401 - the expressions use them
from torch.optim.lr_scheduler import *  # noqa: F401,F403

BOUNDS = {"float32": 1e-4, "float64": 1e-11, "schedule": 1e-12}


def difference(found, expected):
    return ((found - expected).abs() / expected.abs().clamp(min=1e-12 if len(found) < 40 else 1.0)).max().item()


def optimized(case, start, gradients):
    dtype = getattr(torch, case["dtype"])
    p = torch.nn.Parameter(start.to(dtype, copy=True))
    optimizer = eval(case["torch"], globals(), {"p": [p]})
    for gradient in gradients:
        p.grad = gradient.to(dtype)
        optimizer.step()
    return p.detach().double()


def scheduled(case):
    o = SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1, momentum=0.9)
    schedule = eval(case["torch"], globals(), {"o": o})
    rates = [o.param_groups[0]["lr"]]
    for _ in case["values"][1:]:
        o.step()
        schedule.step()
        rates.append(o.param_groups[0]["lr"])
    return torch.tensor(rates, dtype=torch.float64)


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    warnings.simplefilter("ignore")
    dump = json.loads(subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout)
    start = torch.tensor(dump["start"], dtype=torch.float64)
    gradients = torch.tensor(dump["gradients"], dtype=torch.float64)
    bad = 0
    for case in dump["cases"]:
        kind = case.get("dtype", "schedule")
        expected = optimized(case, start, gradients) if "dtype" in case else scheduled(case)
        worst = difference(torch.tensor(case["values"], dtype=torch.float64), expected)
        good = worst <= BOUNDS[kind]
        bad += not good
        print(f"{'ok ' if good else 'BAD'} {worst:9.2e} {kind:8} {case['torch']}")
    print(f"{len(dump['cases'])} cases against PyTorch {torch.__version__}, {bad} beyond their bounds")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
