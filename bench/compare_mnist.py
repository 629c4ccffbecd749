#!/usr/bin/env python3
"""Lockstep beside PyTorch on the MNIST network: samples per second of training steps on the CPU.

    bench/compare_mnist.py build/release/bin/mnist-bench --python /path/to/python

Programs run in turn, a few steps each, so that what else the machine does hits all alike; ratios are taken round by
round. Writes a JSON file under bench/results/. Without --python only Lockstep is measured.
"""
import argparse
import datetime
import json
import os
import pathlib
import platform
import statistics
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
OURS = ["one", "dp"]
THEIRS = ["eager", "channels_last"]
THEIRS_DDP = ["ddp", "ddp_channels_last"]


class Program:
    def __init__(self, command, **options):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
        self.ready = self.answer()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("%s ended with status %s" % (self.process.args, self.process.wait()))
        return line.split()

    def figures(self, order):
        self.process.stdin.write(order + "\n")
        self.process.stdin.flush()
        return [float(figure) for figure in self.answer()]

    def rate(self, order):
        return self.figures(order)[0]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def cpu_name():
    for line in open("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mnist_bench")
    parser.add_argument("--python", help="an interpreter that has PyTorch")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()

    sizes = [str(size) for size in args.batch_size]
    ours = Program([args.mnist_bench, "--serve", "--steps", str(args.steps), "--batch-size", *sizes])
    programs = {way: ours for way in OURS}
    info = pathlib.Path(args.mnist_bench).with_name("lockstep-info")
    versions = json.loads(subprocess.check_output([info, "--json"]))["versions"]
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
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "load_average": max(loads),
        "system": platform.platform(),
        "versions": versions,
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
    folder = HERE / "results"
    folder.mkdir(exist_ok=True)
    path = folder / ("mnist-%s.json" % result["date"].replace(":", "").replace("+0000", "Z"))
    path.write_text(json.dumps(result, indent=2) + "\n")
    print("written:", path)


if __name__ == "__main__":
    main()
