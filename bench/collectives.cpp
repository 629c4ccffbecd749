// Collective benchmark in the style of nccl-tests: time and bandwidth over sizes, for every backend and between the
// devices of one process. Starts its own ranks, once for each backend; under a launcher (mpirun: mpi) it is one of the
// ranks.
#include "lockstep/bench/collectives.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>

#include "lockstep/parallel/comm/launcher.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/samples/apps/program/command_line.h"

namespace ls = lockstep;
using collectives::Row;
using nlohmann::ordered_json;

namespace {

constexpr const char* in_process = "in-process";

struct Options {
    collectives::Plan plan;
    std::string dtype = "f32";
    std::vector<std::string> backends;
    int ranks = 2;
    std::filesystem::path csv, json;
    // In ranks started by this program: the backend, and the file for their rows.
    std::string job;
    std::filesystem::path rows;
};

void print_head() {
    std::printf("%-18s %-14s %12s %10s %6s %6s %12s %12s %12s %8s\n", "where", "operation", "size(B)", "count", "type",
                "ranks", "time(us)", "algbw(GB/s)", "busbw(GB/s)", "#wrong");
    std::fflush(stdout);  // before the ranks' output
}

void print(const Row& row, ls::DType dtype) {
    std::printf("%-18s %-14s %12zu %10zu %6s %6d %12.2f %12.3f %12.3f %8lld\n", row.where.c_str(),
                row.operation.c_str(), row.bytes, row.bytes / ls::size_of(dtype), row.dtype.c_str(), row.ranks,
                row.microseconds, row.algorithm_gbs, row.bus_gbs, static_cast<long long>(row.wrong));
    std::fflush(stdout);
}

ordered_json json_of(const Row& row) {
    return {{"where", row.where},         {"operation", row.operation}, {"bytes", row.bytes},
            {"dtype", row.dtype},         {"ranks", row.ranks},         {"microseconds", row.microseconds},
            {"algbw", row.algorithm_gbs}, {"busbw", row.bus_gbs},       {"wrong", row.wrong}};
}

/// Rows so far, and the files to write.
class Report {
public:
    /// Opens the files, so that an unwritable file is an error before anything is measured.
    Report(const Options& options, bool writes) : options_(options) {
        if (!writes || !options.rows.empty()) return;
        if (!options.csv.empty()) csv_.emplace(options.csv);
        if (!options.json.empty()) json_.emplace(options.json);
    }
    void add(const Row& row) {
        print(row, options_.plan.dtype);
        rows_.push_back(json_of(row));
    }
    /// Adds the rows of a job, which has printed them already.
    void take(const std::filesystem::path& file) {
        std::ifstream lines(file);
        for (std::string line; std::getline(lines, line);) rows_.push_back(ordered_json::parse(line));
    }
    /// Writes the files; throws DataError if a result was wrong.
    void finish() {
        if (!options_.rows.empty()) {
            ls::AtomicFile file(options_.rows);
            std::string lines;
            for (const ordered_json& row : rows_) lines += row.dump() + "\n";
            return write(file, lines);
        }
        if (json_) write(*json_, ordered_json(rows_).dump(1) + "\n");
        if (csv_) write(*csv_, table());
        for (const ordered_json& row : rows_)
            if (row["wrong"] != 0)
                throw ls::DataError(fmt::format("{} over {}: {} elements are wrong; expected none",
                                                row["operation"].dump(), row["where"].dump(), row["wrong"].dump()));
    }

private:
    static void write(ls::AtomicFile& file, const std::string& text) {
        file.write(std::as_bytes(std::span(text)));
        file.commit();
    }
    std::string table() const {
        std::string text;
        const auto line = [&](const auto& text_of) {
            const char* comma = "";
            for (const auto& item : rows_.front().items()) {
                text += comma + text_of(item.key());
                comma = ",";
            }
            text += '\n';
        };
        if (!rows_.empty()) line([](const std::string& key) { return key; });
        for (const ordered_json& row : rows_) line([&](const std::string& key) { return row[key].dump(); });
        return text;
    }

    const Options& options_;
    std::vector<ordered_json> rows_;
    std::optional<ls::AtomicFile> csv_, json_;
};

/// Throws UsageError for measurements that need more ranks or memory than available.
void check(const Options& options, int ranks, int ranks_here) {
    const std::vector<std::size_t> sizes = options.plan.sizes();
    if (sizes.empty())
        throw program::UsageError("no sizes to measure; expected -b of at least an element, and -e not less than -b");
    const auto& wanted = options.plan.operations;
    if (std::all_of(wanted.begin(), wanted.end(),
                    [&](const std::string& name) { return ranks < collectives::min_ranks(name); }))
        throw program::UsageError(
            "the operations need at least two ranks; expected --ranks 2 or more, or other operations");
    // A rank has the inputs, the outputs, the expected results, and copies of them to compare.
    constexpr double copies = 6, gib = 1 << 30;
    const double needed = copies * static_cast<double>(sizes.back()) * ranks_here,
                 there = static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(::sysconf(_SC_PAGESIZE));
    if (needed > there)
        throw program::UsageError(
            fmt::format("{:.1f} GiB with {} ranks need about {:.0f} GiB of memory, this machine has {:.0f}; expected a "
                        "smaller -e or fewer ranks",
                        static_cast<double>(sizes.back()) / gib, ranks_here, needed / gib, there / gib));
}

/// One rank of a job.
void be_a_rank(const Options& options, ls::Launcher launcher) {
    std::string backend = options.job;
    if (backend.empty() && !options.backends.empty()) backend = options.backends.front();
    if (backend.empty() && launcher == ls::Launcher::open_mpi) backend = "mpi";
    ls::ProcessGroup group({.backend = backend});
    Report report(options, group.rank() == 0);
    if (group.rank() == 0 && options.rows.empty()) print_head();
    collectives::run_collectives(*group.communicator("bench"), group.local_rank(), options.plan,
                                 [&](const Row& row) { report.add(row); });
    if (group.rank() == 0) report.finish();
}

std::vector<std::string> all_backends() {
    std::vector<std::string> names{in_process};
    for (const ls::ProcessGroupBackend& backend : ls::process_group_backends())
        if (ls::unusable_reason(backend.name).empty() && backend.name != "mpi") names.push_back(backend.name);
    return names;
}

/// One job per backend.
void run_all(const Options& options, const std::vector<std::string>& command) {
    Report report(options, true);
    print_head();
    for (const std::string& backend : options.backends.empty() ? all_backends() : options.backends) {
        if (backend == in_process) {
            const auto& wanted = options.plan.operations;
            if (options.plan.dtype == ls::DType::f32 &&
                std::find(wanted.begin(), wanted.end(), "all_reduce") != wanted.end())
                collectives::run_in_process(options.ranks, options.plan, [&](const Row& row) { report.add(row); });
            continue;
        }
        const std::filesystem::path rows =
            std::filesystem::temp_directory_path() / fmt::format("collectives-{}-{}", ::getpid(), backend);
        ls::LaunchOptions launch;
        launch.command = command;
        for (const std::string& word : {std::string("--job"), backend, std::string("--rows"), rows.string()})
            launch.command.push_back(word);
        launch.processes = options.ranks;
        const ls::LaunchResult result = ls::launch(launch);
        report.take(rows);
        std::filesystem::remove(rows);
        if (!result.success()) throw ls::CommunicationError(backend + ": " + result.str());
    }
    report.finish();
}

}  // namespace

int main(int argc, char** argv) {
    Options options;
    CLI::App app("Time and bandwidth of collectives; see nccl-tests for the columns.", "collectives-bench");
    const std::vector<std::string> known = collectives::operations();
    options.plan.operations = known;
    app.add_option("-b,--begin", options.plan.begin, "smallest size")
        ->transform(CLI::AsSizeValue(false))
        ->capture_default_str();
    app.add_option("-e,--end", options.plan.end, "largest size")
        ->transform(CLI::AsSizeValue(false))
        ->capture_default_str();
    app.add_option("-f,--factor", options.plan.factor, "ratio of successive sizes")
        ->check(CLI::Range(1.01, 1e6))
        ->capture_default_str();
    app.add_option("-n,--iterations", options.plan.iterations, "timed calls")
        ->check(CLI::Range(1, 1 << 30))
        ->capture_default_str();
    app.add_option("-w,--warmup", options.plan.warmup, "untimed calls before")
        ->check(CLI::Range(0, 1 << 30))
        ->capture_default_str();
    app.add_option("-o,--operation", options.plan.operations, "operations to measure; default: all")
        ->check(CLI::IsMember(known));
    app.add_option("-d,--dtype", options.dtype, "dtype of the elements")
        ->check(CLI::IsMember({"f32", "f64", "i32", "i64"}))
        ->capture_default_str();
    app.add_option(
        "--backend", options.backends,
        "in-process, shm, gloo, nccl (on GPUs): measured in turn; mpi: needs mpirun. Default: all that are available");
    app.add_option("--ranks", options.ranks, "number of processes, or of devices in one process")
        ->check(CLI::Range(1, 64))
        ->capture_default_str();
    app.add_option("--csv", options.csv, "write the rows as CSV");
    app.add_option("--json", options.json, "write the rows as JSON");
    app.add_option("--job", options.job)->group("");
    app.add_option("--rows", options.rows)->group("");
    return program::run(app, argc, argv, [&] {
        for (const ls::DType dtype : {ls::DType::f32, ls::DType::f64, ls::DType::i32, ls::DType::i64})
            if (ls::name_of(dtype) == options.dtype) options.plan.dtype = dtype;
        const ls::RankInfo info = ls::rank_info();
        if (info.launcher != ls::Launcher::none) {
            check(options, info.world_size, info.local_world_size);
            return be_a_rank(options, info.launcher);
        }
        check(options, options.ranks, options.ranks);
        ::setenv("LOCKSTEP_CPU_DEVICES", std::to_string(options.ranks).c_str(), 0);
        run_all(options, ls::own_command(argc, argv));
    });
}
