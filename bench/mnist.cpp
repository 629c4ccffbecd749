// Samples per second of training steps of PyTorch's MNIST network: one device (a GPU, or all cores) compared with
// data-parallel on two devices, alternating in one process, so that other load on the machine affects both equally.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/mnist_nets.h"

namespace ls = lockstep;

namespace {

/// One way to train, kept warm.
class Contestant {
public:
    Contestant(const ls::Devices& devices, const ls::EngineOptions& options, std::int64_t batch)
        : batch_(batch),
          model_(mnist::Cnn(), devices, options),
          sgd_(model_, {.lr = 0.01, .momentum = 0.5}),
          images_(ls::Tensor::rand({batch, 1, 28, 28})) {
        std::vector<std::int64_t> classes;
        for (std::int64_t row = 0; row < batch; ++row) classes.push_back(row % 10);
        labels_ = ls::Tensor::from(classes, {batch});
        if (devices[0].kind() == ls::DeviceKind::cuda) {
            images_ = images_.to(devices[0]);
            labels_ = labels_.to(devices[0]);
        }
        run(3);
    }

    /// Samples per second of `steps` steps.
    double run(int steps) {
        const auto begin = std::chrono::steady_clock::now();
        for (int step = 0; step < steps; ++step) model_.step(sgd_, images_, labels_, ls::nll_loss);
        model_.synchronize();
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        return static_cast<double>(batch_ * steps) / seconds.count();
    }

private:
    std::int64_t batch_;
    ls::DataParallel<mnist::Cnn> model_;
    ls::SGD sgd_;
    ls::Tensor images_, labels_;
};

using Contestants = std::map<std::string, std::unique_ptr<Contestant>>;

/// Name of a way to train: "one 64" or "dp 64".
std::string name_of(const std::string& way, std::int64_t batch) { return way + " " + std::to_string(batch); }

void interleave(Contestants& contestants, const std::vector<std::int64_t>& batches, int steps, int repetitions) {
    std::map<std::string, std::vector<double>> rates;
    for (int repetition = 0; repetition < repetitions; ++repetition)
        for (auto& [name, contestant] : contestants) rates[name].push_back(contestant->run(steps));
    const auto line = [](const std::string& name, std::vector<double> values, const char* format) {
        std::sort(values.begin(), values.end());
        std::printf("%-24s", name.c_str());
        for (const double value : {values[values.size() / 2], values.front(), values.back()})
            std::printf(format, value);
        std::printf("\n");
    };
    std::printf("samples/s                  median       min       max\n");
    for (const auto& [name, values] : rates) line(name, values, " %9.0f");
    for (const std::int64_t batch : batches) {
        if (!rates.contains(name_of("dp", batch)) || !rates.contains(name_of("one", batch))) continue;
        std::vector<double> ratios;
        for (std::size_t i = 0; i < rates.at(name_of("dp", batch)).size(); ++i)
            ratios.push_back(rates.at(name_of("dp", batch))[i] / rates.at(name_of("one", batch))[i]);
        line("dp / one, batch " + std::to_string(batch), ratios, " %9.3f");
    }
}

/// For a script that interleaves several programs: each line of input names a contestant; the answer is its rate.
void serve(Contestants& contestants, int steps) {
    std::cout << "ready" << std::endl;
    for (std::string name; std::getline(std::cin, name);) {
        contestants.at(name)->run(2);  // warms the caches again after the others
        std::cout << contestants.at(name)->run(steps) << std::endl;
    }
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Samples per second of MNIST training steps, on one device and on two.");
    std::vector<std::int64_t> batches{64, 128};
    int steps = 60;
    int repetitions = 9;
    bool serves = false;
    bool slice_wise = false, on_gpu = false, tf32 = false;
    std::vector<std::string> ways{"one", "dp"};
    std::size_t bucket_bytes = 0;
    app.add_option("--batch-size", batches, "global batch sizes")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--steps", steps, "steps per repetition")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--repetitions", repetitions, "repetitions per configuration")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--ways", ways, "one: one device, with all cores if it is a CPU; dp: two devices")
        ->check(CLI::IsMember({"one", "dp"}))
        ->capture_default_str();
    app.add_flag("--cuda", on_gpu, "on GPUs instead of CPU devices");
    app.add_flag("--allow-tf32", tf32, "f32 on GPUs may be rounded to TF32");
    app.add_flag("--slice-wise", slice_wise, "each device sums and updates one slice");
    app.add_option("--bucket-bytes", bucket_bytes,
                   "approximate size of the ranges in which gradients are reduced; 0: automatic")
        ->capture_default_str();
    app.add_flag("--serve", serves, "read lines such as \"dp 64\" and answer with samples per second");
    CLI11_PARSE(app, argc, argv);
    try {
        setenv("LOCKSTEP_CPU_DEVICES", "2", 1);
        const auto device = [&](int index) { return on_gpu ? ls::Device::cuda(index) : ls::Device::cpu(index); };
        const ls::Device first = device(0), second = device(1);
        ls::manual_seed(1);
        ls::EngineOptions one{.allow_tf32 = tf32};
        if (!on_gpu) one.threads_per_shard = ls::device_info(first).units + ls::device_info(second).units;
        const ls::EngineOptions dp{.allow_tf32 = tf32,
                                   .reduction = slice_wise ? ls::ReductionMode::slice_wise : ls::ReductionMode::root,
                                   .bucket_bytes = bucket_bytes};
        Contestants contestants;
        for (const std::int64_t batch : batches) {
            for (const std::string& way : ways)
                contestants[name_of(way, batch)] =
                    way == "one" ? std::make_unique<Contestant>(ls::Devices{first}, one, batch)
                                 : std::make_unique<Contestant>(ls::Devices{first, second}, dp, batch);
        }
        if (serves)
            serve(contestants, steps);
        else
            interleave(contestants, batches, steps, repetitions);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "mnist-bench: %s\n", error.what());
        return 1;
    }
}
