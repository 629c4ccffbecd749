// Writes DataParallel's gradients with their model and data, for tests/pytorch/check_gradients.py.
// usage: dump_gradients DIRECTORY
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>

#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/tensor_file.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

void dump(const std::filesystem::path& directory, std::int64_t rows, int k) {
    ls::manual_seed(static_cast<std::uint64_t>(rows));
    ConvNet net;
    const ConvNetBatch batch = make_batch(rows);
    const ls::Tensor weights = ls::Tensor::from(std::vector<float>{0.3F, 1.7F, 0.05F, 2.5F, 1}, {5});
    const ls::Tensor dense = ls::Tensor::randn({rows, 5});
    TensorFile file;
    for (const ls::NamedTensor& named : ls::named_tensors(net)) file.add("model." + named.name, named.member->tensor());
    file.add("images", batch.images);
    file.add("labels", batch.labels);
    file.add("weights", weights);
    file.add("dense", dense);
    const ls::Device device = ls::Device::cpu(0);
    const std::vector<std::pair<std::string, ls::NllLoss>> losses{
        {"mean", {}},
        {"weights", {{.weight = weights.to(device)}}},
        {"ignore", {{.ignore_index = 1}}},
        {"sum", {{.reduction = ls::Reduction::sum}}},
        {"combined", {}},
    };
    for (const auto& [name, nll] : losses) {
        ls::DataParallel<ConvNet> model(net, cpu_devices(k));
        const ls::Tensor images = batch.images.clone().requires_grad_();
        const ls::Tensor output = model(images);
        ls::Loss loss = nll(output, batch.labels.to(device));
        if (name == "combined") loss = loss + 0.1 * ls::mse_loss(output, dense.to(device));
        const ls::Tensor value = loss.value();
        value.backward();
        file.add(name + ".loss", value);
        file.add(name + ".images", images.grad());
        for (const ls::NamedTensor& named : ls::named_tensors(*model))
            file.add(name + ".model." + named.name, named.member->tensor().grad());
    }
    // Steps in microbatches, with a rate so large that the parameters' own digits do not matter.
    constexpr double rate = 1 << 30;
    for (const int accumulation_steps : {2, 3, 4}) {
        const std::string name = fmt::format("micro_{}", accumulation_steps);
        ls::DataParallel<ConvNet> model(net, cpu_devices(k));
        ls::SGD sgd(model, {.lr = rate});
        const auto loss =
            model.step(sgd, batch.images, batch.labels, ls::nll_loss, {.accumulation_steps = accumulation_steps})
                .item();
        file.add(name + ".loss", ls::Tensor::scalar(loss));
        const auto before = ls::named_tensors(net), after = ls::named_tensors(*model);
        for (std::size_t i = 0; i < before.size(); ++i) {
            const ls::Tensor then = before[i].member->tensor().detach().to(ls::Device::host());
            const ls::Tensor now = after[i].member->tensor().detach().to(ls::Device::host());
            file.add(name + ".model." + after[i].name, (then - now) * (1 / rate));
        }
    }
    file.write(directory / fmt::format("{}_rows_{}_devices.safetensors", rows, k));
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) {
        std::fputs("usage: dump_gradients DIRECTORY\n", stderr);
        return 2;
    }
    try {
        for (const std::int64_t rows : {24, 23, 5, 1})
            for (const int k : {1, 2, 3, 4, 8}) dump(arguments[1], rows, k);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "dump_gradients: %s\n", error.what());
        return 1;
    }
    return 0;
}
