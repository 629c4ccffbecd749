// Ends the process in the way that its first argument names while a model is trained, or while an object that has
// threads exists. Status 7 is the expected one. The second argument is a directory for files.
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/parallel/lockstep.h"

namespace ls = lockstep;

namespace {

std::atomic<bool> forward_ends{false};

struct Net {
    ls::Conv2d first{1, 8, 3}, second{8, 16, 3};
    ls::Linear last{16 * 8 * 8, 10};
    LOCKSTEP_MEMBERS(first, second, last)
    ls::Tensor forward(const ls::Tensor& x) const {
        if (forward_ends) std::exit(7);
        return ls::log_softmax(last(ls::relu(second(ls::relu(first(x)))).flatten(1)), 1);
    }
};

std::atomic<int> readers_to_end{0};

struct Rows {
    std::int64_t size() const { return 256; }
    std::tuple<ls::Tensor, ls::Tensor> get(std::int64_t row) const {
        if (row > 100 && readers_to_end > 0 && readers_to_end.fetch_sub(1) > 0) std::exit(7);
        return {ls::Tensor::full({1, 12, 12}, static_cast<double>(row) / 256),
                ls::Tensor::full({}, static_cast<double>(row % 10), ls::DType::i64)};
    }
};

/// Ends the process in the middle of a run.
struct Ends : ls::RunHook {
    void after_step(ls::Runner&, const ls::StepReport& step) override {
        if (step.step > 5) std::exit(7);
    }
};

struct Training {
    ls::DataParallel<Net> model{Net{}, {ls::Device::cpu(0), ls::Device::cpu(1)}};
    ls::SGD sgd{model, {.lr = 0.01}};
    ls::Loader<Rows> loader{model, Rows{}, {.batch_size = 16, .workers = 2}};

    void epoch(std::uint64_t number) {
        for (auto& [images, labels] : loader.epoch(number)) model.step(sgd, images, labels, ls::nll_loss);
    }
};

std::optional<Training> of_the_process;

/// Trains until the process ends.
void train_on(Training& training, std::atomic<bool>& begun) {
    for (std::uint64_t epoch = 0;; ++epoch) {
        training.epoch(epoch);
        begun = true;
    }
}

void await(const std::atomic<bool>& begun) {
    while (!begun) std::this_thread::yield();
}

/// Writes a log, whose thread has entries left.
struct Logs {
    explicit Logs(const std::filesystem::path& place) : log(place / "log") {}
    void use() { log.scalar("loss", 1, step++); }
    ls::EventLog log;
    std::int64_t step = 0;
};

/// Saves checkpoints, of which the last one is being written.
struct Saves {
    explicit Saves(const std::filesystem::path& place) : file(place / "net") {}
    void use() {
        training.epoch(epoch);
        writer.save(training.model, training.sgd, {.epoch = ++epoch}, file);
    }
    std::filesystem::path file;
    Training training;
    ls::CheckpointWriter writer;
    std::uint64_t epoch = 0;
};

/// Serves a store, with a client that has an open connection.
struct Serves {
    explicit Serves(const std::filesystem::path&) {}
    void use() { client.set("key", client.try_get("key").value_or("") + "."); }
    ls::TcpStoreServer server{{.host = "127.0.0.1", .port = 0}};
    ls::TcpStore client{{.host = "127.0.0.1", .port = server.port()}};
};

/// Rank 0 of two; the other one is a child process, which ends with this one.
struct Joins {
    explicit Joins(const std::filesystem::path& place) : group(beside_rank_1(place / "store")) {}
    static ls::ProcessGroupOptions options(const std::filesystem::path& store, int rank) {
        return {.backend = "shm",
                .rendezvous = {.init_method = "file://" + store.string(), .rank = rank, .world_size = 2}};
    }
    static ls::ProcessGroupOptions beside_rank_1(const std::filesystem::path& store) {
        if (::fork() != 0) return options(store, 0);
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        try {
            ls::ProcessGroup group(options(store, 1));
            for (const ls::Tensor tensor = ls::Tensor::zeros({1000});;) group.all_reduce(tensor);
        } catch (const std::exception&) {  // rank 0 has ended
        }
        ::_exit(0);
    }
    void use() { work = group.all_reduce_async(tensor); }
    ls::ProcessGroup group;
    ls::Tensor tensor = ls::Tensor::zeros({1000});
    std::optional<ls::ProcessGroup::Work> work;
};

/// A log on a full disk, and checkpoints for a directory that does not exist: warnings of the threads that write.
struct FullLog : Logs {
    explicit FullLog(const std::filesystem::path& place) : Logs(with_full_file(place)) {}
    static std::filesystem::path with_full_file(const std::filesystem::path& place) {
        std::filesystem::create_directories(place / "log");
        std::filesystem::create_symlink("/dev/full", place / "log/log.jsonl");
        return place;
    }
};
struct FailingSaves : Saves {
    explicit FailingSaves(const std::filesystem::path& place) : Saves(place / "missing") {}
};

template <class Used>
std::optional<Used> object_of_the_process;

/// Exits from the handler of a warning, which the object's own thread calls.
template <class Used>
[[noreturn]] void exit_of_handler(bool kept, const std::filesystem::path& place) {
    std::filesystem::remove_all(place);
    std::filesystem::create_directories(place);
    std::optional<Used> local;
    Used& used = kept ? object_of_the_process<Used>.emplace(place) : local.emplace(place);
    ls::set_log_handler([](ls::LogLevel, const std::string&) { std::exit(7); });
    used.use();
    while (true) ::pause();
}

/// Exits from another thread. An object of the process, which exit destroys, is not in a call then; a local one is.
template <class Used>
[[noreturn]] void exit_while_used(bool kept, const std::filesystem::path& place) {
    std::filesystem::remove_all(place);
    std::filesystem::create_directories(place);
    std::optional<Used> local;
    Used& used = kept ? object_of_the_process<Used>.emplace(place) : local.emplace(place);
    std::atomic<bool> begun{false};
    for (int i = 0; i < 3; ++i) used.use();
    std::thread([&] {
        await(begun);
        std::exit(7);
    }).detach();
    begun = true;
    while (true) kept ? static_cast<void>(::pause()) : used.use();
}

}  // namespace

int main(int count, char** arguments) {
    const std::string way = count > 1 ? arguments[1] : "";
    std::atomic<bool> begun{false};
    const bool kept = way.starts_with("static ");
    const std::string how = kept ? way.substr(7) : way;
    const std::filesystem::path place = count > 2 ? arguments[2] : "";
    if (how == "exit with a log") exit_while_used<Logs>(kept, place);
    if (how == "exit with a checkpoint writer") exit_while_used<Saves>(kept, place);
    if (how == "exit with a store server") exit_while_used<Serves>(kept, place);
    if (how == "exit with a process group") exit_while_used<Joins>(kept, place);
    if (how == "exit of a handler of a log") exit_of_handler<FullLog>(kept, place);
    if (how == "exit of a handler of a checkpoint writer") exit_of_handler<FailingSaves>(kept, place);
    std::optional<Training> local;
    Training& training = kept ? of_the_process.emplace() : local.emplace();
    if (how == "exit of another thread") {
        std::thread([&] {
            await(begun);
            std::exit(7);
        }).detach();
        train_on(training, begun);
    } else if (how == "exit while another thread trains") {
        std::thread([&] { train_on(training, begun); }).detach();
        await(begun);
        std::exit(7);
    } else if (how == "quick_exit") {
        std::thread([&] {
            await(begun);
            std::quick_exit(7);
        }).detach();
        train_on(training, begun);
    } else if (how == "exit of a hook") {
        ls::Runner runner(training.model, training.sgd, training.loader, ls::nll_loss, {.epochs = 1000});
        runner.add(Ends());
        runner.run();
    } else if (how == "exit in forward") {
        forward_ends = true;
        train_on(training, begun);
    } else if (how == "exit after the main thread") {
        Training& lasting = kept ? training : *new Training;  // pthread_exit destroys local objects
        static std::atomic<bool> trains{false};
        std::thread([&lasting] { train_on(lasting, trains); }).detach();
        std::thread([main = ::pthread_self()] {
            ::pthread_join(main, nullptr);
            await(trains);
            std::exit(7);
        }).detach();
        ::pthread_exit(nullptr);
    } else if (how == "return") {
        auto epoch = training.loader.epoch(0);
        auto batch = epoch.begin();
        auto& [images, labels] = *batch;
        for (int i = 0; i < 5; ++i) training.model.step(training.sgd, images, labels, ls::nll_loss);
        return 7;
    } else if (how == "exit of a reader" || how == "exit of both readers") {
        training.epoch(0);
        readers_to_end = how == "exit of a reader" ? 1 : 2;
        train_on(training, begun);
    }
    return 1;
}
