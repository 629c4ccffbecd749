// Time and memory of one U-Net on two devices, in every form of parallelism.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/model_parallel/forms.h"
#include "lockstep/samples/apps/program/command_line.h"
#include "lockstep/samples/apps/program/flags.h"
#include "lockstep/samples/apps/program/ranks.h"
#include "lockstep/samples/apps/program/report.h"
#include "lockstep/samples/apps/program/temporary_file.h"

namespace ls = lockstep;

namespace {

struct Flags {
    program::Options options;
    std::string split = "arithmetic";
    std::int64_t batch_size = 8, microbatches = 4, width = 16, image_size = 192;
    int steps = 7;
    std::filesystem::path rank_of_ddp;  ///< file for the results of a process that this program has started
};

ls::Devices chosen_devices(const Flags& flags) {
    try {
        const ls::Devices all = ls::Devices::parse(flags.options.devices);
        if (flags.options.devices == "all" && all.size() > 2) return ls::Devices({all[0], all[1]});
        if (all.size() == 2) return all;
        throw program::UsageError(
            fmt::format("--devices: list has {} {}; expected two, such as cpu:0,cpu:1 (LOCKSTEP_CPU_DEVICES sets the "
                        "number of CPU devices)",
                        all.size(), all.size() == 1 ? "device" : "devices"));
    } catch (const ls::InvalidArgument& error) {
        throw program::UsageError(std::string("--devices: ") + error.what());
    }
}

forms::Settings settings_of(const Flags& flags, ls::Devices devices) {
    if (flags.batch_size % flags.microbatches != 0)
        throw program::UsageError(fmt::format("--batch-size: {} images; expected a multiple of --microbatches ({})",
                                              flags.batch_size, flags.microbatches));
    program::Options options = flags.options;
    options.devices = devices.str();
    options.epochs = flags.steps + forms::warm_up_steps;
    return {.options = options,
            .devices = std::move(devices),
            .net = {.width = flags.width},
            .cut = flags.split == "parameters" ? halves::Cut::parameters : halves::Cut::arithmetic,
            .batch_size = flags.batch_size,
            .image_size = flags.image_size,
            .microbatches = flags.microbatches,
            .steps = flags.steps};
}

nlohmann::ordered_json json_of(const forms::Measured& form) {
    return {{"form", form.name},
            {"milliseconds", form.milliseconds},
            {"median_milliseconds", form.median()},
            {"peak_bytes", form.peak_bytes},
            {"loss", form.loss}};
}

/// Body of a process that this program has started.
void run_rank(const Flags& flags) {
    const std::shared_ptr<ls::ProcessGroup> group = program::join_ranks(flags.options, flags.options.devices);
    const ls::Devices visible = ls::Devices::visible();
    const ls::Devices own = visible.kind() == ls::DeviceKind::cpu
                                ? ls::Devices({visible[group->local_rank() % visible.size()]})
                                : ls::Devices({chosen_devices(flags)[group->local_rank()]});
    const forms::Measured form = forms::distributed(settings_of(flags, own), *group);
    if (group->rank() == 0) program::write_json(flags.rank_of_ddp, json_of(form));
}

/// `command`: this program with its flags, which its ranks get as well.
forms::Measured in_processes(const forms::Settings& settings, std::vector<std::string> command) {
    const program::TemporaryFile figures("model_parallel");
    command.push_back("--rank-of-ddp=" + figures.path().string());
    // A rank has its share of the cores, and one device with all of them.
    if (settings.devices.kind() == ls::DeviceKind::cpu) setenv("LOCKSTEP_CPU_DEVICES", "1", 1);
    program::launch_ranks(settings.options, settings.devices.size(), std::move(command));
    std::ifstream file(figures.path());
    const nlohmann::json read = nlohmann::json::parse(file);
    return {"ddp", read.at("milliseconds").get<std::vector<double>>(),
            read.at("peak_bytes").get<std::vector<std::size_t>>(), read.at("loss").get<double>()};
}

void print_table(const std::vector<forms::Measured>& all) {
    const double base = all.front().median();
    fmt::print("{:<10} {:>11} {:>19} {:>7}   {:<17} {:>8}\n", "form", "ms per step", "(min to max)", "speed",
               "peak MiB on each", "loss");
    for (const forms::Measured& form : all) {
        const auto [least, most] = std::minmax_element(form.milliseconds.begin(), form.milliseconds.end());
        std::vector<std::string> peaks;
        for (const std::size_t bytes : form.peak_bytes)
            peaks.push_back(fmt::format("{:.1f}", static_cast<double>(bytes) / (1 << 20)));
        fmt::print("{:<10} {:>11.1f} {:>19} {:>6.2f}x   {:<17} {:>8.5f}\n", form.name, form.median(),
                   fmt::format("({:.1f} to {:.1f})", *least, *most), base / form.median(),
                   fmt::format("{}", fmt::join(peaks, ", ")), form.loss);
    }
}

constexpr const char* in_words = R"(
none       one device, in a wrapper, which traces the step: the reference for dp and ddp.
plain      one device without a wrapper: operations are enqueued as they are called, as in the two parts.
dp         faster: each device computes half of the batch. Saves activations only: each device holds the whole model.
           Both wait at the end of forward for the other's part of the loss, and before the update for gradients.
ddp        as dp, in one process per device. The processes wait for each other through shared memory.
serial     less memory: each device holds its part of the model, of the gradients and of the optimizer's state. Not
           faster: the decoder waits for the encoder's forward, the encoder for the decoder's backward.
pipelined  less memory, also for activations, and faster if a microbatch keeps a device busy: one part processes the
           next microbatch while the other processes this one. Each waits for the other at the beginning and the end
           of a step, and the one with less arithmetic also in between. BatchNorm and dice see one microbatch at a
           time, so the loss differs.
)";

void print_setup(const Flags& flags, const forms::Settings& settings, const halves::Shares& share) {
    fmt::print("model_parallel: U-Net of width {}, {} images of {} x {} per step, {} microbatches, on {}\n",
               flags.width, flags.batch_size, flags.image_size, flags.image_size, flags.microbatches,
               settings.devices.str());
    fmt::print(
        "serial and pipelined, split by {}: {} has {:.0f} % of the parameters and {:.0f} % of the multiply-adds, {} "
        "the rest\n\n",
        flags.split, settings.devices[0].str(), 100 * share.parameters, 100 * share.multiply_adds,
        settings.devices[1].str());
}

void run_all(const Flags& flags, const std::vector<std::string>& command) {
    const forms::Settings settings = settings_of(flags, chosen_devices(flags));
    const halves::Shares share = halves::shares(settings.net, settings.cut);
    const bool quiet = settings.options.quiet;
    if (!quiet) print_setup(flags, settings, share);
    std::vector<forms::Measured> all;
    for (const auto form : {forms::none, forms::plain, forms::data_parallel}) all.push_back(form(settings));
    all.push_back(in_processes(settings, command));
    for (const auto form : {forms::serial, forms::pipelined}) all.push_back(form(settings));
    if (!quiet) {
        print_table(all);
        fmt::print("{}", in_words);
    }
    if (settings.options.json.empty()) return;
    nlohmann::ordered_json figures = {{"devices", settings.devices.str()},
                                      {"split", flags.split},
                                      {"first_share_of_parameters", share.parameters},
                                      {"first_share_of_multiply_adds", share.multiply_adds},
                                      {"forms", nlohmann::ordered_json::array()}};
    for (const forms::Measured& form : all) figures["forms"].push_back(json_of(form));
    program::write_json(settings.options.json, figures);
}

}  // namespace

int main(int argc, char** argv) {
    Flags flags;
    flags.options.default_lr = 1e-3;
    flags.options.default_weight_decay = ls::AdamWOptions().weight_decay;
    CLI::App app("Train a U-Net on two devices in every form of parallelism and compare time and memory.",
                 "model_parallel");
    const auto add = [&](const char* name, auto& value, const char* text, std::int64_t least, std::int64_t most) {
        app.add_option(name, value, text)
            ->type_name("N")
            ->transform(program::is_whole(least, most))
            ->capture_default_str();
    };
    app.option_defaults()->group("Model and batch");
    app.add_option("--devices", flags.options.devices,
                   "two devices: the first for the encoder, the second for the decoder")
        ->type_name("all|LIST")
        ->capture_default_str();
    add("--batch-size,-b", flags.batch_size, "images per step", 2, 1 << 16);
    add("--microbatches", flags.microbatches, "microbatches of the pipelined form", 1, 1 << 16);
    add("--width", flags.width, "channels of the first level, 64 in PyTorch's U-Net", 1, 1024);
    app.add_option("--split", flags.split, "quantity to balance between the devices")
        ->type_name("arithmetic|parameters")
        ->check(CLI::IsMember({"arithmetic", "parameters"}).description(""))
        ->capture_default_str();
    add("--image-size", flags.image_size, "side of an image in pixels", 16, 4096);
    app.option_defaults()->group("Training");
    add("--steps", flags.steps, "measured steps of each form, after two warm-up steps", 1, 1 << 20);
    app.add_option("--seed", flags.options.seed, "random seed for weights and images")
        ->type_name("N")
        ->transform(program::is_natural())
        ->capture_default_str();
    program::add_flags_of_algorithms(app, flags.options);
    program::add_flag_of_amp(app, flags.options);
    program::add_flags_of_update(app, flags.options);
    program::add_flags_of_schedule(app, flags.options, false);
    program::add_flags_of_backend(app, flags.options, "Processes (form ddp)");
    program::add_flag_of_reduction(app, flags.options);
    program::add_flags_of_output(app, flags.options);
    app.add_option("--rank-of-ddp", flags.rank_of_ddp)->group("");
    app.footer(
        "Every step trains on the same batch: an epoch of a schedule is one step. Nothing is evaluated or saved.");
    return program::run(app, program::words_of(argc, argv), [&] {
        program::require_complete(app, flags.options.schedule);
        flags.rank_of_ddp.empty() ? run_all(flags, ls::own_command(argc, argv)) : run_rank(flags);
    });
}
