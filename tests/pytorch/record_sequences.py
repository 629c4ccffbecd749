#!/usr/bin/env python3
"""Writes tests/ops/recorded_sequences.h: results and gradients of PyTorch's recurrent layers on packed sequences, and of
nn.Transformer, in f64.

usage: record_sequences.py > tests/ops/recorded_sequences.h

Needs PyTorch. Parameters and inputs are sines, so that tests/ops/test_packed_sequences.cpp and test_transformer.cpp can
compute them as well. A tensor is recorded as two numbers: its sum, and its product with the sines of element 1, 2, ...
"""
import textwrap

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

ROWS, LENGTH, FEATURES, HIDDEN = 4, 5, 3, 2
LENGTHS = [3, 5, 1, 4]


def sines(number, *shape):
    """0.5 sin(1.3 number + 0.7 i + 0.1)."""
    count = torch.Size(shape).numel()
    i = torch.arange(count, dtype=torch.float64)
    return (0.5 * torch.sin(1.3 * number + 0.7 * i + 0.1)).reshape(shape)


def fill(module):
    module.double()
    with torch.no_grad():
        for number, parameter in enumerate(module.parameters()):
            parameter.copy_(sines(number, *parameter.shape))


def summary(tensor):
    flat = tensor.detach().contiguous().flatten()
    return [flat.sum().item(), (flat * torch.sin(torch.arange(1, flat.numel() + 1, dtype=torch.float64))).sum().item()]


def record(name, tensors):
    numbers = ", ".join(repr(number) for tensor in tensors for number in summary(tensor))
    text = f"inline const std::vector<double> {name}{{{numbers}}};"
    print("\n".join(textwrap.wrap(text, 120, subsequent_indent="    ")))


def recurrent(name, layer, with_states=False):
    fill(layer)
    x = sines(100, ROWS, LENGTH, FEATURES).requires_grad_()
    cells = layer.num_layers * (2 if layer.bidirectional else 1)
    states = [sines(101 + i, ROWS, cells, HIDDEN).requires_grad_() for i in range(2 if name.startswith("lstm") else 1)]
    before = [state.transpose(0, 1).contiguous() for state in states]
    packed = pack_padded_sequence(x, torch.tensor(LENGTHS), batch_first=True, enforce_sorted=False)
    initial = None if not with_states else tuple(before) if len(before) == 2 else before[0]
    output, last = layer(packed, initial)
    output, _ = pad_packed_sequence(output, batch_first=True)
    results = [output] + [state.transpose(0, 1) for state in (last if isinstance(last, tuple) else (last,))]
    loss = sum((result * sines(110 + i, *result.shape)).sum() for i, result in enumerate(results))
    loss.backward()
    gradients = [x.grad] + [parameter.grad for parameter in layer.parameters()]
    record(name, results + gradients + ([state.grad for state in states] if with_states else []))


def transformer(name, masks, **options):
    model = nn.Transformer(4, 2, 2, 2, 5, dropout=0.0, batch_first=True, **options)
    fill(model)
    src, tgt = sines(100, 3, 5, 4).requires_grad_(), sines(101, 3, 4, 4).requires_grad_()
    output = model(src, tgt, **masks)
    (output * sines(110, *output.shape)).sum().backward()
    record(name, [output, src.grad, tgt.grad] + [parameter.grad for parameter in model.parameters()])


print("""// Results of PyTorch %s, made by tests/pytorch/record_sequences.py.
#pragma once

#include <vector>

namespace lockstep::test::recorded {

// clang-format off""" % torch.__version__.split("+")[0])
recurrent("lstm", nn.LSTM(FEATURES, HIDDEN, batch_first=True))
recurrent("lstm_states", nn.LSTM(FEATURES, HIDDEN, 2, bias=False, batch_first=True, bidirectional=True), True)
recurrent("gru", nn.GRU(FEATURES, HIDDEN, 2, batch_first=True, bidirectional=True))
recurrent("gru_states", nn.GRU(FEATURES, HIDDEN, batch_first=True, bidirectional=True), True)
recurrent("rnn_tanh", nn.RNN(FEATURES, HIDDEN, batch_first=True, bidirectional=True))
recurrent("rnn_relu", nn.RNN(FEATURES, HIDDEN, 2, nonlinearity="relu", batch_first=True))
padding = torch.arange(5) >= torch.tensor([[3], [5], [4]])
later = torch.triu(torch.ones(4, 4, dtype=torch.bool), 1)
transformer("transformer", {})
transformer("transformer_causal", {"tgt_mask": later, "src_key_padding_mask": padding, "memory_key_padding_mask": padding})
transformer("transformer_masks", {
    "src_mask": sines(102, 5, 5), "memory_mask": torch.tensor([[i % 5 == j for j in range(5)] for i in range(4)]),
    "tgt_mask": nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64),
    "tgt_key_padding_mask": torch.arange(4) >= torch.tensor([[4], [2], [3]])},
    norm_first=True, activation="gelu", layer_norm_eps=0.01, bias=False)
print("""// clang-format on

}  // namespace lockstep::test::recorded""")
