// Times of CUDA operations on a GPU, compared with a copy of as many bytes. The counts of `kernels-bench --emulated`
// predict them.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/bench/json_file.h"
#include "lockstep/bench/kernel_cases.h"
#include "lockstep/runtime/device.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/stream.h"

namespace ls = lockstep;

namespace {

const ls::Device gpu = ls::Device::cuda(0);

struct Spread {
    double median, min, max;
};

/// Microseconds of `work`, which enqueues on the device's compute stream. Each sample has several repetitions, so that
/// the host keeps ahead of the GPU.
Spread microseconds(const std::function<void()>& work, int samples, int repetitions) {
    ls::Stream& stream = ls::Stream::of(gpu);
    ls::Event begin(gpu, true), end(gpu, true);
    for (int i = 0; i < 3; ++i) work();
    stream.synchronize();
    std::vector<double> all;
    for (int sample = 0; sample < samples; ++sample) {
        stream.record(begin);
        for (int i = 0; i < repetitions; ++i) work();
        stream.record(end);
        stream.synchronize();
        all.push_back(ls::Event::elapsed_ms(begin, end) * 1e3 / repetitions);
    }
    std::sort(all.begin(), all.end());
    return {all[all.size() / 2], all.front(), all.back()};
}

/// Bytes per second, read and written, of a copy within the GPU's memory.
double copy_rate(std::size_t bytes, int samples, int repetitions) {
    ls::Stream& stream = ls::Stream::of(gpu);
    const auto from = ls::Buffer::allocate(stream, bytes, "copy"), to = ls::Buffer::allocate(stream, bytes, "copy");
    const auto copy = [&] { stream.copy(to->data(), gpu, from->data(), gpu, bytes); };
    return 2 * static_cast<double>(bytes) / microseconds(copy, samples, repetitions).median * 1e6;
}

nlohmann::json measure(const std::string& only, std::int64_t scale, int samples, int repetitions) {
    const double rate = copy_rate(static_cast<std::size_t>(scale) << 22, samples, repetitions);
    std::printf("copy of %lld MiB on %s: %.0f GB/s, read and written\n\n", static_cast<long long>(scale) * 4,
                ls::device_info(gpu).name.c_str(), rate / 1e9);
    std::printf("| operation | us | min | max | at the rate of a copy, us | ratio |\n|---|---|---|---|---|---|\n");
    nlohmann::json all = nlohmann::json::array();
    for (const kernels::Case& each : kernels::all_cases(scale)) {
        const std::string name = each.name + ", " + std::string(ls::name_of(each.dtype));
        if (name.find(only) == std::string::npos) continue;
        const Spread spread = microseconds(each.make(), samples, repetitions);
        const double copied = each.bytes / rate * 1e6;
        std::printf("| %s | %.1f | %.1f | %.1f | %.1f | %.2f |\n", name.c_str(), spread.median, spread.min, spread.max,
                    copied, spread.median / copied);
        std::fflush(stdout);
        all.push_back({{"operation", each.name},
                       {"dtype", std::string(ls::name_of(each.dtype))},
                       {"bytes", each.bytes},
                       {"us", {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}}}});
    }
    return {{"device", ls::device_info(gpu).name},
            {"scale", scale},
            {"copied_bytes_per_second", rate},
            {"operations", std::move(all)}};
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Time of each memory-bound operation on cuda:0.");
    std::string only, json;
    std::int64_t scale = 16;
    int samples = 5, repetitions = 10;
    app.add_option("--kernels", only, "part of the names of the operations to measure");
    app.add_option("--scale", scale, "million elements of an operand; 1: as in a training step")
        ->check(CLI::Range(1, 256))
        ->capture_default_str();
    app.add_option("--samples", samples, "samples of each operation")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--repetitions", repetitions, "repetitions per sample")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--json", json, "output file for all figures");
    CLI11_PARSE(app, argc, argv);
    try {
        if (ls::device_count(ls::DeviceKind::cuda) == 0) {
            std::printf("skipped: %s\n", ls::cuda_absence_reason().c_str());
            return 0;
        }
        const nlohmann::json figures = measure(only, scale, samples, repetitions);
        if (!json.empty()) lockstep::write_json(json, figures);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "kernel-times: %s\n", error.what());
        return 1;
    }
}
