// mpi-rank TRIAL FOLDER: one rank of test_mpi, started by mpirun.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/tests/parallel/comm/mpi_job.h"
#include "lockstep/tests/parallel/comm/transport_exercise.h"
#include "lockstep/tests/parallel/comm/transport_trials.h"

using namespace lockstep;
using namespace lockstep::test;
using std::chrono::milliseconds;

namespace {

void append(Lines& to, const Lines& more) { to.insert(to.end(), more.begin(), more.end()); }

Lines exercise(const Job& job) {
    const auto transport = job.all();
    Lines wrong = exercise_transport(*transport, job.rank, job.size);
    append(wrong, other_bits(*transport, job.rank));
    if (job.size < 3) return wrong;
    if (job.rank > 0) {  // a part of the job, in another order, in addition to the whole
        std::vector<int> members;
        for (int r = job.size - 1; r > 0; --r) members.push_back(r);
        const auto part = job.group("part", members);
        append(wrong, exercise_transport(*part, job.size - 1 - job.rank, job.size - 1));
    }
    transport->barrier(far_off());
    return wrong;
}

Lines messages(const Job& job) {
    const auto transport = job.all();
    std::vector<unsigned char> data(1 << 20, 7), got(data.size());
    const int other = job.rank ^ 1;
    for (const std::size_t bytes : {std::size_t{100}, data.size()}) {  // cancelled messages do not match later ones
        transport->receive(data.data(), bytes, other, 1);
        transport->receive(data.data(), bytes, Transport::any_source, 1);
        transport->barrier(far_off());
        const auto sent = transport->send(data.data(), bytes, other, 1);
        finish(*transport->receive(got.data(), bytes, other, 1));
        finish(*sent);
    }
    if (got != data) return {"other bytes"};
    transport->barrier(far_off());
    if (job.rank == 1) {
        finish(*transport->send(data.data(), 100, 0, 1));
        return {};
    }
    const std::size_t expected = job.rank == 0 ? 200 : 0;
    const std::string error = error_of([&] { finish(*transport->receive(got.data(), expected, 1, 1)); });
    const Lines wrong = unless(error, "rank 1 sent 100 bytes; expected 200");
    if (!wrong.empty()) return wrong;
    const std::string later = error_of([&] { transport->barrier(far_off()); });
    return unless(later, error);
}

/// Rank 1 stops or leaves, while the others wait for it.
Lines without_rank_1(const Job& job, const std::filesystem::path& folder, bool stop) {
    auto transport = job.all();
    transport->barrier(far_off());
    if (job.rank == 1 && stop) ::kill(::getpid(), SIGSTOP);
    if (job.rank == 1) {
        transport.reset();
        wait_for_ends(folder, job.size - 1);
        return {};
    }
    std::vector<float> data(1 << 16);
    const std::string error =
        error_of([&] { transport->all_reduce(data.data(), data.size(), DType::f32, ReduceOp::sum, in(1000)); });
    transport.reset();
    return unless(error, "deadline");
}

Lines aborted(const Job& job) {
    auto transport = job.all();
    std::thread other([&] {
        std::this_thread::sleep_for(milliseconds(100));
        transport->abort("had enough");
    });
    const std::string error = error_of([&] {
        for (;;) transport->broadcast(nullptr, 0, 0, far_off()), transport->barrier(far_off());
    });
    other.join();
    return unless(error, "had enough");
}

Lines killed(const Job& job) {
    const auto transport = job.all();
    transport->barrier(far_off());
    if (job.rank == 1) ::kill(::getpid(), SIGKILL);
    for (;;) transport->barrier(far_off());
}

Lines run(const std::string& trial, const std::filesystem::path& folder, const Job& job) {
    if (trial == "exercise") return exercise(job);
    if (trial == "messages") return messages(job);
    if (trial == "stop") return without_rank_1(job, folder, true);
    if (trial == "leave") return without_rank_1(job, folder, false);
    if (trial == "abort") return aborted(job);
    if (trial == "kill") return killed(job);
    return {"trial not found"};
}

}  // namespace

int main(int argc, char** argv) { return run_rank(argc, argv, run); }
