// Breakdown of a training step's time: the operations of one step of the MNIST network on cpu:0, one by one from the
// step log, compared with whole steps without a log. With nvcc, also counts of CUDA kernels (emulated.h).
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/mnist_nets.h"
#if LOCKSTEP_EMULATED
#include "lockstep/bench/emulated.h"
#endif

namespace ls = lockstep;

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

void measure(std::int64_t rows, int threads, int repetitions) {
    ls::DataParallel model(mnist::Cnn(), {ls::Device::cpu(0)}, {.threads_per_shard = threads});
    ls::SGD sgd(model, {.lr = 0.01, .momentum = 0.5});
    const ls::Tensor images = ls::Tensor::rand({rows, 1, 28, 28});
    const ls::Tensor labels = ls::Tensor::zeros({rows}, ls::DType::i64);
    std::vector<double> whole, host;
    const auto step = [&] {
        const auto begin = std::chrono::steady_clock::now();
        model.step(sgd, images, labels, ls::nll_loss);
        host.push_back(seconds_since(begin));
        model.synchronize();
        whole.push_back(seconds_since(begin));
    };
    step();  // traces the step
    whole.clear();
    host.clear();
    for (int repetition = 0; repetition < repetitions; ++repetition) step();
    const double whole_step = median(whole), until_enqueued = median(host);

    model.engine().log_steps(repetitions);
    for (int repetition = 0; repetition < repetitions; ++repetition) step();
    const std::vector<ls::LoggedStep> log = model.engine().step_log();
    const std::vector<ls::StepSpan>& spans = log.front().spans;
    std::vector<double> milliseconds;
    double sum = 0;
    for (std::size_t i = 0; i < spans.size(); ++i) {
        std::vector<double> times;
        for (const ls::LoggedStep& logged : log) {
            if (logged.spans.size() != spans.size())
                throw std::runtime_error("the steps differ in their operations; expected equal ones");
            times.push_back(logged.spans[i].end - logged.spans[i].begin);
        }
        milliseconds.push_back(median(times));
        sum += milliseconds.back();
    }
    std::printf("%lld rows, %d threads\n      us  share  operation\n", static_cast<long long>(rows), threads);
    for (std::size_t i = 0; i < spans.size(); ++i)
        std::printf("%8.1f  %4.1f%%  %s (%s)\n", 1e3 * milliseconds[i], 100 * milliseconds[i] / sum,
                    spans[i].name.c_str(), std::string(ls::name_of(spans[i].kind)).c_str());
    std::printf("%8.1f         sum\n%8.1f         a whole step without a log\n", 1e3 * sum, 1e6 * whole_step);
    std::printf("%8.1f         of it until the host had enqueued all work\n\n", 1e6 * until_enqueued);
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Time of each operation in a training step of the MNIST network, on the CPU.");
    std::vector<std::int64_t> rows{64};
    std::vector<int> threads{1, 2};
    int repetitions = 21;
    app.add_option("--rows", rows, "rows of a shard")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--threads", threads, "CPU threads per kernel")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--repetitions", repetitions, "repetitions per configuration")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
#if LOCKSTEP_EMULATED
    emulated::CountOptions counted;
    bool counts_kernels = false, counts_launches = false;
    auto* const emulate =
        app.add_flag("--emulated", counts_kernels, "counts of CUDA kernels in the PTX interpreter, without a GPU");
    app.add_option("--kernels", counted.only, "part of the names of the operations to count")->needs(emulate);
    app.add_option("--blocks", counted.most_blocks, "blocks to interpret of each launch; 0: all")
        ->needs(emulate)
        ->capture_default_str();
    auto* const launches =
        app.add_flag("--launches", counts_launches, "number of launches of training steps on a GPU, without one");
    app.add_option("--json", counted.json, "file for the figures of --emulated or --launches");
    emulate->excludes(launches);
#endif
    CLI11_PARSE(app, argc, argv);
    try {
#if LOCKSTEP_EMULATED
        if (counts_kernels) return emulated::count_kernels(counted), 0;
        if (counts_launches) return emulated::count_launches(counted.json), 0;
#endif
        for (const std::int64_t count : rows)
            for (const int t : threads) measure(count, t, repetitions);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "kernels-bench: %s\n", error.what());
        return 1;
    }
}
