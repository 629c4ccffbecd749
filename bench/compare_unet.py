#!/usr/bin/env python3
"""Compares Lockstep with PyTorch on U-Net: seconds per training step and peak memory on the CPU.

    bench/compare_unet.py build/release/bin/unet-bench --python /path/to/python

All programs run in turn, a step each, so that other load affects all of them equally. Ratios are computed per round.
Peak memory is that of a process that runs only such steps. Writes a JSON file under bench/results/. Without --python
only Lockstep is measured. --isa avx2 limits both sides to AVX2.
"""
import argparse
import os
import pathlib
import statistics
import subprocess

from measurement import Program, circumstances, spread, versions_of, write_results

HERE = pathlib.Path(__file__).resolve().parent
OURS = ["one", "dp"]
THEIRS = ["eager", "channels_last"]


def environment_of(isa):
    """The environment that limits both sides to the instruction set `isa`."""
    env = dict(os.environ)
    if isa == "avx2":
        env.update(LOCKSTEP_CPU_ISA="avx2", ATEN_CPU_CAPABILITY="avx2", ONEDNN_MAX_CPU_ISA="AVX2")
    return env


def peak_bytes(command, way, steps, env):
    """Highest resident size of a process that runs `steps` steps of one way."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env)
    process.stdin.write((way + "\n") * steps)
    process.stdin.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit("%s failed with status %s" % (command, process.returncode))
    return usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("unet_bench", help="path of unet-bench")
    parser.add_argument("--python", help="Python interpreter with PyTorch")
    parser.add_argument("--isa", choices=["avx2", "avx512"], default="avx512",
                        help="instruction set of both sides (%(default)s)")
    parser.add_argument("--bf16", action="store_true", help="also measure mixed precision")
    parser.add_argument("--batch-size", type=int, default=4, help="images per step (%(default)s)")
    parser.add_argument("--width", type=int, default=64, help="channels of the first level (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="rounds (%(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="threads of PyTorch (%(default)s)")
    args = parser.parse_args()

    env = environment_of(args.isa)
    shape = ["--batch-size", str(args.batch_size), "--width", str(args.width)]
    suffixes = ["", "_bf16"] if args.bf16 else [""]
    commands = {way + suffix: [args.unet_bench, "--serve", *shape] for suffix in suffixes for way in OURS}
    versions = versions_of(args.unet_bench)
    if args.python:
        command = [args.python, str(HERE / "torch_unet.py"), "--threads", str(args.threads), *shape]
        commands.update({way + suffix: command for suffix in suffixes for way in THEIRS})

    peaks = {way: peak_bytes(command, way, 3, env) for way, command in commands.items()}
    programs = {way: Program(command, env=env) for way, command in commands.items()}
    for way, program in programs.items():  # programs warm up before anything counts
        program.rate(way)
        if way in THEIRS:
            versions["torch"] = program.ready[1]
    seconds = {way: [] for way in programs}
    loads = []
    for _ in range(args.repetitions):
        loads.append(os.getloadavg()[0])
        for way, program in programs.items():
            seconds[way].append(program.rate(way))
    for program in programs.values():
        program.close()

    ratios, memory = {}, {}
    for suffix in suffixes:
        one, dp = "one" + suffix, "dp" + suffix
        pairs = {"%s / %s" % (dp, one): (one, dp)}
        if args.python:
            best = min((way + suffix for way in THEIRS), key=lambda way: statistics.median(seconds[way]))
            pairs.update({"%s / torch %s" % (way, best): (best, way) for way in (one, dp)})
            memory["%s / torch" % one] = peaks[one] / min(peaks[way + suffix] for way in THEIRS)
        for name, (slow, fast) in pairs.items():
            ratios[name] = spread([a / b for a, b in zip(seconds[slow], seconds[fast])])
    result = {
        **circumstances(versions, loads),
        "isa": args.isa,
        "batch_size": args.batch_size,
        "width": args.width,
        "repetitions": args.repetitions,
        "seconds_per_step": {way: spread(values) for way, values in seconds.items()},
        "peak_bytes": peaks,
        "speed_ratios": ratios,
        "memory_ratios": memory,
    }
    print("%-26s %9s %9s %9s %10s" % ("seconds per step", "median", "min", "max", "peak MB"))
    for way, figures in result["seconds_per_step"].items():
        name = "torch " + way if way.startswith(tuple(THEIRS)) else way
        print("%-26s %9.3f %9.3f %9.3f %10.0f" % (name, *figures.values(), peaks[way] / 1e6))
    for name, figures in ratios.items():
        print("speed  %-34s %.3f (%.3f to %.3f)" % (name, *figures.values()))
    for name, ratio in memory.items():
        print("memory %-34s %.3f" % (name, ratio))
    write_results("unet", result)


if __name__ == "__main__":
    main()
