#include "lockstep/samples/apps/info/collective_trials.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <span>
#include <string>
#include <utility>

#include "lockstep/parallel/comm/launcher.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/parallel/data/atomic_file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/tensor.h"
#include "lockstep/samples/apps/program/temporary_file.h"

namespace ls = lockstep;

namespace info {

namespace {

using Values = std::vector<float>;

/// An operation of one of two ranks, and its expected result.
struct Operation {
    const char* name;
    Values (*run)(ls::ProcessGroup& group, ls::Device device);
    Values (*expected)(int rank);
};

ls::Tensor one(float value, ls::Device device) { return ls::Tensor::from(Values{value}, ls::Shape{1}, device); }
ls::Tensor two(ls::Device device) { return ls::Tensor::zeros({2}, ls::DType::f32, device); }
/// {1, 2} on rank 0, {3, 4} on rank 1.
ls::Tensor pair_of(const ls::ProcessGroup& group, ls::Device device) {
    const auto first = static_cast<float>(2 * group.rank() + 1);
    return ls::Tensor::from(Values{first, first + 1}, ls::Shape{2}, device);
}
Values values_of(const ls::Tensor& tensor) { return tensor.to_vector<float>(); }
Values pick(int rank, float first, float second) { return {rank == 0 ? first : second}; }

/// A message from rank 0 to rank 1.
Values message(ls::ProcessGroup& group, ls::Device device, bool blocking) {
    const ls::Tensor x = one(static_cast<float>(group.rank()), device);
    if (blocking)
        group.rank() == 0 ? group.send(x, 1) : (void)group.recv(x, 0);
    else
        (group.rank() == 0 ? group.isend(x, 1) : group.irecv(x)).wait();
    return values_of(x);
}

const std::array<Operation, 13> operations{{
    {"send, recv", [](ls::ProcessGroup& g, ls::Device d) { return message(g, d, true); },
     [](int) { return Values{0}; }},
    {"isend, irecv", [](ls::ProcessGroup& g, ls::Device d) { return message(g, d, false); },
     [](int) { return Values{0}; }},
    {"broadcast",
     [](ls::ProcessGroup& g, ls::Device d) {
         const ls::Tensor x = pair_of(g, d);
         g.broadcast(x, 1);
         return values_of(x);
     },
     [](int) {
         return Values{3, 4};
     }},
    {"all_reduce",
     [](ls::ProcessGroup& g, ls::Device d) {
         const ls::Tensor x = pair_of(g, d);
         g.all_reduce(x);
         return values_of(x);
     },
     [](int) {
         return Values{4, 6};
     }},
    {"reduce",
     [](ls::ProcessGroup& g, ls::Device d) {
         const ls::Tensor x = one(static_cast<float>(g.rank()), d);
         g.reduce(x, 0, ls::ReduceOp::max);
         return values_of(x);
     },
     [](int) { return Values{1}; }},
    {"all_gather",
     [](ls::ProcessGroup& g, ls::Device d) {
         const ls::Tensor out = two(d);
         g.all_gather(out, one(static_cast<float>(g.rank() + 5), d));
         return values_of(out);
     },
     [](int) {
         return Values{5, 6};
     }},
    {"gather",
     [](ls::ProcessGroup& g, ls::Device d) {
         const ls::Tensor out = two(d);
         std::vector<ls::Tensor> parts;
         if (g.rank() == 0) parts = {out.slice(0, 0, 1), out.slice(0, 1, 2)};
         g.gather(one(static_cast<float>(g.rank() + 5), d), parts, 0);
         return values_of(out);
     },
     [](int rank) {
         return rank == 0 ? Values{5, 6} : Values{0, 0};
     }},
    {"scatter",
     [](ls::ProcessGroup& g, ls::Device d) {
         const ls::Tensor out = one(0, d);
         std::vector<ls::Tensor> parts;
         if (g.rank() == 0) parts = {one(7, d), one(8, d)};
         g.scatter(out, parts, 0);
         return values_of(out);
     },
     [](int rank) { return pick(rank, 7, 8); }},
    {"reduce_scatter",
     [](ls::ProcessGroup& g, ls::Device d) {
         const ls::Tensor out = one(0, d);
         g.reduce_scatter(out, pair_of(g, d));
         return values_of(out);
     },
     [](int rank) { return pick(rank, 4, 6); }},
    {"all_to_all",
     [](ls::ProcessGroup& g, ls::Device d) {
         const ls::Tensor out = two(d);
         g.all_to_all(out, pair_of(g, d));
         return values_of(out);
     },
     [](int rank) {
         return rank == 0 ? Values{1, 3} : Values{2, 4};
     }},
    {"barrier",
     [](ls::ProcessGroup& g, ls::Device) {
         g.barrier();
         return Values();
     },
     [](int) { return Values(); }},
    {"monitored_barrier",
     [](ls::ProcessGroup& g, ls::Device) {
         g.monitored_barrier(std::chrono::seconds(20));
         return Values();
     },
     [](int) { return Values(); }},
    {"subgroup",
     [](ls::ProcessGroup& g, ls::Device d) {
         const auto same = g.subgroup({1, 0});
         const ls::Tensor x = one(static_cast<float>(same->rank()), d);
         same->broadcast(x, 0);
         return values_of(x);
     },
     [](int) { return Values{0}; }},
}};

bool works(const Operation& operation, ls::ProcessGroup& group, ls::Device device) {
    try {
        return operation.run(group, device) == operation.expected(group.rank());
    } catch (const ls::Error&) {
        return false;
    }
}

/// mpirun starts MPI's ranks and ends them after a minute. Returns the error, or an empty string.
std::string run_by_mpirun(const std::vector<std::string>& command) {
    std::vector<std::string> words{"mpirun", "--timeout", "60", "--oversubscribe", "--bind-to", "none", "-n", "2"};
    if (::geteuid() == 0) words.insert(words.begin() + 1, "--allow-run-as-root");
    words.insert(words.end(), command.begin(), command.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    pid_t process = 0;
    if (::posix_spawnp(&process, "mpirun", nullptr, nullptr, arguments.data(), environ) != 0) return "no mpirun";
    int status = 0;
    if (::waitpid(process, &status, 0) != process || status != 0) return "mpirun failed";
    return {};
}

std::string run_by_launcher(const std::vector<std::string>& command) {
    ls::LaunchOptions options;
    options.command = command;
    options.processes = 2;
    const ls::LaunchResult result = ls::launch(options);
    return result.success() ? std::string() : result.str();
}

}  // namespace

void try_collectives(const std::string& backend, const std::filesystem::path& file) {
    constexpr std::chrono::seconds timeout(20);
    ls::ProcessGroup group({.backend = backend, .rendezvous = {.time_limit = timeout}, .time_limit = timeout});
    const int gpus = ls::device_count(ls::DeviceKind::cuda);
    std::vector<CollectiveTrial> trials;
    std::string answers;  // one letter each
    for (const auto& [name, device] : {std::pair<const char*, ls::Device>{"host", ls::Device::host()},
                                       {"cpu", ls::Device::cpu(0)},
                                       {"cuda", ls::Device::cuda(gpus > 0 ? group.local_rank() % gpus : 0)}}) {
        const bool missing = device.kind() == ls::DeviceKind::cuda && gpus == 0;
        for (const Operation& operation : operations) {
            const bool good = !missing && works(operation, group, device);
            trials.push_back({name, operation.name, missing ? "no GPU" : good ? "yes" : "no"});
            answers += trials.back().answer.back();
        }
    }
    // Uses the store, because the group may have failed.
    if (group.rank() > 0) return group.store()->set("answers", answers);
    const std::string others = group.store()->get("answers");
    std::string lines;
    for (std::size_t i = 0; i < trials.size(); ++i) {
        const bool agreed = i < others.size() && others[i] == answers[i];
        lines += fmt::format("{}\t{}\t{}\n", trials[i].device, trials[i].operation, agreed ? trials[i].answer : "no");
    }
    ls::AtomicFile to(file);
    to.write(std::as_bytes(std::span(lines)));
    to.commit();
}

std::vector<BackendTrials> try_all_backends() {
    std::vector<BackendTrials> result;
    const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
    for (const ls::ProcessGroupBackend& backend : ls::process_group_backends()) {
        BackendTrials found{backend.name, ls::unusable_reason(backend.name), {}};
        if (found.absent.empty()) {
            const program::TemporaryFile file("lockstep-info");
            const std::vector<std::string> command{self, "--try-collectives", backend.name, "--to",
                                                   file.path().string()};
            found.absent = backend.name == "mpi" ? run_by_mpirun(command) : run_by_launcher(command);
            std::ifstream lines(file.path());
            for (CollectiveTrial trial; std::getline(lines, trial.device, '\t') &&
                                        std::getline(lines, trial.operation, '\t') &&
                                        std::getline(lines, trial.answer);)
                found.trials.push_back(trial);
        }
        result.push_back(std::move(found));
    }
    return result;
}

}  // namespace info
