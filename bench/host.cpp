// Host cost of a step: processor time of the calling thread inside `step`, and number of memory allocations; and the
// cost of tracing steps again, which detects values that a program has frozen. The first table's networks have tiny
// layers to minimise other work; processor time reduces the effect of other programs.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <new>
#include <vector>

#include "lockstep/parallel/lockstep.h"

namespace ls = lockstep;

namespace {

thread_local long allocations = 0;

double thread_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// `layers` times 16 to 16, each a module with two parameters, and a dropout.
struct Mlp {
    std::vector<ls::Linear> layers;
    ls::Dropout drop{0.1};
    LOCKSTEP_MEMBERS(layers, drop)

    explicit Mlp(int count) : layers(static_cast<std::size_t>(count), ls::Linear(16, 16)) {}
    ls::Tensor forward(ls::Tensor x) {
        for (ls::Linear& layer : layers) x = ls::relu(layer(x));
        return ls::log_softmax(drop(x), 1);
    }
};

/// Microseconds of the fastest and of the median step, allocations of the median one.
struct Cost {
    double least, median, allocations;
};

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

/// Perceptron for images of 28 by 28.
struct Digits {
    ls::Linear fc1{784, 256}, fc2{256, 256}, fc3{256, 10};
    LOCKSTEP_MEMBERS(fc1, fc2, fc3)
    ls::Tensor forward(const ls::Tensor& x) { return ls::log_softmax(fc3(ls::relu(fc2(ls::relu(fc1(x))))), 1); }
};

/// Milliseconds of the first epoch, and of the host's work in it to trace forward and the loss again.
struct Epoch {
    double whole, traced_again;
    int times;
};

/// An epoch of `steps` steps on one device. Uses 1, 2, 3, 10, 100, ... of a program trace again.
Epoch first_epoch(int steps) {
    ls::DataParallel model(Digits(), ls::Devices({ls::Device::cpu(0)}), {.threads_per_shard = 1});
    ls::SGD sgd(model, {.lr = 0.001, .momentum = 0.5});
    const ls::Tensor rows = ls::Tensor::rand({64, 784});
    const ls::Tensor classes = ls::Tensor::zeros({64}, ls::DType::i64);
    std::vector<double> hosts, traced, times;
    long next = 1;
    for (int step = 0; step < steps; ++step) {  // step 0 makes the program
        model.synchronize();
        const double begin = thread_seconds();
        const auto started = std::chrono::steady_clock::now();
        model.step(sgd, rows, classes, ls::nll_loss);
        const double host = thread_seconds() - begin;
        model.synchronize();
        times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
        if (step == next) {
            traced.push_back(host);
            next = next < 3 ? next + 1 : next == 3 ? 10 : 10 * next;
        } else if (step > 0) {
            hosts.push_back(host);
        }
    }
    const double usual = median(hosts);
    Epoch epoch{0, 0, static_cast<int>(traced.size())};
    for (const double time : times) epoch.whole += 1e3 * time;
    for (const double host : traced) epoch.traced_again += 1e3 * (host - usual);
    return epoch;
}

/// Each of `steps` steps begins when all devices are idle.
Cost cost_of_step(int layers, int devices, int steps) {
    std::vector<ls::Device> chosen;
    for (int i = 0; i < devices; ++i) chosen.push_back(ls::Device::cpu(i));
    ls::DataParallel model(Mlp(layers), ls::Devices(chosen), {.threads_per_shard = 1});
    ls::SGD sgd(model, {.lr = 0.001, .momentum = 0.5});
    const ls::Tensor rows = ls::Tensor::rand({8, 16});
    const ls::Tensor classes = ls::Tensor::zeros({8}, ls::DType::i64);
    std::vector<double> seconds, counts;
    for (int step = -3; step < steps; ++step) {
        model.synchronize();
        const double begin = thread_seconds();
        const long before = allocations;
        model.step(sgd, rows, classes, ls::nll_loss);
        if (step < 0) continue;
        seconds.push_back(thread_seconds() - begin);
        counts.push_back(static_cast<double>(allocations - before));
    }
    model.synchronize();
    return {*std::min_element(seconds.begin(), seconds.end()) * 1e6, median(seconds) * 1e6, median(counts)};
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t bytes) {
    ++allocations;
    if (void* memory = std::malloc(std::max<std::size_t>(bytes, 1))) return memory;
    throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
    ++allocations;
    return std::malloc(std::max<std::size_t>(bytes, 1));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

int main(int argc, char** argv) {
    CLI::App app("Host time and allocations of a training step, by parameters and devices.");
    int steps = 300;
    app.add_option("--steps", steps, "steps per configuration")->check(CLI::PositiveNumber)->capture_default_str();
    CLI11_PARSE(app, argc, argv);
    try {
        setenv("LOCKSTEP_CPU_DEVICES", "4", 1);
        std::printf("parameters  devices  us, least  us, median  allocations\n");
        for (const int layers : {2, 50})
            for (const int devices : {1, 2, 4}) {
                const Cost cost = cost_of_step(layers, devices, steps);
                std::printf("%10d  %7d  %9.1f  %10.1f  %11.0f\n", 2 * layers, devices, cost.least, cost.median,
                            cost.allocations);
            }
        const Epoch epoch = first_epoch(938);
        std::printf(
            "\nan epoch of 938 steps, perceptron 784-256-256-10, batch 64: %.0f ms, of which %.2f ms (%.3f %%) to "
            "trace %d steps again\n",
            epoch.whole, epoch.traced_again, 100 * epoch.traced_again / epoch.whole, epoch.times);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "host-bench: %s\n", error.what());
        return 1;
    }
}
