// Selection of cuDNN's convolution algorithms by trials (ConvAlgorithm::benchmark).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/ops/cuda/conv_algorithms.h"
#include "lockstep/ops/cuda/convolution_descriptors.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cuda {

/// The position in `ways` of the choice that AlgorithmChoices::current() has for `question`. If there is no choice yet,
/// of the fastest one, by trials on the compute stream of `device` after all work enqueued there. The trials time
/// `enqueue(handle, way, memory)` on `bytes` bytes of the device's memory; candidates for which it throws are skipped.
std::size_t benchmarked_algorithm(
    Device device, const std::string& question, const std::vector<std::string>& ways, std::size_t bytes,
    const std::function<void(cudnnHandle_t handle, std::size_t way, char* memory)>& enqueue);

/// With ConvAlgorithm::benchmark, moves the chosen candidate for `pass` to the front; the others keep their order.
/// `perform(handle, way, x, w, y, workspace)` calls cuDNN. Conversions of images and weights to a candidate's layout
/// are not timed.
template <class Candidate, class Perform>
void put_chosen_first(std::vector<Candidate>& ways, const KernelRequest& request, const Sizes& sizes,
                      const ConvGeometry& g, const char* pass, Perform perform) {
    if (request.convolution != ConvAlgorithm::benchmark || ways.size() == 1) return;
    ways.erase(std::remove_if(ways.begin() + 1, ways.end(),
                              [](const Candidate& way) { return way.workspace > max_workspace; }),
               ways.end());
    const auto bytes_of = [&](const Shape& shape) { return aligned_bytes(shape, sizes.dtype); };
    const std::size_t w_at = bytes_of(sizes.x), y_at = w_at + bytes_of(sizes.w), end = y_at + bytes_of(sizes.y);
    std::size_t workspace = 0;
    std::vector<std::string> names;
    for (const Candidate& way : ways) {
        workspace = std::max(workspace, way.workspace);
        names.push_back(fmt::format("{}, algorithm {}", way.convolution->channels_last() ? "channels last" : "plain",
                                    static_cast<int>(way.algorithm)));
    }
    const DeviceInfo device = device_info(request.device);
    const std::string question = fmt::format(
        "conv2d {} {}{} {} with {}, stride ({}, {}), padding ({}, {}){}, on cuda {}.{} with {} multiprocessors", pass,
        name_of(sizes.dtype), uses_tf32(request) ? " in TF32" : "", sizes.x.str(), sizes.w.str(), g.stride_h,
        g.stride_w, g.pad_h, g.pad_w,
        g.is_dense() ? "" : fmt::format(", dilation ({}, {}), {} groups", g.dilation_h, g.dilation_w, g.groups),
        device.compute_capability / 10, device.compute_capability % 10, device.units);
    const std::size_t chosen = benchmarked_algorithm(
        request.device, question, names, end + workspace, [&](cudnnHandle_t handle, std::size_t i, char* memory) {
            check(perform(handle, ways[i], memory, memory + w_at, memory + y_at, memory + end), pass);
        });
    const auto first = ways.begin(), found = first + static_cast<std::ptrdiff_t>(chosen);
    std::rotate(first, found, found + 1);
}

}  // namespace lockstep::cuda
