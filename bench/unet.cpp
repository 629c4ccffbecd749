// Seconds per training step of PyTorch's U-Net on images of 160 x 240: one device (a GPU, or all cores) compared with
// data-parallel on two devices, alternating in one process, so that other load on the machine affects both equally.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/bench/json_file.h"
#include "lockstep/ops/instruction_set.h"
#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/unet/loss.h"
#include "lockstep/samples/apps/unet/net.h"

namespace ls = lockstep;

namespace {

struct Sizes {
    std::int64_t batch = 4, width = 64, height = 160, image_width = 240;
};

/// Suffixes of the names of ways to train: in mixed precision, and in f32 with TF32.
const std::string mixed = "_bf16", tf32 = "_tf32";

/// One way to train, kept warm.
class Contestant {
public:
    Contestant(const ls::Devices& devices, const ls::EngineOptions& options, const Sizes& sizes)
        : model_(unet::UNet({.width = sizes.width}), devices, options),
          adam_(model_, ls::AdamWOptions{.lr = 1e-5, .weight_decay = 1e-8}),
          images_(ls::Tensor::rand({sizes.batch, 3, sizes.height, sizes.image_width})) {
        std::vector<std::int64_t> classes;
        for (std::int64_t i = 0; i < sizes.batch * sizes.height * sizes.image_width; ++i) classes.push_back(i / 7 % 2);
        masks_ = ls::Tensor::from(classes, {sizes.batch, sizes.height, sizes.image_width});
        if (devices[0].kind() == ls::DeviceKind::cuda) {
            images_ = images_.to(devices[0]);
            masks_ = masks_.to(devices[0]);
        }
    }

    /// Seconds per step, measured over `steps` steps.
    double run(int steps) {
        const auto begin = std::chrono::steady_clock::now();
        for (int step = 0; step < steps; ++step) model_.step(adam_, images_, masks_, unet::SegmentationLoss());
        model_.synchronize();
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
        return seconds.count() / steps;
    }

    struct OperationTime {
        double milliseconds = 0;  ///< per step
        std::size_t spans = 0;    ///< in all steps
    };
    /// By operation, from the step log of `steps` steps.
    std::map<std::string, OperationTime> profile(int steps) {
        model_.engine().log_steps(steps);
        run(steps);
        std::map<std::string, OperationTime> times;
        for (const ls::LoggedStep& step : model_.engine().step_log())
            for (const ls::StepSpan& span : step.spans) {
                OperationTime& time = times[std::string(ls::name_of(span.kind)) + ", " + span.name];
                time.milliseconds += (span.end - span.begin) / steps;
                ++time.spans;
            }
        model_.engine().log_steps(0);
        return times;
    }

private:
    ls::DataParallel<unet::UNet> model_;
    ls::AdamW adam_;
    ls::Tensor images_, masks_;
};

/// The ways by name, each created on first use: a process that runs only one holds only its memory.
class Contestants {
public:
    Contestants(const Sizes& sizes, bool on_gpu) : sizes_(sizes), on_gpu_(on_gpu) {}

    /// "one" or "dp", with "_bf16" or "_tf32".
    Contestant& of(const std::string& way) {
        std::unique_ptr<Contestant>& contestant = made_[way];
        if (contestant) return *contestant;
        const ls::Device first = device(0), second = device(1);
        ls::manual_seed(1);
        ls::EngineOptions options;
        if (way.ends_with(mixed)) options.autocast = ls::DType::bf16;
        options.allow_tf32 = way.ends_with(tf32);
        if (way == "one" || way == "one" + mixed || way == "one" + tf32) {
            if (!on_gpu_) options.threads_per_shard = ls::device_info(first).units + ls::device_info(second).units;
            contestant = std::make_unique<Contestant>(ls::Devices{first}, options, sizes_);
        } else if (way == "dp" || way == "dp" + mixed || way == "dp" + tf32) {
            contestant = std::make_unique<Contestant>(ls::Devices{first, second}, options, sizes_);
        } else {
            throw ls::InvalidArgument("unknown way to train; expected one or dp, also with _bf16 or _tf32, not " + way);
        }
        return *contestant;
    }

private:
    ls::Device device(int index) const { return on_gpu_ ? ls::Device::cuda(index) : ls::Device::cpu(index); }

    Sizes sizes_;
    bool on_gpu_;
    std::map<std::string, std::unique_ptr<Contestant>> made_;
};

nlohmann::json interleave(Contestants& contestants, const std::vector<std::string>& ways, int steps, int repetitions) {
    std::map<std::string, std::vector<double>> seconds;
    for (const std::string& way : ways) contestants.of(way).run(1);
    for (int repetition = 0; repetition < repetitions; ++repetition)
        for (const std::string& way : ways) seconds[way].push_back(contestants.of(way).run(steps));
    std::printf("seconds per step               median       min       max\n");
    const auto line = [](const std::string& name, std::vector<double> values) {
        std::sort(values.begin(), values.end());
        std::printf("%-27s %9.3f %9.3f %9.3f\n", name.c_str(), values[values.size() / 2], values.front(),
                    values.back());
    };
    for (const auto& [way, values] : seconds) line(way, values);
    const auto compare = [&](const std::string& slow, const std::string& fast) {
        if (!seconds.contains(slow) || !seconds.contains(fast)) return;
        std::vector<double> ratios;
        for (std::size_t i = 0; i < seconds[fast].size(); ++i) ratios.push_back(seconds[slow][i] / seconds[fast][i]);
        line("speed of " + fast + " / " + slow, ratios);
    };
    compare("one", "dp");
    compare("one", "one" + mixed);
    compare("one" + mixed, "dp" + mixed);
    return {{"instruction_set", ls::instruction_set()}, {"seconds_per_step", seconds}};
}

void print_profiles(Contestants& contestants, const std::vector<std::string>& ways) {
    constexpr int steps = 5;
    for (const std::string& way : ways) {
        std::vector<std::string> lines;
        for (const auto& [name, time] : contestants.of(way).profile(steps)) {
            char line[200];
            std::snprintf(line, sizeof line, "%9.3f %6.1f  %s", time.milliseconds,
                          static_cast<double>(time.spans) / steps, name.c_str());
            lines.emplace_back(line);
        }
        std::sort(lines.rbegin(), lines.rend());
        std::printf("\n%s\n ms/step  calls  operation\n", way.c_str());
        for (const std::string& line : lines) std::printf("%s\n", line.c_str());
    }
}

/// For a script that interleaves several programs: each line of input names a way; the answer is its seconds per step.
void serve(Contestants& contestants, int steps) {
    std::cout << "ready" << std::endl;
    for (std::string way; std::getline(std::cin, way);) std::cout << contestants.of(way).run(steps) << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app("Seconds per training step of U-Net, on one device and on two.");
    Sizes sizes;
    std::vector<std::string> ways{"one", "dp"};
    std::string isa, json;
    int steps = 1;
    int repetitions = 3;
    bool serves = false, bf16 = false, on_gpu = false, profiles = false;
    app.add_option("--batch-size", sizes.batch, "global batch size")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--width", sizes.width, "channels of the first level")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--height", sizes.height, "rows of an image")->check(CLI::Range(16, 4096))->capture_default_str();
    app.add_option("--image-width", sizes.image_width, "columns of an image")
        ->check(CLI::Range(16, 4096))
        ->capture_default_str();
    app.add_option("--ways", ways, "one: one device, with all cores if it is a CPU; dp: two devices")
        ->check(CLI::IsMember({"one", "dp"}))
        ->capture_default_str();
    app.add_flag("--cuda", on_gpu, "on GPUs instead of CPU devices");
    app.add_flag("--bf16", bf16, "also measure each way in mixed precision");
    app.add_option("--isa", isa, "instruction set; default: the best of the machine")
        ->check(CLI::IsMember({"generic", "avx2", "avx512"}));
    app.add_option("--steps", steps, "steps per repetition")->check(CLI::PositiveNumber)->capture_default_str();
    app.add_option("--repetitions", repetitions, "repetitions per configuration")
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
    app.add_option("--json", json, "output file for all figures");
    app.add_flag("--profile", profiles, "also print the time of each operation");
    app.add_flag("--serve", serves, "read lines such as \"dp\" and answer with seconds per step");
    CLI11_PARSE(app, argc, argv);
    try {
        setenv("LOCKSTEP_CPU_DEVICES", "2", 1);
        if (!isa.empty()) setenv("LOCKSTEP_CPU_ISA", isa.c_str(), 1);
        if (bf16) {
            const std::vector<std::string> in_f32 = ways;
            for (const std::string& way : in_f32) ways.push_back(way + mixed);
        }
        Contestants contestants(sizes, on_gpu);
        if (serves) {
            serve(contestants, steps);
            return 0;
        }
        const nlohmann::json figures = interleave(contestants, ways, steps, repetitions);
        if (profiles) print_profiles(contestants, ways);
        if (!json.empty()) lockstep::write_json(json, figures);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "unet-bench: %s\n", error.what());
        return 1;
    }
}
