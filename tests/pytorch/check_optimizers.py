#!/usr/bin/env python3
"""Compares every optimizer and schedule with PyTorch's: 100 steps on the same numbers and gradients, the curve of a loss
over 100 steps from the same weights, rates and momenta over 100 epochs.

    check_optimizers.py [--table] build/dev/bin/dump_optimizers

Needs PyTorch; the normal test command does not run this. Prints the worst relative difference of each case, PyTorch's
numbers in the same dtype, and exits with status 1 if one exceeds its bound. --table: prints a Markdown table.
"""
import json
import subprocess
import sys
import warnings

import torch
from torch.optim import *  # noqa: F401,F403 - the expressions use them
from torch.optim.lr_scheduler import *  # noqa: F401,F403

BOUNDS = {
    ("numbers", "float32"): 1e-4,
    ("numbers", "float64"): 1e-11,
    ("curve", "float32"): 1e-4,
    ("curve", "float64"): 1e-11,
    ("schedule", "float64"): 1e-12,
}
# Differences are relative to numbers above this size, which is that of initial parameters.
FLOOR = {"numbers": 1.0, "curve": 1e-12, "schedule": 1e-12}


def options(arguments):
    return {name: value for name, value in arguments.items() if name not in ("self", "params", "__class__")}


class LARS(torch.optim.Optimizer):
    """torch.optim has none; the order of operations is timm's."""

    def __init__(self, params, lr=1.0, momentum=0, dampening=0, weight_decay=0, trust_coefficient=0.001, eps=1e-8,
                 nesterov=False, trust_clip=False, always_adapt=False):
        super().__init__(params, options(locals()))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                ratio, decay = 1.0, group["weight_decay"]
                if decay != 0 or group["always_adapt"]:
                    of_p, of_grad = p.double().norm().item(), p.grad.double().norm().item()
                    if of_p > 0 and of_grad > 0:
                        ratio = group["trust_coefficient"] * of_p / (of_grad + of_p * decay + group["eps"])
                    if group["trust_clip"]:
                        ratio = min(ratio / group["lr"], 1.0)
                grad = (p.grad + decay * p) * ratio
                if group["momentum"] != 0:
                    state = self.state[p]
                    if "momentum_buffer" in state:
                        state["momentum_buffer"].mul_(group["momentum"]).add_(grad, alpha=1 - group["dampening"])
                    else:
                        state["momentum_buffer"] = grad.clone()
                    buffer = state["momentum_buffer"]
                    grad = grad.add(buffer, alpha=group["momentum"]) if group["nesterov"] else buffer
                p.add_(grad, alpha=-group["lr"])


class LAMB(torch.optim.Optimizer):
    """As above."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, bias_correction=True,
                 grad_averaging=True, trust_clip=False, always_adapt=False):
        super().__init__(params, options(locals()))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state.update(step=0, exp_avg=torch.zeros_like(p), exp_avg_sq=torch.zeros_like(p))
                state["step"] += 1
                state["exp_avg"].mul_(beta1).add_(p.grad, alpha=1 - beta1 if group["grad_averaging"] else 1)
                state["exp_avg_sq"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                corrections = [1 - beta ** state["step"] if group["bias_correction"] else 1 for beta in (beta1, beta2)]
                size = (state["exp_avg_sq"].sqrt() / corrections[1] ** 0.5).add_(group["eps"])
                update = (state["exp_avg"] / corrections[0]).div_(size).add_(p, alpha=group["weight_decay"])
                ratio = 1.0
                if group["weight_decay"] != 0 or group["always_adapt"]:
                    of_p, of_update = p.double().norm().item(), update.double().norm().item()
                    ratio = of_p / of_update if of_p > 0 and of_update > 0 else 1.0
                if group["trust_clip"]:
                    ratio = min(ratio, 1.0)
                p.add_(update, alpha=-group["lr"] * ratio)


def numbers(case, dump):
    """Both parameters after every step."""
    dtype = getattr(torch, case["dtype"])
    torch.set_default_dtype(dtype)  # NAdam and ASGD have numbers of this dtype for each parameter
    x, y = (torch.nn.Parameter(torch.tensor(values, dtype=torch.float64).to(dtype)) for values in dump["start"])
    optimizer = eval(case["torch"], globals(), {"p": [x, y], "x": x, "y": y})
    after = []
    for of_x, of_y in dump["gradients"]:
        x.grad, y.grad = torch.tensor(of_x, dtype=dtype), torch.tensor(of_y, dtype=dtype)
        optimizer.step()
        after.append(torch.cat([x.detach(), y.detach()]).double())
    return torch.stack(after)


def curve(case, dump):
    """The loss before every step."""
    dtype = getattr(torch, case["dtype"])
    torch.set_default_dtype(dtype)
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).to(dtype)
    with torch.no_grad():
        for parameter, values in zip(net.parameters(), dump["weights"]):
            parameter.copy_(torch.tensor(values, dtype=torch.float64).reshape(parameter.shape))
    x = torch.tensor(dump["x"], dtype=torch.float64).reshape(-1, 6).to(dtype)
    y = torch.tensor(dump["y"], dtype=torch.float64).reshape(-1, 3).to(dtype)
    optimizer = eval(case["torch"], globals(), {"p": net.parameters()})
    losses = []
    for _ in case["values"]:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(x), y)
        losses.append([loss.item()])
        loss.backward()
        optimizer.step()
    return torch.tensor(losses, dtype=torch.float64)


def schedule(case, dump):
    """The rates of both groups, and the momentum of the first."""
    groups = [{"params": [torch.nn.Parameter(torch.zeros(1))]}, {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.4}]
    o = eval(case["optimizer"], globals(), {"g": groups})
    made = eval(case["torch"], globals(), {"o": o})

    def settings():
        first, second = o.param_groups
        return [first["lr"], second["lr"], first["momentum"] if "momentum" in first else first["betas"][0]]

    values = [settings()]
    for metric in dump["metrics"]:
        o.step()
        made.step(*([metric] if isinstance(made, ReduceLROnPlateau) else []))  # noqa: F405
        values.append(settings())
    return torch.tensor(values, dtype=torch.float64)


def main():
    words = [word for word in sys.argv[1:] if word != "--table"]
    torch.set_num_threads(1)
    if len(words) != 1:
        print(__doc__, file=sys.stderr)
        return 2
    as_table = len(words) < len(sys.argv) - 1
    warnings.simplefilter("ignore")
    dump = json.loads(subprocess.run(words, check=True, capture_output=True, text=True).stdout)
    bad, found = 0, {}
    for case in dump["cases"]:
        kind, dtype = case["kind"], case["dtype"]
        expected = {"numbers": numbers, "curve": curve, "schedule": schedule}[kind](case, dump)
        values = torch.tensor(case["values"], dtype=torch.float64)
        assert len(values) >= 100, case["torch"]
        worst = ((values - expected).abs() / expected.abs().clamp(min=FLOOR[kind])).max().item()
        good = worst <= BOUNDS[kind, dtype]
        bad += not good
        name = case["torch"] + (f", o = {case['optimizer']}" if case["optimizer"].startswith("Adam") else "")
        found.setdefault(name, {})[kind, dtype] = worst
        if not as_table or not good:
            print(f"{'ok ' if good else 'BAD'} {worst:9.2e} {kind:8} {dtype} {name}")
    if as_table:
        print_table(found)
    print(f"{len(dump['cases'])} cases against PyTorch {torch.__version__}, {bad} beyond their bounds")
    return 1 if bad else 0


def print_table(found):
    def cell(worst, *key):
        return f"{worst[key]:.0e}" if key in worst else ""

    print("| optimizer | numbers, f32 | f64 | loss, f32 | f64 |\n|---|---|---|---|---|")
    for name, worst in found.items():
        if ("schedule", "float64") not in worst:
            cells = [cell(worst, kind, dtype) for kind in ("numbers", "curve") for dtype in ("float32", "float64")]
            print(f"| `{name}` | {' | '.join(cells)} |")
    print("\n| schedule | rates and momenta |\n|---|---|")
    for name, worst in found.items():
        if ("schedule", "float64") in worst:
            print(f"| `{name}` | {cell(worst, 'schedule', 'float64')} |")
    print()


if __name__ == "__main__":
    sys.exit(main())
