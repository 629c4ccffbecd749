// The backend in shared memory: every operation on 2 to 8 ranks, and what the others are told when one of them dies,
// stops, leaves or gives up.
#include <atomic>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/parallel/comm/altered_store.h"
#include "lockstep/tests/parallel/comm/forked_ranks.h"
#include "lockstep/tests/parallel/comm/transport_exercise.h"
#include "lockstep/tests/parallel/file_fixture.h"
#include "lockstep/tests/patience.h"
#include "lockstep/tests/runtime/gate.h"

using namespace lockstep;
using namespace lockstep::testing;
using std::chrono::milliseconds;
using Lines = std::vector<std::string>;

namespace {

constexpr int victim = 1;
constexpr std::size_t unit = 300'000;  ///< floats: more than the slots hold, so that nobody can run ahead

/// What the ranks and the test tell each other, besides the transport.
struct Told {
    std::atomic<int> steps[8];  ///< calls that have returned
    std::atomic<int> ended;     ///< ranks that are done
};
using Board = Shared<Told>;

void wait_until(const std::function<bool()>& there) {
    if (!test::comes_true(there)) throw std::runtime_error("the test has waited for minutes");
}

/// A place where `size` ranks meet.
struct Meeting {
    test::TemporaryDirectory folder;
    int size = 3;
    milliseconds timeout = no_limit;

    std::shared_ptr<Store> store() const { return std::make_shared<FileStore>(folder / "store"); }
    std::unique_ptr<Transport> join(int rank, std::shared_ptr<Store> store) const {
        return shm_backend().make(
            {.rank = rank, .size = size, .store = std::move(store), .timeout = timeout, .global_ranks = {}});
    }
    std::unique_ptr<Transport> join(int rank) const { return join(rank, store()); }
};

/// One call of each kind, that no rank can leave without the others; by its number.
struct Calls {
    explicit Calls(int size) : parts(static_cast<std::size_t>(size), unit), a(unit * parts.size()), b(a) {
        for (const std::size_t part : parts) bytes.push_back(part * sizeof(float));
    }
    static constexpr int kinds = 10;
    std::vector<std::size_t> parts, bytes;
    std::vector<float> a, b;

    void make(Transport& t, int rank, int kind, Deadline deadline) {
        const std::size_t all = unit * sizeof(float);
        switch (kind) {
            case 0: return t.barrier(deadline);
            case 1: return t.broadcast(a.data(), all, 0, deadline);
            case 2: return t.all_gather(a.data(), b.data(), bytes, deadline);
            case 3: return t.gather(a.data(), b.data(), bytes, 0, deadline);
            case 4: return t.scatter(a.data(), b.data(), bytes, 0, deadline);
            case 5: return t.all_to_all(a.data(), bytes, b.data(), bytes, deadline);
            case 6: return t.all_reduce(a.data(), unit, DType::f32, ReduceOp::max, deadline);
            case 7: return t.reduce(a.data(), unit, DType::f32, ReduceOp::max, 0, deadline);
            case 8: return t.reduce_scatter(a.data(), b.data(), parts, DType::f32, ReduceOp::max, deadline);
            default: return ring(t, rank);
        }
    }

private:
    void ring(Transport& t, int rank) {
        const int size = static_cast<int>(parts.size());
        const auto sent = t.send(a.data(), unit, (rank + 1) % size, 1);
        const auto received = t.receive(b.data(), unit, (rank + size - 1) % size, 1);
        while (!received->advance() || !sent->advance()) std::this_thread::yield();
    }
};

/// Empty, or why `text` is not the error that was wanted.
Lines judge(const std::string& text, const std::string& wanted) {
    return contains(text, wanted) ? Lines() : Lines{"'" + text + "' does not say '" + wanted + "'"};
}

/// Makes calls of a kind until an error comes, at most `most` of them; what it says.
std::string call_until_error(Transport& transport, const Board& board, int rank, int kind, milliseconds deadline,
                             int most = 1'000'000) {
    Calls calls(3);
    return message_of<TransportError>([&] {
        for (int i = 0; i < most; ++i) {
            calls.make(transport, rank, kind, RunClock::now() + deadline);
            ++board->steps[rank];
        }
    });
}

/// Files of /dev/shm that this process has mapped: segments have no names there.
Lines named_segments() {
    Lines lines;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);)
        if (contains(line, "/dev/shm/")) lines.push_back("mapped: " + line);
    return lines;
}

}  // namespace

TEST_CASE("shm: every operation, from 2 to 8 ranks") {
    Meeting meeting;
    meeting.size = GENERATE(2, 3, 4, 5, 8);
    INFO(meeting.size << " ranks");
    ForkedRanks ranks(meeting.size, [&](int rank) {
        const auto transport = meeting.join(rank);
        Lines failures = exercise_transport(*transport, rank, meeting.size);
        for (const std::string& line : named_segments()) failures.push_back(line);
        if (transport->backend() != "shm") failures.emplace_back("goes by another name");
        for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
            std::error_code gone;
            if (contains(std::filesystem::read_symlink(entry.path(), gone).string(), "memfd"))
                failures.emplace_back("a file of shared memory is still open");
        }
        return failures;
    });
    CHECK(joined(ranks.finish()) == "");
}

TEST_CASE("shm: floats are added in the order of ranks, with the same bits everywhere") {
    Meeting meeting;
    meeting.size = GENERATE(2, 3, 4);
    ForkedRanks ranks(meeting.size, [&](int rank) {
        const auto transport = meeting.join(rank);
        Lines failures;
        for (const std::size_t count : {std::size_t{7}, std::size_t{100'000}}) {
            std::vector<float> own(count), expected(count, 0.0F);
            for (int r = 0; r < meeting.size; ++r) {
                std::mt19937 random(static_cast<unsigned>(r));
                for (std::size_t i = 0; i < count; ++i) {
                    const float value = static_cast<float>(random()) * 1e-7F - 200.0F;
                    if (r == rank) own[i] = value;
                    expected[i] = r == 0 ? value : expected[i] + value;
                }
            }
            transport->all_reduce(own.data(), count, DType::f32, ReduceOp::sum, RunClock::now() + no_limit);
            if (own != expected) failures.push_back("sums of " + std::to_string(count) + " differ");
        }
        return failures;
    });
    CHECK(joined(ranks.finish()) == "");
}

TEST_CASE("shm: all are told at once that a rank was killed, whatever they wait in") {
    const int kind = GENERATE(range(0, Calls::kinds));
    INFO("call " << kind);
    const Meeting meeting;
    const Board board;
    ForkedRanks ranks(meeting.size, [&](int rank) -> Lines {
        const auto transport = meeting.join(rank);
        if (rank == victim) {
            call_until_error(*transport, board, rank, kind, no_limit, 3);
            pause();
        }
        const std::string text = call_until_error(*transport, board, rank, kind, no_limit);
        Lines lines = judge(text, "rank 1 has died");
        const std::string again = message_of<TransportError>([&] { transport->barrier(RunClock::now()); });
        if (!contains(again, "rank 1 has died")) lines.push_back("afterwards: '" + again + "'");
        return lines;
    });
    wait_until([&] { return board->steps[victim] >= 3; });
    std::this_thread::sleep_for(milliseconds(30));  // the others are asleep in the next call
    ranks.signal(victim, SIGKILL);
    auto failures = ranks.finish();
    CHECK(failures[victim] == Lines{"ended by signal 9"});
    failures[victim].clear();
    CHECK(joined(failures) == "");
}

TEST_CASE("shm: a rank killed at any moment is a clean error for the others") {
    std::mt19937 random(11);
    for (int trial = 0; trial < 20; ++trial) {
        const int kind = trial % Calls::kinds;
        INFO("call " << kind);
        const Meeting meeting;
        const Board board;
        ForkedRanks ranks(meeting.size, [&](int rank) -> Lines {
            std::string text = "no error";
            try {
                const auto transport = meeting.join(rank);
                ++board->steps[rank];
                text = call_until_error(*transport, board, rank, kind, no_limit);
            } catch (const TransportError& error) {
                text = error.what();
            }
            return judge(text, "rank 1 ");
        });
        wait_until([&] { return board->steps[victim] >= 1; });
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
        ranks.signal(victim, SIGKILL);
        auto failures = ranks.finish();
        failures[victim].clear();
        CHECK(joined(failures) == "");
    }
}

TEST_CASE("shm: a stopped rank is named when the deadline has passed, and told when it goes on") {
    const int kind = GENERATE(range(0, Calls::kinds - 1));  // messages have no deadline here
    INFO("call " << kind);
    const Meeting meeting;
    const Board board;
    ForkedRanks ranks(meeting.size, [&](int rank) -> Lines {
        const auto transport = meeting.join(rank);
        const std::string text = call_until_error(*transport, board, rank, kind, milliseconds(3000));
        ++board->ended;
        Lines lines = judge(text, "the deadline has passed: rank 1 has");
        return lines;
    });
    wait_until([&] { return board->steps[victim] >= 3; });
    ranks.signal(victim, SIGSTOP);
    wait_until([&] { return board->ended == meeting.size - 1; });
    ranks.signal(victim, SIGCONT);
    CHECK(joined(ranks.finish()) == "");
}

TEST_CASE("shm: a rank that ends or leaves early is named") {
    const bool leaves = GENERATE(true, false);
    const int kind = GENERATE(range(0, Calls::kinds));
    INFO("call " << kind);
    const Meeting meeting;
    const Board board;
    ForkedRanks ranks(meeting.size, [&](int rank) -> Lines {
        auto transport = meeting.join(rank);
        if (rank == victim) {
            call_until_error(*transport, board, rank, kind, no_limit, 3);
            if (!leaves) {
                transport.release();  // and the process exits with 0
                return {};
            }
            transport.reset();
            wait_until([&] { return board->ended == meeting.size - 1; });
            return {};
        }
        const std::string text = call_until_error(*transport, board, rank, kind, no_limit);
        ++board->ended;
        return judge(text, leaves ? "rank 1 has left the group" : "rank 1 has died");
    });
    CHECK(joined(ranks.finish()) == "");
}

TEST_CASE("shm: abort ends the calls of all ranks with its reason") {
    const Meeting meeting;
    const Board board;
    ForkedRanks ranks(meeting.size, [&](int rank) -> Lines {
        const auto transport = meeting.join(rank);
        std::thread other;
        if (rank == 0)
            other = std::thread([&] {
                std::this_thread::sleep_for(milliseconds(50));
                transport->abort("somebody pressed a key");
                transport->abort("too late");
            });
        if (rank == 2) wait_until([&] { return board->ended == 2; });
        const std::string text = message_of<TransportError>([&] { transport->barrier(RunClock::now() + no_limit); });
        ++board->ended;
        if (other.joinable()) other.join();
        Lines lines = judge(text, "somebody pressed a key");
        const std::string again =
            message_of<TransportError>([&] { (void)transport->send(nullptr, 0, (rank + 1) % 3, 0); });
        if (again != "somebody pressed a key") lines.push_back("afterwards: '" + again + "'");
        return lines;
    });
    CHECK(joined(ranks.finish()) == "");
}

TEST_CASE("shm: setting up ends in time, too") {
    Meeting meeting;
    meeting.timeout = milliseconds(3000);
    const Board board;
    const std::string how = GENERATE("absent", "killed", "stopped", "nonsense", "elsewhere");
    INFO(how);
    ForkedRanks ranks(meeting.size, [&](int rank) -> Lines {
        const auto store = std::make_shared<AlteredStore>(meeting.store());
        if (rank == victim && how == "absent") pause();
        if (rank == victim && (how == "killed" || how == "stopped"))
            store->read = [&](std::string value) {  // it has said who it is, and gets no further
                ++board->steps[victim];
                pause();
                return value;
            };
        if (rank == victim && how == "nonsense") store->written = [](const std::string&) { return "hello"; };
        if (rank == victim && how == "elsewhere") {
            store->written = [](std::string value) { return "x" + value; };
            store->read = store->written;
        }
        const std::string text = message_of<TransportError>([&] { meeting.join(rank, store); });
        if (how == "nonsense" && rank == victim) return {};
        const std::string wanted = how == "absent"     ? "rank 1 has not arrived within 3000 ms"
                                   : how == "killed"   ? "rank 1 has died"
                                   : how == "stopped"  ? "the deadline has passed: rank 1 has not arrived"
                                   : how == "nonsense" ? "same program"
                                   : rank == victim    ? "ranks 0, 2 cannot share memory with this rank"
                                                       : "rank 1 cannot share memory with this rank";
        return judge(text, wanted);
    });
    if (how == "killed" || how == "stopped") wait_until([&] { return board->steps[victim] > 0; });
    if (how == "killed") ranks.signal(victim, SIGKILL);
    if (how == "absent" || how == "stopped") {
        ranks.let_others_end({victim});
        ranks.signal(victim, SIGKILL);
    }
    auto failures = ranks.finish();
    if (how == "absent" || how == "killed" || how == "stopped") failures[victim].clear();
    CHECK(joined(failures) == "");
}

TEST_CASE("shm: messages of another size, given up, and left behind") {
    Meeting meeting;
    meeting.size = 2;
    ForkedRanks ranks(meeting.size, [&](int rank) -> Lines {
        Lines lines;
        auto transport = meeting.join(rank);
        const auto soon = [] { return RunClock::now() + no_limit; };
        std::vector<char> large(1'000'000, 'a'), other(1'000'000, 'b'), got(1'000'000);
        const auto finish = [&](Message& message) {
            const auto deadline = soon();
            while (!message.advance())
                if (RunClock::now() > deadline) throw std::runtime_error("a message is not done in time");
        };
        if (rank == 0) {
            auto given_up = transport->send(large.data(), large.size(), 1, 5);
            given_up.reset();  // in the middle: the ring holds a part of it
            transport->send(large.data(), large.size(), 1, 5).reset();
            const auto sent = transport->send(other.data(), other.size(), 1, 5);
            transport->barrier(soon());
            finish(*sent);
            finish(*transport->send(large.data(), large.size(), 1, 4));
            transport->barrier(soon());
            finish(*transport->send(other.data(), 8, 1, 6));
            auto after = transport->receive(got.data(), 1, 1, 7);
            transport.reset();
            if (message_of<TransportError>([&] { after->advance(); }).empty()) lines.emplace_back("no group, no error");
        } else {
            transport->barrier(soon());  // until then nothing is taken out of the ring
            const auto first = transport->receive(got.data(), got.size(), 0, 5);
            finish(*first);
            if (got != other) lines.emplace_back("got what had been given up");
            std::vector<char> unwanted(large.size());
            transport->receive(unwanted.data(), unwanted.size(), 0, 4)->advance();  // given up on this side
            const auto never = transport->receive(nullptr, 0, 0, 99);
            transport->meanwhile = [&] { never->advance(); };
            transport->barrier(soon());
            transport->meanwhile = nullptr;
            std::this_thread::sleep_for(milliseconds(50));  // the other one has left; what it sent is still there
            const std::string text =
                message_of<TransportError>([&] { finish(*transport->receive(got.data(), 4, 0, 6)); });
            if (!contains(text, "rank 0 sent 8 bytes with tag 6; expected 4")) lines.push_back(text);
        }
        return lines;
    });
    CHECK(joined(ranks.finish()) == "");
}
