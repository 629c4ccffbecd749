#!/usr/bin/env python3
"""Compares Lockstep with PyTorch on one GPU: milliseconds per training step of U-Net and of the MNIST network.

    bench/compare_gpu.py build/release/bin --python /path/to/python

Both libraries run on the same GPU in turn, a few steps each; ratios are computed per round. Inputs are in the GPU's
memory. "one" is Lockstep on one device. f32, TF32 and bf16 are compared with the same precision. --compile adds
torch.compile. Writes a JSON file under bench/results/.
"""
import argparse
import os
import pathlib
import statistics
import subprocess

from measurement import Program, circumstances, spread, versions_of, write_results

HERE = pathlib.Path(__file__).resolve().parent


def unet(args):
    """Programs by way, the order for a way, and milliseconds from an answer."""
    shape = ["--batch-size", str(args.unet_batch), "--steps", "10"]
    ours = Program([args.bin / "unet-bench", "--cuda", "--serve", *shape])
    theirs = Program([args.python, HERE / "torch_unet.py", "--device", "cuda", *shape])
    ways = ["eager", "channels_last", "eager_tf32", "channels_last_tf32", "eager_bf16", "channels_last_bf16"]
    if args.compile:
        ways += ["channels_last_tf32_compile", "channels_last_bf16_compile"]
    programs = {"one": ours, "one_tf32": ours, "one_bf16": ours, **{way: theirs for way in ways}}
    return programs, lambda way: way, lambda answer: 1e3 * answer


def mnist(batch):
    def make(args):
        flags = ["--steps", "100"]
        command = [args.bin / "mnist-bench", "--cuda", "--ways", "one", "--serve", "--batch-size", str(batch), *flags]
        ours, ours_tf32 = Program(command), Program([*command, "--allow-tf32"])
        theirs = Program([args.python, HERE / "torch_mnist.py", "--device", "cuda", *flags])
        ways = ["eager", "channels_last", "eager_tf32", "channels_last_tf32"]
        if args.compile:
            ways += ["eager_graph", "eager_tf32_graph"]
        programs = {"one": ours, "one_tf32": ours_tf32, **{way: theirs for way in ways}}
        return programs, lambda way: "%s %d" % ("one" if way == "one_tf32" else way, batch), lambda answer: 1e3 * batch / answer

    return make


def measure(name, make, args):
    programs, order, milliseconds = make(args)
    for way, program in programs.items():  # programs warm up before anything counts
        program.rate(order(way))
    rounds = {way: [] for way in programs}
    for _ in range(args.repetitions):
        for way, program in programs.items():
            rounds[way].append(milliseconds(program.rate(order(way))))
    torch = next(program.ready[1] for way, program in programs.items() if way == "eager")
    for program in set(programs.values()):
        program.close()

    print("%-34s %9s %9s %9s" % (name + ", ms per step", "median", "min", "max"))
    for way, values in rounds.items():
        print("%-34s %9.3f %9.3f %9.3f" % (way if way.startswith("one") else "torch " + way, *spread(values).values()))
    ratios = {}
    for one in (way for way in rounds if way.startswith("one")):
        precision = one[len("one"):]
        others = [way for way in rounds if not way.startswith("one") and
                  [kind in way for kind in ("_bf16", "_tf32")] == [kind in precision for kind in ("_bf16", "_tf32")]]
        eager = [way for way in others if "_compile" not in way and "_graph" not in way]
        for kind, ways in (("eager", eager), ("all", others)):
            best = min(ways, key=lambda way: statistics.median(rounds[way]))
            key = "%s / torch %s (best of %s)" % (one, best, kind)
            ratios[key] = spread([theirs / ours for theirs, ours in zip(rounds[best], rounds[one])])
    for key, figures in ratios.items():
        print("speed  %-50s %.3f (%.3f to %.3f)" % (key, *figures.values()))
    print(flush=True)
    return {"ms_per_step": {way: spread(values) for way, values in rounds.items()}, "speed_ratios": ratios}, torch


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin", type=pathlib.Path, help="folder of unet-bench, mnist-bench and lockstep-info")
    parser.add_argument("--python", required=True, help="Python interpreter with PyTorch")
    parser.add_argument("--unet-batch", type=int, default=4, help="images per step of U-Net (%(default)s)")
    parser.add_argument("--mnist-batch", type=int, nargs="+", default=[64, 512],
                        help="rows per step of MNIST (%(default)s)")
    parser.add_argument("--repetitions", type=int, default=5, help="rounds (%(default)s)")
    parser.add_argument("--compile", action="store_true", help="also torch.compile, which takes a minute per network")
    args = parser.parse_args()

    versions = versions_of(args.bin / "unet-bench")
    networks = {"mnist, batch %d" % batch: mnist(batch) for batch in args.mnist_batch}
    networks["unet, batch %d" % args.unet_batch] = unet
    results = {}
    for name, make in networks.items():
        results[name], versions["torch"] = measure(name, make, args)
    gpu = subprocess.check_output(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], text=True)
    write_results("gpu", {**circumstances(versions, [os.getloadavg()[0]]), "gpu": gpu.strip(), **results})


if __name__ == "__main__":
    main()
