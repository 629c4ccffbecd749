// Trains the networks of fixtures/models.h for 20 steps in f64 and writes what tests/pytorch/check_models.py needs to
// do the same: initial weights, inputs and target, and the losses and final weights to compare. usage: dump_models
// DIRECTORY
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "lockstep/ops/adam.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/fixtures/models.h"
#include "lockstep/tests/fixtures/tensor_file.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

ls::Tensor in_f64(const ls::Tensor& tensor) {
    return tensor.dtype() == ls::DType::f32 ? tensor.to(ls::DType::f64) : tensor;
}

template <class Net>
void add_weights(TensorFile& file, const std::string& when, Net& net) {
    for (const ls::NamedTensor& named : ls::named_tensors(net)) file.add(when + named.name, named.member->tensor());
}

template <class Net>
void dump(const std::filesystem::path& path) {
    ls::manual_seed(5);
    Net net;
    ls::to(net, ls::DType::f64);
    ls::DataParallel<Net> model(net, ls::Devices({ls::Device::cpu(0)}));
    TensorFile file;
    add_weights(file, "start.", *model);
    const auto input = std::apply([](const auto&... all) { return std::tuple(in_f64(all)...); }, Net::input());
    std::apply(
        [&](const auto&... all) {
            int i = 0;
            (file.add("input." + std::to_string(i++), all), ...);
        },
        input);
    const ls::Tensor target = in_f64(Net::target());
    file.add("target", target);
    ls::AdamW adam(model, {.lr = 1e-3});
    const auto loss = [](const auto& output, const ls::Tensor& expected) { return Net::loss(output, expected); };
    std::vector<double> losses;
    for (int step = 0; step < 20; ++step) losses.push_back(model.step(adam, input, target, loss).item());
    file.add("losses", ls::Tensor::from(losses, {20}));
    add_weights(file, "end.", *model);
    file.write(path);
}

}  // namespace

int main(int count, char** arguments) {
    if (count != 2) {
        std::fputs("usage: dump_models DIRECTORY\n", stderr);
        return 2;
    }
    const std::filesystem::path folder = arguments[1];
    try {
        for_each_model([&]<class Net>(const std::string& name, std::type_identity<Net>) {
            dump<Net>(folder / (name + ".safetensors"));
        });
    } catch (const std::exception& error) {
        std::fprintf(stderr, "dump_models: %s\n", error.what());
        return 1;
    }
    return 0;
}
