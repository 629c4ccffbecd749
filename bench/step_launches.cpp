// Launches of a training step on a GPU, by kernel: counted by the CUDA stand-in, which executes none of them.
#include <fmt/format.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "lockstep/bench/emulated.h"
#include "lockstep/bench/json_file.h"
#include "lockstep/bench/workloads.h"
#include "lockstep/parallel/lockstep.h"
#include "lockstep/tests/cuda_standin/standin.h"

namespace ls = lockstep;

namespace emulated {

namespace {

using Launches = std::map<std::string, std::uint64_t>;

/// Launches of one step after a step that has traced the program. `step` enqueues one.
template <class Model, class Step>
Launches count(Model& model, Step step) {
    for (int warmup = 0; warmup < 2; ++warmup) step();
    model.synchronize();
    standin::reset_counters();
    step();
    model.synchronize();
    return standin::counters().devices[0].launches;
}

Launches mnist_step() {
    ls::DataParallel model(mnist::Cnn(), {ls::Device::cuda(0)}, {.shards = 1});
    ls::SGD sgd(model, {.lr = 0.01, .momentum = 0.5});
    const ls::Tensor images = ls::Tensor::rand({64, 1, 28, 28}), labels = ls::Tensor::zeros({64}, ls::DType::i64);
    return count(model, [&] { model.step(sgd, images, labels, ls::nll_loss); });
}

Launches resnet_step() {
    ls::DataParallel model(bench::ResNet18(), {ls::Device::cuda(0)}, {.shards = 1});
    ls::SGD sgd(model, {.lr = 0.1, .momentum = 0.9, .weight_decay = 1e-4});
    const ls::Tensor images = ls::Tensor::rand({8, 3, 64, 64}), labels = ls::Tensor::zeros({8}, ls::DType::i64);
    return count(model, [&] { model.step(sgd, images, labels, ls::cross_entropy); });
}

/// A GPT of `layers` blocks.
Launches gpt_step(std::int64_t layers) {
    ls::DataParallel model(gpt::Gpt({.vocabulary = 64, .context = 128, .layers = layers}), {ls::Device::cuda(0)},
                           {.shards = 1});
    ls::AdamW adam(model, {.lr = 1e-3});
    const ls::Tensor text = ls::Tensor::zeros({16, 128}, ls::DType::i64);
    const ls::StepOptions clipped{.clip = {ls::ClipGradNorm{.max_norm = 1}}};
    return count(model, [&] { model.step(adam, text, text, ls::cross_entropy, clipped); });
}

struct UnetSizes {
    std::int64_t width, rows, height, image_width;
};
constexpr UnetSizes full{64, 4, 160, 240}, small{4, 8, 32, 32};

Launches unet_step(const UnetSizes& sizes, std::optional<ls::DType> autocast) {
    ls::EngineOptions options{.shards = 1};
    options.autocast = autocast;
    ls::DataParallel model(unet::UNet({.width = sizes.width}), {ls::Device::cuda(0)}, options);
    ls::AdamW adam(model, {.lr = 1e-5});
    const ls::Tensor images = ls::Tensor::rand({sizes.rows, 3, sizes.height, sizes.image_width}),
                     masks = ls::Tensor::zeros({sizes.rows, sizes.height, sizes.image_width}, ls::DType::i64);
    const ls::StepOptions clipped{.clip = {ls::ClipGradNorm{.max_norm = 1}}};
    return count(model, [&] { model.step(adam, images, masks, unet::SegmentationLoss(), clipped); });
}

std::uint64_t sum(const Launches& launches) {
    std::uint64_t all = 0;
    for (const auto& [kernel, count] : launches) all += count;
    return all;
}

}  // namespace

void count_launches(const std::string& json) {
    standin::Config config;
    config.runs_kernels = false;
    standin::reset(config);
    const std::vector<std::pair<std::string, Launches>> steps{{"MNIST, f32", mnist_step()},
                                                              {"U-Net, f32", unet_step(full, std::nullopt)},
                                                              {"U-Net, bf16", unet_step(full, ls::DType::bf16)},
                                                              {"small U-Net, f32", unet_step(small, std::nullopt)},
                                                              {"small U-Net, bf16", unet_step(small, ls::DType::bf16)},
                                                              {"ResNet-18", resnet_step()},
                                                              {"GPT, 1 block", gpt_step(1)},
                                                              {"GPT, 4 blocks", gpt_step(4)}};
    std::map<std::string, std::map<std::string, std::uint64_t>> by_kernel;
    fmt::print(
        "Launches of kernels and calls of cuDNN and cuBLASLt in one training step: one device, one shard, counted on "
        "the CUDA\nstand-in. MNIST: 64 images, SGD with momentum. U-Net: width 64, 4 images of 160 x 240, AdamW, "
        "clipped gradients;\nsmall: width 4, 8 images of 32 x 32. ResNet-18: 8 images of 64 x 64, SGD with momentum. "
        "GPT: width 128, 16 rows of\n128 characters, AdamW, clipped gradients.\n\n| kernel or call |");
    for (const auto& [network, launches] : steps) {
        fmt::print(" {} |", network);
        for (const auto& [kernel, count] : launches) by_kernel[kernel][network] = count;
    }
    fmt::print("\n|---|");
    for (std::size_t i = 0; i < steps.size(); ++i) fmt::print("---|");
    fmt::print("\n| **all** |");
    for (const auto& [network, launches] : steps) fmt::print(" **{}** |", sum(launches));
    fmt::print("\n");
    for (const auto& [kernel, counts] : by_kernel) {
        fmt::print("| {} |", kernel);
        for (const auto& [network, launches] : steps)
            fmt::print(" {} |", counts.contains(network) ? counts.at(network) : 0);
        fmt::print("\n");
    }
    if (json.empty()) return;
    lockstep::write_json(json, nlohmann::json(std::map(steps.begin(), steps.end())));
}

}  // namespace emulated
