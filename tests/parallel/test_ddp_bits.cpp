// Several processes train to the same checkpoint as one: with eight shards, for any number of processes and any
// backend. Every run is a separate job.
#include <cstdio>
#include <map>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/launcher.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/pairwise.h"
#include "lockstep/tests/fixtures/processes.h"

using namespace lockstep;

namespace {

struct TrainingRun {
    std::string net = "small", backend = "shm";
    int ranks = 2;
    std::int64_t rows = 404;  // batches of 64; the last one has 20 rows: shards of 3,3,3,3,3,3,2
    std::size_t bucket_bytes = std::size_t{1} << 20;
    int shards = 8;
    int delay_us = 0;  ///< longest delay that is injected before a piece of work
    /// Host of a rank, in the shell's arithmetic; empty: all are on one.
    std::string host = {};
    std::string optimizer = "sgd";
};

const test::TemporaryDirectory& directory() {
    static const test::TemporaryDirectory instance;
    return instance;
}

bool built_in(const std::string& name) { return transport_backend(name).make != nullptr; }

std::string checkpoint_of(const TrainingRun& run) {
    const std::string file = directory() / "checkpoint.safetensors";
    std::filesystem::remove(file);
    std::vector<std::string> command{TRAIN_CHECKPOINT,
                                     run.net,
                                     std::to_string(run.ranks),
                                     std::to_string(run.shards),
                                     run.backend,
                                     std::to_string(run.bucket_bytes),
                                     std::to_string(run.rows),
                                     "1",
                                     file,
                                     run.optimizer};
    INFO(run.net << ", " << run.backend << ", " << run.ranks << " ranks, " << run.rows << " rows, " << run.shards
                 << " shards, delays " << run.delay_us << ", hosts " << run.host);
    if (!run.host.empty())
        command.insert(command.begin(), {"/bin/sh", "-c", "LOCKSTEP_HOST_ID=$((" + run.host + ")) exec \"$@\"", "sh"});
    const std::string delays = std::to_string(run.delay_us);
    if (run.backend == "mpi") {
        command.insert(command.begin(), {"/usr/bin/env", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n",
                                         std::to_string(run.ranks)});
        const test::ChildProcess child{
            .command = command, .environment = {{"LOCKSTEP_CPU_DEVICES", "1"}}, .output = directory() / "output"};
        REQUIRE(test::run_child(child) == 0);
    } else {
        setenv("LOCKSTEP_INJECT_DELAYS", delays.c_str(), 1);
        const LaunchResult result =
            launch({.command = command,
                    .processes = run.ranks,
                    .log_dir = directory() / "logs",
                    .redirects = std::vector<Streams>(static_cast<std::size_t>(run.ranks), Streams::out)});
        unsetenv("LOCKSTEP_INJECT_DELAYS");
        INFO(result.str());
        REQUIRE(result.success());
    }
    return test::get_bytes(file);
}

/// Checkpoint of one process on one device.
const std::string& expected(const TrainingRun& run) {
    static std::map<std::string, std::string> known;
    std::string& bytes = known[run.net + std::to_string(run.rows) + "/" + std::to_string(run.shards) + run.optimizer];
    if (!bytes.empty()) return bytes;
    const std::string file = directory() / "expected.safetensors";
    test::ChildProcess child;
    child.command = {TRAIN_CHECKPOINT,
                     run.net,
                     "1",
                     std::to_string(run.shards),
                     "root",
                     "1048576",
                     std::to_string(run.rows),
                     "1",
                     file,
                     run.optimizer};
    child.environment = {{"LOCKSTEP_CPU_DEVICES", "1"}};
    child.output = directory() / "output";
    REQUIRE(test::run_child(child) == 0);
    return bytes = test::get_bytes(file);
}

void check(const TrainingRun& run) {
    INFO(run.net << ", " << run.backend << ", " << run.ranks << " ranks, " << run.rows << " rows, buckets "
                 << run.bucket_bytes << ", " << run.optimizer);
    CHECK((checkpoint_of(run) == expected(run)));  // in parentheses: files are not printed
}

}  // namespace

// The full product, one option after the other, is hidden: it takes about 70 jobs.
TEST_CASE("ddp: the same checkpoint for every backend, number of ranks, bucket size and optimizer") {
    const std::vector<std::string> nets{"small", "normed", "cnn", "synced"}, backends{"shm", "gloo", "mpi"},
        optimizers{"sgd", "adam", "adamw", "rmsprop", "adagrad", "lion"};
    const std::vector<std::int64_t> rows{133, 148};  // last batches of 5 and of 20 rows
    const std::vector<int> ranks{1, 2, 3, 4, 8};
    const std::vector<std::size_t> buckets{std::size_t{1} << 20, 1000, 20000};  // the last ones begin within parameters
    for (const test::Combination& at :
         test::pairwise({nets.size(), backends.size(), ranks.size(), rows.size(), buckets.size(), optimizers.size()})) {
        const TrainingRun run{.net = nets[at[0]],
                              .backend = backends[at[1]],
                              .ranks = ranks[at[2]],
                              .rows = rows[at[3]],
                              .bucket_bytes = buckets[at[4]],
                              .optimizer = optimizers[at[5]]};
        if (built_in(run.backend)) {
            check(run);
        } else {
            std::printf("skipped: %s was not built in\n", run.backend.c_str());
        }
    }
}

TEST_CASE("ddp over shared memory: the same checkpoint for all networks, rows and numbers of ranks", "[.full]") {
    for (const char* net : {"small", "normed", "cnn"})
        for (const std::int64_t rows : {404, 389})
            for (const int ranks : {1, 2, 3, 4, 8}) check({.net = net, .ranks = ranks, .rows = rows});
}

TEST_CASE("ddp over several hosts: the same checkpoint for any placement of ranks") {
    if (!built_in("gloo")) {
        std::printf("skipped: gloo was not built in\n");
        return;
    }
    check({.net = "normed", .ranks = 4, .rows = 389, .host = "RANK / 2"});
    check({.net = "cnn", .ranks = 4, .host = "RANK / 3"});
    check({.net = "small", .ranks = 4, .host = "(RANK + 1) / 2"});
    check({.net = "normed", .ranks = 4, .host = "RANK % 2"});
    check({.net = "normed", .ranks = 3, .host = "RANK / 2"});
    check({.net = "synced", .ranks = 8, .rows = 389, .host = "RANK / 2"});
    check({.net = "small", .ranks = 8, .bucket_bytes = 20000, .host = "RANK / 5"});
    check({.net = "small", .ranks = 7, .shards = 5, .host = "RANK / 3"});
    check({.net = "small", .backend = "gloo", .ranks = 4, .host = "RANK / 2"});
}

TEST_CASE("ddp: synchronised batch normalisation is bit-identical to one device", "[.full]") {
    for (const int ranks : {2, 3, 8}) check({.net = "synced", .ranks = ranks, .rows = 389});
}

TEST_CASE("ddp: buckets and timing change no bit") {
    for (const std::size_t bucket : {1000, 20000}) check({.net = "normed", .ranks = 3, .bucket_bytes = bucket});
    check({.net = "normed", .ranks = 3, .bucket_bytes = 20000, .delay_us = 300});
}

TEST_CASE("ddp: fewer shards than ranks") {
    check({.ranks = 3, .shards = 2});
    check({.net = "normed", .ranks = 4, .rows = 389, .shards = 3});
}

TEST_CASE("ddp over gloo and mpi: the same checkpoint", "[.full]") {
    for (const char* backend : {"gloo", "mpi"}) {
        if (!built_in(backend)) {
            std::printf("skipped: %s was not built in\n", backend);
            continue;
        }
        for (const int ranks : {2, 3, 8}) check({.net = "small", .backend = backend, .ranks = ranks, .rows = 389});
        check({.net = "normed", .backend = backend, .ranks = 4, .rows = 404});
        check({.net = "normed", .backend = backend, .ranks = 8, .rows = 389});
        check({.net = "cnn", .backend = backend, .ranks = 2, .rows = 389});
        check({.net = "cnn", .backend = backend, .ranks = 3, .rows = 404});
        check({.net = "small", .backend = backend, .ranks = 1});
    }
}

TEST_CASE("ddp: every optimizer is bit-identical to one device", "[.full]") {
    for (const char* optimizer : {"adam", "rmsprop", "adagrad", "lamb", "lion"})
        for (const int ranks : {2, 4}) check({.ranks = ranks, .optimizer = optimizer});
    for (const char* backend : {"shm", "gloo", "mpi"}) {
        if (!built_in(backend)) {
            std::printf("skipped: %s was not built in\n", backend);
            continue;
        }
        for (const int ranks : {3, 8})  // buckets that begin within parameters
            check({.backend = backend, .ranks = ranks, .rows = 133, .bucket_bytes = 20000, .optimizer = "adamw"});
        if (backend != std::string("shm")) check({.backend = backend, .ranks = 2, .optimizer = "lion"});
    }
}

TEST_CASE("ddp: another number of shards changes the bits, so the comparison can fail") {
    const std::string eight = expected({});
    CHECK_FALSE((checkpoint_of({.shards = 7}) == eight));
}
