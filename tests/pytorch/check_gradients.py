#!/usr/bin/env python3
"""Compares DataParallel's gradients with PyTorch's, for several losses, batch sizes and numbers of devices. If all
microbatches have the same number of rows, gradients of steps in microbatches are compared with PyTorch's accumulation.

PyTorch computes them on the whole batch in double precision and in f32; Lockstep's relative L2 error may be twice that of
PyTorch's f32. Needs the Python packages torch and safetensors; not part of the normal tests.
usage: check_gradients.py BUILD_DIR     (that contains bin/dump_gradients)
"""

import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


def losses(output, data):
    weights, labels = data["weights"].to(output.dtype), data["labels"]
    yield "mean", F.nll_loss(output, labels)
    yield "weights", F.nll_loss(output, labels, weight=weights)
    yield "ignore", F.nll_loss(output, labels, ignore_index=1)
    yield "sum", F.nll_loss(output, labels, reduction="sum")
    yield "combined", F.nll_loss(output, labels) + 0.1 * F.mse_loss(output, data["dense"].to(output.dtype))


def forward(leaves, images):
    x = F.conv2d(images, leaves["model.conv.weight"], leaves["model.conv.bias"], stride=2).relu().flatten(1)
    x = F.linear(x, leaves["model.fc1.weight"], leaves["model.fc1.bias"]).relu()
    return F.log_softmax(F.linear(x, leaves["model.fc2.weight"], leaves["model.fc2.bias"]), 1)


def microbatches(rows, shards, count):
    """The rows of every microbatch: one piece of each shard."""
    pieces = [shard.chunk(count) for shard in torch.arange(rows).chunk(shards)]
    return [torch.cat(parts) for parts in zip(*pieces)]


def accumulated(data, dtype, names, shards, count):
    """PyTorch's gradient accumulation: backward of every microbatch's mean over the number of microbatches."""
    leaves = {name: data[name].to(dtype).requires_grad_() for name in names}
    parts = microbatches(len(data["labels"]), shards, count)
    total = 0
    for rows in parts:
        loss = F.nll_loss(forward(leaves, data["images"][rows].to(dtype)), data["labels"][rows]) / len(parts)
        loss.backward()
        total += loss.detach()
    return dict({name: leaf.grad for name, leaf in leaves.items()}, loss=total)


def gradients(data, dtype, shards):
    """Loss name -> (loss, one vector of all gradients, gradient of the images)."""
    names = [name for name in data if name.startswith("model.")]
    leaves = {name: data[name].to(dtype).requires_grad_() for name in [*names, "images"]}
    output = forward(leaves, leaves["images"])
    found = {}
    for name, loss in losses(output, data):
        of = torch.autograd.grad(loss, list(leaves.values()), retain_graph=True)
        found[name] = dict(zip([*names, "images"], of), loss=loss.detach())
    for count in (2, 3, 4):
        sizes = {len(rows) for rows in microbatches(len(data["labels"]), shards, count)}
        if len(data["labels"]) % shards == 0 and len(sizes) == 1:
            found[f"micro_{count}"] = accumulated(data, dtype, names, shards, count)
    return found


def error(found, right):
    found, right = (torch.cat([part.double().flatten() for part in parts]) for parts in (found, right))
    return ((found - right).norm() / right.norm()).item()


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    torch.set_num_threads(1)
    compared, worst = 0, 0.0
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([pathlib.Path(sys.argv[1]) / "bin" / "dump_gradients", directory], check=True)
        for path in sorted(pathlib.Path(directory).iterdir()):
            data = load_file(path)
            shards = int(path.stem.split("_")[2])
            right, single = gradients(data, torch.float64, shards), gradients(data, torch.float32, shards)
            for name, expected in right.items():
                if not torch.isfinite(expected["loss"]):  # every row is ignored
                    assert not torch.isfinite(data[f"{name}.loss"]), (path.name, name)
                    continue
                keys = [key for key in expected if key != "loss"]
                ours = error([data[f"{name}.{key}"] for key in keys], [expected[key] for key in keys])
                theirs = error([single[name][key] for key in keys], [expected[key] for key in keys])
                assert ours <= 2 * theirs, (path.name, name, ours, theirs)
                assert torch.allclose(data[f"{name}.loss"].double(), expected["loss"], rtol=1e-5), (path.name, name)
                compared, worst = compared + 1, max(worst, ours)
    print(f"check_gradients: {compared} gradients agree with PyTorch {torch.__version__}, worst relative error {worst:.1e}")


if __name__ == "__main__":
    main()
