// The programs of PyTorch's tutorial "Writing Distributed Applications" (tutorial/), selected by name.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <array>
#include <functional>
#include <memory>
#include <string>

#include "lockstep/parallel/comm/launcher.h"
#include "lockstep/samples/apps/program/command_line.h"
#include "lockstep/samples/apps/program/ranks.h"
#include "lockstep/samples/apps/tutorial/programs.h"

namespace ls = lockstep;

namespace {

struct Entry {
    const char* name;
    void (*run)(ls::ProcessGroup& group);
    int least = 1;  ///< minimum number of ranks
};

constexpr std::array<Entry, 12> programs{{{"blocking", tutorial::blocking_messages, 2},
                                          {"non-blocking", tutorial::non_blocking_messages, 2},
                                          {"all-reduce", tutorial::all_reduce},
                                          {"reduce", tutorial::reduce},
                                          {"broadcast", tutorial::broadcast},
                                          {"scatter", tutorial::scatter},
                                          {"gather", tutorial::gather},
                                          {"all-gather", tutorial::all_gather},
                                          {"reduce-scatter", tutorial::reduce_scatter},
                                          {"all-to-all", tutorial::all_to_all},
                                          {"barrier", tutorial::barrier},
                                          {"ring", tutorial::ring}}};

std::string names() {
    std::string text;
    for (const Entry& entry : programs) text += std::string(entry.name) + "|";
    return text + "train|all";
}

CLI::Validator is_program() {
    const auto complaint = [](const std::string& name) {
        for (const Entry& entry : programs)
            if (entry.name == name) return std::string();
        return name == "train" || name == "all" ? std::string() : "value is " + name + "; expected " + names();
    };
    return {complaint, ""};
}

void run_all(ls::ProcessGroup& group) {
    for (const Entry& entry : programs) {
        if (group.size() < entry.least) continue;
        if (group.rank() == 0) tutorial::say("{}:", entry.name);
        group.barrier();
        entry.run(group);
        group.barrier();
    }
}

void require_ranks(const std::string& name, int count) {
    for (const Entry& entry : programs)
        if (entry.name == name && count < entry.least)
            throw program::UsageError("--program " + name + ": too few ranks (" + std::to_string(count) +
                                      "); expected " + std::to_string(entry.least) + " or more");
}

void run(const std::string& name, ls::ProcessGroup& group, const tutorial::Training& training) {
    if (name == "all") return run_all(group);
    if (name == "train") return tutorial::train(group, training);
    require_ranks(name, group.size());
    for (const Entry& entry : programs)
        if (entry.name == name) return entry.run(group);
}

}  // namespace

int main(int argc, char** argv) {
    std::string name = "all";
    int processes = 4;
    tutorial::Training training;
    program::RankFlags ranks;
    CLI::App app("The programs of PyTorch's tutorial \"Writing Distributed Applications\".", "collectives");
    app.footer("Programs: train, all (every one except train),\n" + names().substr(0, names().rfind("|train")));
    app.add_option("--program", name, "program to run")->type_name("NAME")->check(is_program())->capture_default_str();
    app.add_option("--processes", processes, "ranks to start without a launcher")
        ->type_name("N")
        ->transform(program::is_whole(1, 1024))
        ->capture_default_str();
    app.add_option("--data", training.data, "train: directory with MNIST's IDX files (make-digits)")
        ->type_name("DIR")
        ->capture_default_str();
    app.add_option("--epochs", training.epochs, "train: number of epochs")
        ->type_name("N")
        ->transform(program::is_whole(0, std::int64_t{1} << 31))
        ->capture_default_str();
    app.add_option("--seed", training.seed, "train: random seed for weights, partitions and shuffling")
        ->type_name("N")
        ->transform(program::is_natural())
        ->capture_default_str();
    program::add_flags_of_ranks(app, ranks);
    return program::run(app, argc, argv, [&] {
        for (const char* flag : {"--data", "--epochs", "--seed"})
            if (name != "train" && program::differs_from_default(app, flag))
                throw program::UsageError(fmt::format("{} requires --program train", flag));
        program::require_launcher(ranks);
        const auto call = [&] { run(name, *program::join_ranks(ranks), training); };
        if (program::has_no_launcher(ranks)) {
            require_ranks(name, processes);
            return program::launch_ranks(ranks, processes, call);
        }
        call();
    });
}
