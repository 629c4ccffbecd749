#!/usr/bin/env python3
"""Compares 100 training steps of gpt with PyTorch: the same network, initial weights, text, AdamW and clipping.

    check_gpt.py build/release/bin/gpt [TEXT]

TEXT: a file; default the README. Needs PyTorch and safetensors; the normal test command does not run this. Prints both
curves, and exits with status 1 if a loss differs by more than 1e-3. The learning rate is 3e-4: PyTorch's own curves in
f32 and f64 differ by 2e-5 there, but by 2e-2 at 1e-3.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file

CONTEXT, WIDTH, HEADS, LAYERS, STEPS, WINDOWS = 64, 64, 4, 3, 100, 24
LR, DECAY, CLIP, BOUND = 3e-4, 0.1, 1.0, 1e-3


class Gpt(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True)
            for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)
        for table in (self.tokens, self.positions):
            nn.init.normal_(table.weight, 0, 0.02)
        self.head.weight = self.tokens.weight

    def forward(self, text):
        x = self.tokens(text) + self.positions.weight[:text.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(self.norm(x)).transpose(1, 2)


def main():
    if len(sys.argv) not in (2, 3):
        print(__doc__, file=sys.stderr)
        return 2
    path = pathlib.Path(sys.argv[2] if len(sys.argv) == 3 else pathlib.Path(__file__).parents[2] / "README.md")
    text = path.read_text()[:WINDOWS * CONTEXT + 1]
    alphabet = "".join(sorted(set(text)))
    numbers = torch.tensor([alphabet.index(character) for character in text])
    windows, targets = numbers[:-1].reshape(WINDOWS, CONTEXT), numbers[1:].reshape(WINDOWS, CONTEXT)

    torch.manual_seed(1)
    torch.set_num_threads(1)
    net = Gpt(len(alphabet))
    matrices = [p for p in net.parameters() if p.dim() > 1]
    vectors = [p for p in net.parameters() if p.dim() < 2]
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        weights = {name: value.clone().contiguous() for name, value in net.state_dict().items()}
        sizes = {"context": CONTEXT, "width": WIDTH, "heads": HEADS, "layers": LAYERS}
        save_file(weights, folder / "start.safetensors",
                  {"alphabet": alphabet, **{name: str(size) for name, size in sizes.items()}})
        (folder / "text.txt").write_text(text)
        flags = [word for name, size in sizes.items() for word in ("--" + name, str(size))]
        # All windows in every step, so that their order does not matter.
        subprocess.check_call([
            sys.argv[1], "train", "--data", folder / "text.txt", "--load", folder / "start.safetensors", "--json",
            folder / "run.json", "--steps", str(STEPS), "--epochs", str(STEPS), "--batch-size", str(WINDOWS),
            "--validation", "0", "--dropout", "0", "--schedule", "constant", "--lr", str(LR), "--weight-decay",
            str(DECAY), "--clip", str(CLIP), "--quiet", *flags])
        losses = json.loads((folder / "run.json").read_text())["losses"]

    adam = torch.optim.AdamW([{"params": matrices}, {"params": vectors, "weight_decay": 0}], lr=LR, weight_decay=DECAY)
    worst = 0
    for step in range(STEPS):
        loss = F.cross_entropy(net(windows), targets)
        adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        adam.step()
        worst = max(worst, abs(loss.item() - losses[step]))
        if step % 10 == 0 or step == STEPS - 1:
            print("step %3d: gpt %.6f, PyTorch %.6f" % (step + 1, losses[step], loss.item()))
    print("%d steps against PyTorch %s: largest difference %.1e" % (STEPS, torch.__version__, worst))
    return 0 if worst <= BOUND and len(losses) == STEPS else 1


if __name__ == "__main__":
    sys.exit(main())
