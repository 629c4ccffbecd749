#!/usr/bin/env python3
"""Compares clipping with PyTorch's: of given gradients, including gradients that are not finite, and in 100 training steps
on three devices, in steps, in microbatches and in the manual step.

    check_clipping.py build/dev/bin/dump_clipping

Needs PyTorch; the normal test command does not run this. Prints the worst relative difference of each way to clip,
PyTorch's numbers in the same dtype, and exits with status 1 if one exceeds its bound.
"""
import json
import subprocess
import sys

import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

BOUNDS = {"float32": 1e-4, "float64": 1e-11}


def difference(found, expected):
    """The largest difference relative to the largest number; infinite if NaN, infinities or lengths differ."""
    found, expected = (torch.as_tensor(values, dtype=torch.float64).flatten() for values in (found, expected))
    finite = expected.isfinite()
    if found.shape != expected.shape or not torch.equal(found.isfinite(), finite):
        return float("inf")
    if not torch.equal(found[~finite].nan_to_num(5, 6, 7), expected[~finite].nan_to_num(5, 6, 7)):
        return float("inf")
    if not finite.any():
        return 0.0
    scale = expected[finite].abs().max().item()
    return ((found[finite] - expected[finite]).abs().max() / (scale if scale > 0 else 1)).item()


def words_of(clip):
    group = clip.get("group", -1)
    where = "" if group < 0 else f" of group {group}"
    if "clip_value" in clip:
        return f"values to {clip['clip_value']}{where}"
    strict = ", error_if_nonfinite" if clip["error_if_nonfinite"] else ""
    return f"norm of order {clip['norm_type']} to {clip['max_norm']}{where}{strict}"


def apply(clip, parameters):
    """Returns the norm, or 0."""
    if "clip_value" in clip:
        clip_grad_value_(parameters, clip["clip_value"])
        return 0.0
    return clip_grad_norm_(parameters, clip["max_norm"], clip["norm_type"], clip["error_if_nonfinite"]).item()


def of_gradients(case):
    dtype = getattr(torch, case["dtype"])
    parameters = [torch.nn.Parameter(torch.zeros(len(values), dtype=dtype)) for values in case["gradients"]]
    for parameter, values in zip(parameters, case["gradients"]):
        parameter.grad = torch.tensor(values, dtype=dtype)
    norm, error = 0.0, ""
    try:
        norm = apply(case["clip"], parameters)
    except RuntimeError as thrown:
        error = str(thrown)
    # PyTorch prints the order as 2.0, Lockstep as 2.
    if error.partition(" for ")[2] != case["error"].partition(" for ")[2]:
        return float("inf")
    clipped = torch.cat([parameter.grad for parameter in parameters])
    return max(difference(sum(case["clipped"], []), clipped), 0.0 if error else difference([case["norm"]], [norm]))


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.still = torch.nn.Linear(6, 16), torch.nn.Linear(16, 16)
        self.second, self.unused = torch.nn.Linear(16, 3), torch.nn.Linear(4, 4)

    def forward(self, x):
        return self.second(torch.tanh(self.still(torch.tanh(self.first(x)))))


def of_training(case, dump):
    dtype = getattr(torch, case["dtype"])
    net = Net().to(dtype)
    with torch.no_grad():
        for parameter, values in zip(net.parameters(), dump["weights"]):
            parameter.copy_(torch.tensor(values, dtype=torch.float64).reshape(parameter.shape))
    net.still.weight.requires_grad_(False)
    groups = [[p for name, p in net.named_parameters() if name.startswith("second") == second] for second in (False, True)]
    optimizer = torch.optim.SGD([{"params": groups[0]}, {"params": groups[1], "lr": 0.05}], lr=0.1, momentum=0.9)
    x = torch.tensor(dump["x"], dtype=torch.float64).reshape(-1, 6).to(dtype)
    y = torch.tensor(dump["y"], dtype=torch.float64).reshape(-1, 3).to(dtype)
    losses, norms = [], []
    for _ in case["losses"]:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        losses.append(loss.item())
        loss.backward()
        for number, clip in enumerate(case["clip"]):
            norm = apply(clip, groups[0] + groups[1] if clip["group"] < 0 else groups[clip["group"]])
            if number == 0 and "max_norm" in clip:
                norms.append(norm)
        optimizer.step()
    worst = max(difference([found], [right]) for found, right in zip(case["losses"], losses))
    if len(norms) != len(case["norms"]):
        return float("inf")
    for found, right in zip(case["norms"], norms):
        worst = max(worst, difference([found], [right]))
    for found, right in zip(case["weights"], net.parameters()):
        worst = max(worst, difference(found, right.detach()))
    return worst


def main():
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    dump = json.loads(subprocess.run([sys.argv[1]], check=True, capture_output=True, text=True).stdout)
    worst = {}
    for case in dump["gradients"]:
        key = ("gradients", case["dtype"], words_of(case["clip"]))
        worst[key] = max(worst.get(key, 0.0), of_gradients(case))
    for case in dump["training"]:
        worst[case["form"], case["dtype"], ", ".join(map(words_of, case["clip"])) or "nothing"] = of_training(case, dump)
    bad = 0
    for (form, dtype, clip), found in worst.items():
        good = found <= BOUNDS[dtype]
        bad += not good
        print(f"{'ok ' if good else 'BAD'} {found:9.2e} {form:9} {dtype} {clip}")
    for dtype in BOUNDS:
        print(f"worst of {dtype}: {max(found for key, found in worst.items() if key[1] == dtype):.1e}")
    print(
        f"{len(dump['gradients'])} gradients and {len(dump['training'])} runs against PyTorch {torch.__version__}, "
        f"{bad} beyond their bounds"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
