"""Compares the scales of torch.amp.GradScaler with those in tests/fixtures/recorded_scales.h.

    python tests/pytorch/check_grad_scaler.py [--print]

Exits with status 1 if the installed PyTorch differs from that file; --print prints the contents that the file should
have. test_grad_scaler and test_grad_scaler_ranks compare Lockstep with the file.
"""
import pathlib
import re
import sys

import torch

RECORDED = pathlib.Path(__file__).parent.parent / "fixtures" / "recorded_scales.h"

# (init_scale, growth_factor, backoff_factor, growth_interval), steps, the steps whose gradients are not finite, gradient
CASES = [
    ((65536.0, 2.0, 0.5, 3), 20, [2, 3, 7, 15], 1.0),
    ((1000.0, 1.7, 0.3, 2), 20, [0, 5, 6, 13], 1.0),
    ((65536.0, 2.0, 0.5, 1), 8, [1, 2, 3], 1.0),
    ((1e38, 2.0, 0.5, 1), 6, [4], 1e-30),  # it does not grow beyond f32
    ((1e-44, 2.0, 0.5, 3), 6, [0, 1, 2, 3, 4], 0.0),  # it reaches 0
]


def scales(options, steps, bad, gradient):
    init_scale, growth_factor, backoff_factor, growth_interval = options
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_factor=growth_factor,
                                  backoff_factor=backoff_factor, growth_interval=growth_interval)
    weight = torch.nn.Parameter(torch.ones(1))
    sgd = torch.optim.SGD([weight], lr=0.0)
    found = []
    for step in range(steps):
        sgd.zero_grad()
        scaler.scale((weight * (float("inf") if step in bad else gradient)).sum()).backward()
        scaler.step(sgd)
        scaler.update()
        found.append((scaler.get_scale(), scaler.state_dict()["_growth_tracker"]))
    return found


def lines():
    for options, steps, bad, gradient in CASES:
        found = ", ".join(f"{{{scale!r}, {tracker}}}" for scale, tracker in scales(options, steps, bad, gradient))
        numbers = ", ".join(repr(number) for number in options)
        yield f"{{{{{numbers}}}, {{{', '.join(map(str, bad))}}}, {gradient!r}, {{{found}}}}},"


def main():
    text = "\n".join(lines())
    if "--print" in sys.argv:
        print(text)
        return 0
    table = RECORDED.read_text()
    table = table[table.index("all{") + 4:table.rindex("};\n    return all")]
    without_layout = [re.sub(r"\s", "", part) for part in (text, table)]
    same = without_layout[0] == without_layout[1]
    print(f"PyTorch {torch.__version__}: {'as recorded' if same else 'not as recorded; see --print'}")
    return 0 if same else 1


sys.exit(main())
