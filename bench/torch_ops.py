"""PyTorch's side of compare_ops.py: a server that times single operations on the CPU.

Every line of input is a pass (forward or training), an expression, the shapes of its inputs a, b, c, and the number of
classes in the last one (0: floats), separated by tabs; the answer is microseconds per call.
"""
import argparse
import sys
import time

import torch
import torch.nn.functional as F


def measured(training, expression, shapes, classes, least):
    torch.manual_seed(1)
    names = {"torch": torch, "F": F}
    leaves = []
    for i, shape in enumerate(shapes):
        if classes and i + 1 == len(shapes):
            names["abc"[i]] = torch.randint(classes, shape)
        else:
            leaf = torch.randn(shape, requires_grad=True)
            names["abc"[i]] = leaf
            leaves.append(leaf)
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
    calls, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < least:
        call()
        calls += 1
    return (time.perf_counter() - begin) / calls * 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.05)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    print("ready", torch.__version__, flush=True)
    for line in sys.stdin:
        way, expression, shapes, classes = line.rstrip("\n").split("\t")
        sizes = [tuple(int(size) for size in shape.split(",")) for shape in shapes.split(" ")]
        print("%.3f" % measured(way == "training", expression, sizes, int(classes), args.seconds), flush=True)


if __name__ == "__main__":
    main()
