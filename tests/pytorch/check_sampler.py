#!/usr/bin/env python3
"""Compares indices of samplers and random_split with PyTorch's, and DataPartitioner's with Python's random.shuffle.

Needs the Python package torch; not part of the normal tests.
usage: check_sampler.py BUILD_DIR     (that contains bin/dump_indices)
"""

import itertools
import pathlib
import random
import subprocess
import sys
import warnings

import torch
from torch.utils.data import DistributedSampler, RandomSampler, WeightedRandomSampler, random_split


def cases():
    for length, replicas in itertools.product((1, 2, 7, 64, 404, 60000), (1, 2, 3, 8)):
        for seed, epoch in ((0, 0), (1, 5), (2**32 + 7, 1)):
            for shuffle, drop_last in itertools.product((True, False), repeat=2):
                if drop_last and length < replicas:
                    continue  # PyTorch fails here: a negative number of rows
                for rank in {0, replicas // 2, replicas - 1}:
                    sampler = DistributedSampler(range(length), replicas, rank, shuffle, seed, drop_last)
                    sampler.set_epoch(epoch)
                    line = "sampler %d %d %d %d %d %d %d" % (length, replicas, rank, seed, epoch, shuffle, drop_last)
                    yield line, list(sampler)
    for length, seed in itertools.product((0, 1, 2, 31, 404, 60000), (0, 1234, 2**32 - 1, 2**40 + 3)):
        rows = list(range(length))
        random.Random(seed).shuffle(rows)
        yield "partition %d %d" % (length, seed), rows
    for length, seed in itertools.product((1, 7, 404, 2**28 - 1, 2**28, 2**33), (0, 5, 2**32 + 7)):
        for replacement, samples in itertools.product((True, False), (1, 7, 1000)):
            if replacement or length < 2**28 - 1:
                generator = torch.Generator().manual_seed(seed)
                rows = RandomSampler(range(length), replacement, samples, generator)
                yield "random %d %d %d %d" % (length, seed, replacement, samples), list(rows)
    for weights in ([1.0], [0.25, 0.0, 0.75], [0.1, 0.9, 0.4, 0.7, 3.0, 0.6], [i % 13 / 7 for i in range(1000)]):
        for seed in (0, 5, 2**32 + 7):
            generator = torch.Generator().manual_seed(seed)
            rows = WeightedRandomSampler(weights, 500, True, generator)
            yield "weighted %d 500 %s" % (seed, " ".join(map(repr, weights))), list(rows)
    for seed in (0, 42, 2**32 + 7):
        for lengths in ([5], [7, 3], [0, 4, 0], [4580, 508]):
            yield "lengths %d %s" % (seed, " ".join(map(str, lengths))), split(sum(lengths), lengths, seed)
        for fractions in ([1.0], [0.5, 0.5], [0.9, 0.1], [0.1] * 10, [0.3, 0.3, 0.4], [1 / 3] * 3, [0.0, 1.0]):
            for length in (1, 10, 5088):
                line = "fractions %d %d %s" % (length, seed, " ".join(map(repr, fractions)))
                yield line, split(length, fractions, seed)


def split(length, lengths, seed):
    parts = random_split(range(length), lengths, generator=torch.Generator().manual_seed(seed))
    return [row for part in parts for row in [*part.indices, -1]]


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    warnings.filterwarnings("ignore", message="Length of split")
    wanted = list(cases())
    program = pathlib.Path(sys.argv[1]) / "bin" / "dump_indices"
    text = "".join(line + "\n" for line, _ in wanted)
    answer = subprocess.run([program], input=text, capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(answer) == len(wanted), "as many answers as cases"
    wrong = [line for (line, rows), got in zip(wanted, answer) if rows != [int(row) for row in got.split()]]
    print("%d of %d cases disagree" % (len(wrong), len(wanted)), *wrong[:10], sep="\n")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
