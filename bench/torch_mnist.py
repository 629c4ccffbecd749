"""PyTorch's side of compare_mnist.py and dp-vs-ddp: a server that trains the MNIST networks on the CPU or a GPU.

Every line of input names a way and a batch size, as in "eager 64"; the answer is samples per second, bytes of memory
(proportional set size, all processes) and the time (monotonic clock, seconds) at which the first step was done.
Ways: eager and channels_last (one process, --threads threads), ddp and ddp_channels_last (gloo, --processes processes
that share the batch and the threads). "_tf32" allows TF32 on a GPU, "_compile" is torch.compile, "_graph" the same with
CUDA graphs.
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


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.conv2_drop, self.drop = nn.Dropout2d(0.5), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x):
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(self.conv2_drop(self.conv2(x)), 2)).flatten(1)
        return F.log_softmax(self.fc2(self.drop(F.relu(self.fc1(x)))), 1)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(784, 512), nn.Linear(512, 512), nn.Linear(512, 10)

    def forward(self, x):
        return F.log_softmax(self.fc3(F.relu(self.fc2(F.relu(self.fc1(x.flatten(1)))))), 1)


NETS = {"cnn": Net, "small": Small, "mlp": Mlp}


def contestant(net, way, rows, device):
    layout = torch.channels_last if "channels_last" in way else torch.contiguous_format
    model = NETS[net]().to(device, memory_format=layout)
    if way.startswith("ddp"):
        model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    images = torch.rand(rows, 1, 28, 28).to(device).contiguous(memory_format=layout)
    labels = (torch.arange(rows) % 10).to(device)
    if "_compile" in way or "_graph" in way:
        model = torch.compile(model, mode="reduce-overhead" if "_graph" in way else None)

    def run(steps):
        for _ in range(steps):
            optimizer.zero_grad()
            F.nll_loss(model(images), labels).backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = "_tf32" in way
    run(1)
    first_step_done = time.monotonic()
    run(2)
    return run, first_step_done


def proportional_bytes():
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Pss:"):
            return 1024 * int(line.split()[1])
    return 0


def follow(rank, world, orders, args, answer):
    """Runs the ways in `orders`, and calls `answer` with rate, memory and time of each."""
    torch.set_num_threads(max(1, args.threads // world))
    torch.manual_seed(1)
    if world > 1:
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:%d" % args.port, rank=rank, world_size=world)
    known = {}
    for line in orders:
        way, batch = line.split()
        if line not in known:
            known[line] = contestant(args.net, way, int(batch) // world, args.device)
        run, first_step_done = known[line]
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = "_tf32" in way
        run(2)  # to warm caches again after other networks
        if world > 1:
            dist.barrier()
        begin = time.perf_counter()
        run(args.steps)
        if world > 1:
            dist.barrier()
        rate = int(batch) * args.steps / (time.perf_counter() - begin)
        memory = torch.tensor(proportional_bytes())
        if world > 1:
            dist.all_reduce(memory)
        answer(rate, int(memory), first_step_done)
    if world > 1:
        dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--port", type=int, default=29517)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--net", choices=NETS, default="cnn")
    args = parser.parse_args()

    def answer(*figures):
        print(*figures, flush=True)

    if args.processes == 1:
        print("ready", torch.__version__, flush=True)
        follow(0, 1, (line.strip() for line in sys.stdin), args, answer)
        return
    pipes, children = [], []
    for rank in range(1, args.processes):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            for pipe in pipes + [writer]:  # otherwise the other children never read end of file
                os.close(pipe)
            with os.fdopen(reader) as orders:
                lines = (line.strip() for line in iter(orders.readline, ""))
                follow(rank, args.processes, lines, args, lambda *figures: None)
            os._exit(0)
        os.close(reader)
        pipes.append(writer)
        children.append(child)
    print("ready", torch.__version__, flush=True)

    def orders():
        for line in iter(sys.stdin.readline, ""):
            for pipe in pipes:
                os.write(pipe, line.encode())
            yield line.strip()
        for pipe in pipes:
            os.close(pipe)

    follow(0, args.processes, orders(), args, answer)
    for child in children:
        os.waitpid(child, 0)


if __name__ == "__main__":
    main()
