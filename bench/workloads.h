// Networks whose training is measured, each with data and the loss that belong to it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/gpt/net.h"
#include "lockstep/samples/apps/mnist_nets.h"
#include "lockstep/samples/apps/unet/loss.h"
#include "lockstep/samples/apps/unet/net.h"
#include "lockstep/tests/fixtures/models.h"

namespace bench {

/// Fully connected: little arithmetic for many parameters.
struct Mlp {
    lockstep::Linear fc1{784, 512}, fc2{512, 512}, fc3{512, 10};
    LOCKSTEP_MEMBERS(fc1, fc2, fc3)
    lockstep::Tensor forward(const lockstep::Tensor& x) {
        return lockstep::log_softmax(fc3(lockstep::relu(fc2(lockstep::relu(fc1(x.flatten(1)))))), 1);
    }
    static constexpr double mean = 0, stddev = 1;
};

/// torchvision's ResNet-18.
using ResNet18 = lockstep::test::ResNet<lockstep::test::BasicBlock, 64, 2, 2, 2, 2>;

constexpr gpt::Config gpt_config{.vocabulary = 64, .context = 64};
constexpr std::int64_t image_size = 32, unet_width = 16;

inline const std::vector<std::string>& workload_names() {
    static const std::vector<std::string> names{"cnn", "small", "mlp", "resnet18", "gpt", "unet"};
    return names;
}

/// Calls use(net, data, loss) for the network of that name, with at least `rows` rows of data: images of `mnist` (a
/// folder with IDX files), or others of the same values in every call.
template <class Use>
void with_workload(std::string_view name, const std::filesystem::path& mnist, std::int64_t rows, const Use& use) {
    namespace ls = lockstep;
    const auto with_digits = [&]<class Net>(Net net) {
        use(net, ls::Mnist(mnist, {.train = true, .mean = Net::mean, .stddev = Net::stddev}), ls::nll_loss);
    };
    const auto pictures = [rows] { return ls::test::model_numbers({rows, 3, image_size, image_size}); };
    if (name == "cnn") return with_digits(mnist::Cnn());
    if (name == "small") return with_digits(mnist::Small());
    if (name == "mlp") return with_digits(Mlp());
    if (name == "resnet18") {
        const ls::Tensor classes = ls::test::model_integers({rows}, ls::test::model_classes);
        return use(ResNet18(), ls::TensorDataset(pictures(), classes), ls::cross_entropy);
    }
    if (name == "gpt") {
        const std::int64_t length = gpt_config.context;
        const ls::Tensor text = ls::test::model_integers({rows, length + 1}, gpt_config.vocabulary);
        const ls::Tensor before = text.slice(1, 0, length).contiguous(), after = text.slice(1, 1).contiguous();
        return use(gpt::Gpt(gpt_config), ls::TensorDataset(before, after), ls::cross_entropy);
    }
    if (name == "unet") {
        const unet::UNet net({.width = unet_width});
        const ls::Tensor masks = ls::test::model_integers({rows, image_size, image_size}, 2);
        return use(net, ls::TensorDataset(pictures(), masks), unet::SegmentationLoss());
    }
    throw std::invalid_argument("unknown network");
}

}  // namespace bench
