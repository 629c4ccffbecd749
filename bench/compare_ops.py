#!/usr/bin/env python3
"""Compares single operations of Lockstep and PyTorch on the CPU: eager, forward and with backward, 1 Mi elements or the
shapes of small networks. `ops-bench --list` prints them.

    bench/compare_ops.py build/release/bin/ops-bench --python /path/to/python

Both run in turn, so that other load affects them equally. A ratio above 1 means that Lockstep is faster; ratios are
computed per round. Writes a JSON file under bench/results/.
"""
import argparse
import os
import pathlib
import subprocess

from measurement import Program, circumstances, spread, versions_of, write_results

HERE = pathlib.Path(__file__).resolve().parent


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ops_bench", help="path of ops-bench")
    parser.add_argument("--python", required=True, help="Python interpreter with PyTorch")
    parser.add_argument("--threads", type=int, default=1, help="threads for each library (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="rounds (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.05, help="shortest time of a measurement (%(default)s)")
    parser.add_argument("--cpu-time", action="store_true",
                        help="measure processor time instead of elapsed time, on a machine with other work")
    parser.add_argument("--only", default="", metavar="TEXT", help="only operations whose name contains TEXT")
    args = parser.parse_args()

    flags = ["--threads", str(args.threads), "--seconds", str(args.seconds)]
    if args.cpu_time:
        flags.append("--cpu-time")
    ours = Program([args.ops_bench, "--serve", *flags])
    theirs = Program([args.python, str(HERE / "torch_ops.py"), *flags])
    versions = {**versions_of(args.ops_bench), "torch": theirs.ready[1]}
    listed = subprocess.check_output([args.ops_bench, "--list"], text=True).splitlines()

    result = {"threads": args.threads, "repetitions": args.repetitions, "clock": "processor" if args.cpu_time else "wall",
              "microseconds": {}, "ratios": {}}
    loads = []
    print("%-72s %-9s %10s %10s  %s" % ("operation", "pass", "us", "torch us", "ratio"))
    for number, line in enumerate(listed):
        operation = line.split("\t")[0]
        if args.only not in operation:
            continue
        for way in ("forward", "training"):
            times = {"lockstep": [], "torch": []}
            for _ in range(args.repetitions):
                loads.append(os.getloadavg()[0])
                times["lockstep"].append(ours.rate("%d %s" % (number, way)))
                times["torch"].append(theirs.rate("%s\t%s" % (way, line)))
            name = "%s, %s" % (operation, way)
            result["microseconds"][name] = {side: spread(values) for side, values in times.items()}
            ratio = spread([b / a for a, b in zip(times["lockstep"], times["torch"])])
            result["ratios"][name] = ratio
            print("%-72s %-9s %10.1f %10.1f  %.2f (%.2f to %.2f)" % (
                operation, way, result["microseconds"][name]["lockstep"]["median"],
                result["microseconds"][name]["torch"]["median"], *ratio.values()), flush=True)
    ours.close()
    theirs.close()
    write_results("ops", {**circumstances(versions, loads), **result})


if __name__ == "__main__":
    main()
