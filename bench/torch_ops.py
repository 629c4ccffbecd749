"""PyTorch's side of compare_ops.py: a server that times single operations on the CPU.

Every line of input is a pass (forward or training) and the fields of `ops-bench --list`, separated by tabs: name,
expression, shapes of its inputs a, b, c, ..., values of the last one (empty: floats; `mask`: bool; a number: classes),
dtype, and the expression of a layer m. The answer is microseconds per call.
"""
import argparse
import sys
import time

import torch
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "f64": torch.float64, "f16": torch.float16, "bf16": torch.bfloat16}


def measured(training, expression, shapes, last, dtype, layer, least, clock):
    torch.manual_seed(1)
    names = {"torch": torch, "F": F}
    leaves = []
    for i, shape in enumerate(shapes):
        name = chr(ord("a") + i)
        if last and i + 1 == len(shapes):
            names[name] = torch.rand(shape) < 0.5 if last == "mask" else torch.randint(int(last), shape)
        else:
            leaf = torch.randn(shape).to(DTYPES[dtype]).requires_grad_()
            names[name] = leaf
            leaves.append(leaf)
    if layer:
        names["m"] = eval(layer, names)
        leaves += names["m"].parameters()
    code = compile(expression, expression, "eval")
    upstream = []

    def call():
        if not training:
            with torch.no_grad():
                eval(code, names)
            return
        y = eval(code, names)
        if not upstream:
            upstream.append(torch.ones_like(y))
        y.backward(upstream[0])
        for leaf in leaves:
            leaf.grad = None

    for _ in range(3):
        call()
    calls, begin = 0, clock()
    while clock() - begin < least:
        call()
        calls += 1
    return (clock() - begin) / calls * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.05)
    parser.add_argument("--cpu-time", action="store_true", help="measure processor time")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    clock = time.process_time if args.cpu_time else time.perf_counter
    print("ready", torch.__version__, flush=True)
    for line in sys.stdin:
        way, _, expression, shapes, last, dtype, layer = line.rstrip("\n").split("\t")
        sizes = [tuple(int(size) for size in shape.split(",")) for shape in shapes.split(" ")]
        print("%.3f" % measured(way == "training", expression, sizes, last, dtype, layer, args.seconds, clock),
              flush=True)


if __name__ == "__main__":
    main()
