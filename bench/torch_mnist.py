"""PyTorch's side of compare_mnist.py: the MNIST network on the CPU, waiting for orders.

Every line of input names a way and a batch size, as in "eager 64"; the answer is samples per second.
Ways: eager and channels_last (one process, --threads threads), ddp and ddp_channels_last (gloo, two processes that
share the batch and the threads).
"""
import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.dropout1, self.dropout2 = nn.Dropout2d(0.25), nn.Dropout2d(0.5)
        self.fc1, self.fc2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):  # (N, 1, 28, 28) -> (N, 10)
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        x = self.dropout1(F.max_pool2d(x, 2)).flatten(1)
        return F.log_softmax(self.fc2(self.dropout2(F.relu(self.fc1(x)))), 1)


def contestant(way, rows):
    layout = torch.channels_last if way.endswith("channels_last") else torch.contiguous_format
    model = Net().to(memory_format=layout)
    if way.startswith("ddp"):
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    images = torch.rand(rows, 1, 28, 28).contiguous(memory_format=layout)
    labels = torch.arange(rows) % 10

    def run(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            F.nll_loss(model(images), labels).backward()
            optimizer.step()

    run(3)
    return run


def follow(rank, world, orders, args, answer):
    """Does what `orders` say; `answer` is called with the rate."""
    torch.set_num_threads(max(1, args.threads // world))
    torch.manual_seed(1)
    if world > 1:
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % args.port, rank=rank, world_size=world)
    known = {}
    for line in orders:
        way, batch = line.split()
        if line not in known:
            known[line] = contestant(way, int(batch) // world)
        known[line](2)  # caches are warm again after the others
        if world > 1:
            dist.barrier()
        begin = time.perf_counter()
        known[line](args.steps)
        if world > 1:
            dist.barrier()
        answer(int(batch) * args.steps / (time.perf_counter() - begin))
    if world > 1:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--port", type=int, default=29517)
    parser.add_argument("--ddp", action="store_true", help="two processes")
    args = parser.parse_args()

    def answer(rate):
        print(rate, flush=True)

    if not args.ddp:
        print("ready", torch.__version__, flush=True)
        follow(0, 1, (line.strip() for line in sys.stdin), args, answer)
        return
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        with os.fdopen(reader) as orders:
            follow(1, 2, (line.strip() for line in iter(orders.readline, "")), args, lambda rate: None)
        os._exit(0)
    os.close(reader)
    print("ready", torch.__version__, flush=True)
    with os.fdopen(writer, "w") as to_child:

        def orders():
            for line in iter(sys.stdin.readline, ""):
                to_child.write(line)
                to_child.flush()
                yield line.strip()
            to_child.close()

        follow(0, 2, orders(), args, answer)
    os.waitpid(child, 0)


if __name__ == "__main__":
    main()
