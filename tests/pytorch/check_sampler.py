#!/usr/bin/env python3
"""DistributedSampler's indices against PyTorch's, DataPartitioner's against Python's own random.shuffle.

Needs the Python package torch; not part of the normal tests.
usage: check_sampler.py BUILD_DIR     (where bin/dump_indices lies)
"""

import itertools
import pathlib
import random
import subprocess
import sys

from torch.utils.data import DistributedSampler


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


def main():
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
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
