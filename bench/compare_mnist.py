#!/usr/bin/env python3
"""Compares Lockstep with PyTorch on the MNIST network: samples per second of training steps on the CPU.

    bench/compare_mnist.py build/release/bin/mnist-bench --python /path/to/python

Programs run in turn, a few steps each, so that other load affects all of them equally. Ratios are computed per round.
Writes a JSON file under bench/results/. Without --python only Lockstep is measured.
"""
import argparse
import os
import pathlib
import statistics

from measurement import Program, circumstances, spread, versions_of, write_results

HERE = pathlib.Path(__file__).resolve().parent
OURS = ["one", "dp"]
THEIRS = ["eager", "channels_last"]
THEIRS_DDP = ["ddp", "ddp_channels_last"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist_bench", help="path of mnist-bench")
    parser.add_argument("--python", help="Python interpreter with PyTorch")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[64, 128], help="rows per step (%(default)s)")
    parser.add_argument("--steps", type=int, default=60, help="steps per round and program (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=9, help="rounds (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch (%(default)s)")
    args = parser.parse_args()

    sizes = [str(size) for size in args.batch_size]
    ours = Program([args.mnist_bench, "--serve", "--steps", str(args.steps), "--batch-size", *sizes])
    programs = {way: ours for way in OURS}
    versions = versions_of(args.mnist_bench)
    if args.python:
        command = [args.python, str(HERE / "torch_mnist.py"), "--steps", str(args.steps), "--threads", str(args.threads)]
        single, ddp = Program(command), Program(command + ["--processes", "2"])
        programs.update({way: single for way in THEIRS})
        programs.update({way: ddp for way in THEIRS_DDP})
        versions["torch"] = single.ready[1]
    for size in sizes:  # programs warm up before anything counts
        for way, program in programs.items():
            program.rate("%s %s" % (way, size))

    rates = {size: {way: [] for way in programs} for size in sizes}
    loads = []
    for _ in range(args.repetitions):
        loads.append(os.getloadavg()[0])
        for size in sizes:
            for way, program in programs.items():
                rates[size][way].append(program.rate("%s %s" % (way, size)))
    for program in set(programs.values()):
        program.close()

    result = {
        **circumstances(versions, loads),
        "steps": args.steps,
        "repetitions": args.repetitions,
        "samples_per_second": {},
        "ratios": {},
    }
    print("%-8s %-18s %9s %9s %9s" % ("batch", "samples/s", "median", "min", "max"))
    for size in sizes:
        result["samples_per_second"][size] = {}
        for way, values in rates[size].items():
            figures = spread(values)
            result["samples_per_second"][size][way] = figures
            name = way if way in OURS else "torch " + way
            print("%-8s %-18s %9.0f %9.0f %9.0f" % (size, name, *figures.values()))
        ratios = {"dp / one": [dp / one for dp, one in zip(rates[size]["dp"], rates[size]["one"])]}
        if args.python:
            best = max(THEIRS + THEIRS_DDP, key=lambda way: statistics.median(rates[size][way]))
            for way in OURS:
                ratios["%s / torch %s" % (way, best)] = [a / b for a, b in zip(rates[size][way], rates[size][best])]
        result["ratios"][size] = {name: spread(values) for name, values in ratios.items()}
        for name, figures in result["ratios"][size].items():
            print("%-8s %-27s %.3f (%.3f to %.3f)" % (size, name, *figures.values()))
    write_results("mnist", result)


if __name__ == "__main__":
    main()
