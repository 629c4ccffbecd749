// Trains one network in one way for some steps and writes the measurements of every process: bench/dp-vs-ddp runs it
// repeatedly. With --parallel ddp it starts its own processes, like the samples.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/bench/json_file.h"
#include "lockstep/bench/workloads.h"
#include "lockstep/parallel/lockstep.h"
#include "lockstep/samples/apps/program/strategy.h"

namespace ls = lockstep;
using nlohmann::ordered_json;

namespace {

struct Lengths {
    int warmup = 10, timed = 60, logged = 20;
    std::int64_t all() const { return warmup + timed + logged; }
};

double now_ms() {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Bytes of memory of a process, with its share of shared pages. 0 if the system does not report it.
std::int64_t proportional_bytes(const std::string& process) {
    std::ifstream file("/proc/" + process + "/smaps_rollup");
    for (std::string line; std::getline(file, line);)
        if (line.starts_with("Pss:")) return 1024 * std::stoll(line.substr(4));
    return 0;
}

/// Milliseconds of several consecutive steps, and the part in which the host waited for batches.
struct Run {
    double total = 0, input = 0;
};

ordered_json json_of(const ls::StepSplit& split) {
    return {{"step", split.step},         {"input", split.input},       {"forward", split.forward},
            {"backward", split.backward}, {"slowest", split.slowest},   {"exposed", split.exposed},
            {"update", split.update},     {"rest", split.rest},         {"communication", split.communication},
            {"overlap", split.overlap},   {"updating", split.updating}, {"in_collectives", split.in_collectives}};
}

ordered_json json_of(const ls::LoggedStep& step) {
    ordered_json spans = ordered_json::array();
    for (const ls::StepSpan& span : step.spans)
        spans.push_back({{"kind", std::string(ls::name_of(span.kind))},
                         {"name", span.name},
                         {"stream", span.stream},
                         {"begin", span.begin},
                         {"end", span.end}});
    return spans;
}

/// The step of median length among those with a split: rank 0 selects it, so that all ranks show the same step.
std::size_t typical_step(const program::Options& options, const std::vector<ls::StepSplit>& splits) {
    std::vector<std::size_t> order(splits.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(), [&](auto a, auto b) { return splits[a].step < splits[b].step; });
    const std::size_t own = order.at(order.size() / 2);
    if (!options.group) return own;
    if (options.is_rank0()) options.group->store()->set("bench/typical", std::to_string(own));
    return std::stoul(options.group->store()->get("bench/typical"));
}

template <class Net, class Data, class LossOf>
void measure(const program::Options& options, const Lengths& lengths, const std::filesystem::path& out, const Net& net,
             const Data& training, const LossOf& loss) {
    const std::int64_t batch = options.global_batch_size(options.chosen_devices());
    program::with_model(options, net, [&](auto& model) {
        ls::Loader loader(model, training,
                          {.batch_size = batch,
                           .shuffle = true,
                           .seed = options.seed,
                           .drop_last = true,
                           .workers = options.workers});
        if (loader.batches() < lengths.all())
            throw ls::InvalidArgument(fmt::format("{}: too few rows: {} steps of {} rows; expected {}",
                                                  options.data.string(), lengths.all(), batch, lengths.all() * batch));
        ls::SGD sgd(model, {.lr = options.default_lr, .momentum = options.default_momentum});
        auto batches = loader.epoch(0);
        auto next = batches.begin();
        const auto run = [&](int steps) {
            Run result;
            model.synchronize();
            if (options.group) options.group->barrier();
            const double begin = now_ms();
            for (int step = 0; step < steps; ++step) {
                auto& [inputs, targets] = *next;
                model.step(sgd, inputs, targets, loss);
                const double asked = now_ms();
                ++next;
                result.input += now_ms() - asked;
            }
            model.synchronize();
            result.total = now_ms() - begin;
            return result;
        };
        ls::Engine& engine = model.engine();
        run(1);
        const double first_step_done = now_ms();
        run(lengths.warmup - 1);
        const Run timed = run(lengths.timed);
        engine.log_steps(lengths.logged);
        const Run logged = run(lengths.logged);
        const std::vector<ls::LoggedStep> log = engine.step_log();
        const std::vector<ls::StepSplit> splits = ls::split_steps(log);

        ordered_json text;
        text["rank"] = options.group ? options.group->rank() : 0;
        text["rows"] = batch;
        text["shards"] = model.shards();
        text["backend"] = options.group ? std::string(options.group->backend()) : "";
        for (const ls::Device device : model.devices()) {
            text["devices"].push_back(device.str());
            text["cores"].push_back(ls::device_info(device).units);
            text["peak_bytes"].push_back(ls::memory_stats(device).peak);
        }
        text["first_step_done"] = first_step_done;
        text["step"] = timed.total / lengths.timed;
        text["input_wait"] = timed.input / lengths.timed;
        text["logged_step"] = logged.total / lengths.logged;
        text["pss"] = proportional_bytes("self");
        // The launcher of the processes belongs to the run as well.
        text["launcher_pss"] =
            options.group && options.is_rank0() ? proportional_bytes(std::to_string(::getppid())) : 0;
        for (const ls::StepSplit& split : splits) text["splits"].push_back(json_of(split));
        for (const ls::LoggedStep& step : log)
            text["slowest"].push_back({{"rank", step.slowest_rank}, {"waited", step.waited_for_slowest}});
        text["timeline"] = json_of(log.at(typical_step(options, splits)));
        for (const auto& [name, version] : ls::library_versions()) text["versions"][name] = version;
        ls::write_json(out / fmt::format("rank-{}.json", text["rank"].get<int>()), text);
    });
}

}  // namespace

int main(int argc, char** argv) {
    program::Options options;
    std::string net = "cnn";
    std::filesystem::path out;
    Lengths lengths;
    const auto add_flags = [&](CLI::App& app) {
        app.add_option("--net", net, "network; cnn, small and mlp read --data, the others make their own rows")
            ->type_name(fmt::format("{}", fmt::join(bench::workload_names(), "|")))
            ->check(CLI::IsMember(bench::workload_names()).description(""))
            ->capture_default_str();
        app.add_option("--out", out, "each process writes DIR/rank-N.json")->type_name("DIR")->required();
        const auto count = CLI::Range(2, 1 << 20).description("");
        app.add_option("--warmup", lengths.warmup, "untimed steps at the start")->check(count)->capture_default_str();
        app.add_option("--timed", lengths.timed, "timed steps")->check(count)->capture_default_str();
        app.add_option("--logged", lengths.logged, "steps after those whose time is broken down")
            ->check(count)
            ->capture_default_str();
    };
    return program::run(
        {"dp-vs-ddp-worker", "Trains with one strategy and writes the measurements.",
         "directory with IDX files, named as in MNIST", add_flags},
        options, argc, argv, [&] {
            ls::manual_seed(options.seed);
            const std::int64_t rows = lengths.all() * options.global_batch_size(options.chosen_devices());
            bench::with_workload(net, options.data, rows,
                                 [&](const auto&... parts) { measure(options, lengths, out, parts...); });
            return std::optional<program::Stop>();  // no stop condition
        });
}
