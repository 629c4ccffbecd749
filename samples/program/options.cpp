#include "lockstep/samples/program/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "lockstep/runtime/error.h"

namespace program {

namespace {

std::string one_line(std::string text) {
    for (char& c : text)
        if (c == '\n' || c == '\r') c = ' ';
    while (!text.empty() && text.back() == ' ') text.pop_back();
    return text;
}

CLI::Validator is_rate() {
    const auto complaint = [](const std::string& text) {
        double value = 0;
        const bool good = CLI::detail::lexical_cast(text, value) && std::isfinite(value) && value >= 0;
        return good ? std::string() : text + " is no number from 0 up";
    };
    return {complaint, "FLOAT from 0 up"};
}

/// CLI11 takes -1 as an unsigned number.
CLI::Validator is_natural() {
    const auto complaint = [](const std::string& text) {
        const bool good = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
        return good ? std::string() : text + " is no whole number from 0 up";
    };
    return {complaint, "UINT"};
}

void add_common_flags(CLI::App& app, Options& options, bool reads_data) {
    app.add_option("--parallel", options.parallel, "none: the first device alone; dp: all devices from one thread")
        ->check(CLI::IsMember({"none", "dp"}))
        ->capture_default_str();
    app.add_option("--devices", options.devices, "all, or a list: cuda:0,cuda:1 or cpu:0,cpu:1")->capture_default_str();
    app.add_option("--shards", options.shards, "pieces of a batch; fixes all bits, whatever the devices (one a device)")
        ->check(CLI::Range(1, 65536));
    auto* whole = app.add_option("--batch-size", options.batch_size, "rows of a step over all devices")
                      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31))
                      ->capture_default_str();
    app.add_option("--batch-size-per-device", options.batch_size_per_device, "the same for each device")
        ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 31))
        ->excludes(whole);
    app.add_option("--epochs", options.epochs, "passes over the data, with those of the run that is continued")
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 31))
        ->capture_default_str();
    app.add_option("--steps", options.steps,
                   "ends the run after so many steps, with those of the run that is continued")
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 62));
    app.add_option("--lr", options.lr, "learning rate")->check(is_rate())->capture_default_str();
    app.add_option("--momentum", options.momentum, "momentum")->check(is_rate())->capture_default_str();
    app.add_option("--seed", options.seed, "of weights, masks and the order of the data")
        ->check(is_natural())
        ->capture_default_str();
    app.add_flag("--deterministic", options.deterministic, "same bits in every run without fixing the shards");
    app.add_option("--workers", options.workers, "threads that read data")
        ->check(CLI::Range(0, 1024))
        ->capture_default_str();
    if (reads_data)
        app.add_option("--data", options.data, "directory with IDX files under MNIST's names")->capture_default_str();
    app.add_option("--save", options.save, "writes the weights (safetensors), and beside them FILE.resume");
    app.add_option("--load", options.load,
                   "begins with these weights; continues the run of FILE.resume if it is there");
    app.add_option("--log-dir", options.log_dir, "writes every step to DIR/PROGRAM.jsonl");
    app.add_option("--json", options.json, "writes the final figures");
    app.add_flag("--quiet", options.quiet, "prints warnings and errors only");
}

void check(const Options& options) {
    for (const auto* path : {&options.save, &options.json})
        if (!path->empty() && !path->has_filename()) throw UsageError(path->string() + " is a directory; name a file");
}

/// Names of virtual devices make as many of them as they ask for, unless LOCKSTEP_CPU_DEVICES says how many there are.
void make_room_for(const std::string& devices) {
    int highest = -1;
    for (std::size_t at = devices.find("cpu:"); at != std::string::npos; at = devices.find("cpu:", at + 1))
        highest = std::max(highest, std::atoi(devices.c_str() + at + 4));
    constexpr int standard = 2;
    if (highest >= standard) setenv("LOCKSTEP_CPU_DEVICES", std::to_string(highest + 1).c_str(), 0);
}

}  // namespace

lockstep::Devices Options::chosen_devices() const {
    make_room_for(devices);
    try {
        const lockstep::Devices all = lockstep::Devices::parse(devices);
        return parallel == "none" ? lockstep::Devices({all[0]}) : all;
    } catch (const lockstep::InvalidArgument& error) {
        throw UsageError(std::string("--devices: ") + error.what());
    }
}

lockstep::EngineOptions Options::engine_options() const {
    lockstep::EngineOptions engine;
    engine.shards = shards.value_or(0);
    engine.deterministic = deterministic;
    engine.seed = seed;
    return engine;
}

std::int64_t Options::global_batch_size(const lockstep::Devices& chosen) const {
    return batch_size_per_device ? *batch_size_per_device * chosen.size() : batch_size;
}

int run(const Program& program, Options& options, int argc, char** argv, const std::function<void()>& body) {
    const auto complain = [&](const std::string& text) { std::cerr << program.name << ": " << one_line(text) << '\n'; };
    CLI::App app(program.purpose, program.name);
    add_common_flags(app, options, program.reads_data);
    if (program.add_flags) program.add_flags(app);
    try {
        app.parse(argc, argv);
        check(options);
    } catch (const CLI::CallForHelp&) {
        std::cout << app.help();
        return 0;
    } catch (const CLI::ParseError& error) {
        complain(std::string(error.what()) + " (--help shows all flags)");
        return 2;
    } catch (const UsageError& error) {
        complain(error.what());
        return 2;
    }
    try {
        body();
        std::cout.flush();
        return 0;
    } catch (const UsageError& error) {
        complain(error.what());
        return 2;
    } catch (const std::exception& error) {
        complain(error.what());
        return 1;
    }
}

}  // namespace program
