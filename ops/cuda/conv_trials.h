// Which of cuDNN's ways a convolution is computed in where trials decide (ConvAlgorithm::benchmark).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/ops/cuda/convolution_descriptors.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cuda {

/// A way with more workspace is not tried: FFTs of large images would take gigabytes.
constexpr std::size_t most_tried_workspace = std::size_t{1} << 28;

/// The position in `ways` of the one that AlgorithmChoices::current() has for `question`; where it has none, of the
/// fastest, by trials on the compute stream of `device` after all that it was given. `enqueue(handle, way, memory)` is
/// what is measured, on `bytes` bytes of the device's memory; a way that it throws for is none.
std::size_t tried_way(Device device, const std::string& question, const std::vector<std::string>& ways,
                      std::size_t bytes,
                      const std::function<void(cudnnHandle_t handle, std::size_t way, char* memory)>& enqueue);

/// Where trials decide, the way in which `pass` is computed comes first; the others keep their order.
/// `perform(handle, way, x, w, y, workspace)` calls cuDNN. What it takes to bring images and weights to the layout of a
/// way is not counted.
template <class Way, class Perform>
void put_chosen_first(std::vector<Way>& ways, const KernelRequest& request, const Sizes& sizes, const ConvGeometry& g,
                      const char* pass, Perform perform) {
    if (request.convolution != ConvAlgorithm::benchmark || ways.size() == 1) return;
    ways.erase(std::remove_if(ways.begin() + 1, ways.end(),
                              [](const Way& way) { return way.workspace > most_tried_workspace; }),
               ways.end());
    const auto bytes_of = [&](const Shape& shape) { return aligned_bytes(shape, sizes.dtype); };
    const std::size_t w_at = bytes_of(sizes.x), y_at = w_at + bytes_of(sizes.w), end = y_at + bytes_of(sizes.y);
    std::size_t workspace = 0;
    std::vector<std::string> names;
    for (const Way& way : ways) {
        workspace = std::max(workspace, way.workspace);
        names.push_back(fmt::format("{}, algorithm {}", way.convolution->channels_last() ? "channels last" : "plain",
                                    static_cast<int>(way.algorithm)));
    }
    const DeviceInfo device = device_info(request.device);
    const std::string question =
        fmt::format("conv2d {} {} {} with {}, stride ({}, {}), padding ({}, {}), on cuda {}.{} with {} multiprocessors",
                    pass, name_of(sizes.dtype), sizes.x.str(), sizes.w.str(), g.stride_h, g.stride_w, g.pad_h, g.pad_w,
                    device.compute_capability / 10, device.compute_capability % 10, device.units);
    const std::size_t chosen = tried_way(
        request.device, question, names, end + workspace, [&](cudnnHandle_t handle, std::size_t i, char* memory) {
            check(perform(handle, ways[i], memory, memory + w_at, memory + y_at, memory + end), pass);
        });
    const auto first = ways.begin(), found = first + static_cast<std::ptrdiff_t>(chosen);
    std::rotate(first, found, found + 1);
}

/// The algorithms that are asked for, deterministic ones alone: those of the rule, and where trials decide, all others.
std::vector<cudnnConvolutionFwdAlgo_t> forward_algorithms(const KernelRequest& request);
std::vector<cudnnConvolutionBwdDataAlgo_t> backward_data_algorithms(const KernelRequest& request);
std::vector<cudnnConvolutionBwdFilterAlgo_t> backward_weights_algorithms(const KernelRequest& request);

}  // namespace lockstep::cuda
