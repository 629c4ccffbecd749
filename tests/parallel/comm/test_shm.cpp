// The backend in shared memory: every operation on 2 to 8 ranks, and the errors on the other ranks when one of them
// dies, stops, leaves or gives up.
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
#include "lockstep/parallel/comm/store.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/fixtures/waiting.h"
#include "lockstep/tests/parallel/comm/transport_exercise.h"

using namespace lockstep;
using namespace lockstep::test;
using std::chrono::milliseconds;
using Lines = std::vector<std::string>;

namespace {

constexpr int victim = 1;
constexpr std::size_t unit = 300'000;  ///< floats: more than the slots hold, so that no rank can run ahead

/// Shared counters of the ranks and the test, independent of the transport.
struct Told {
    std::atomic<int> steps[8];           ///< calls that have returned
    std::atomic<std::int64_t> begun[8];  ///< time at which the last call began, in ns of a clock that all share
    std::atomic<int> ended;              ///< ranks that have finished
    std::atomic<bool> late;              ///< some call began so late that a rank had waited for half of its limit
};
using Board = Shared<Told>;

/// Forwards to another store and lets a test change the values that are written and read.
class FaultyStore final : public Store {
public:
    explicit FaultyStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
    std::function<std::string(std::string)> written = [](std::string value) { return value; };
    std::function<std::string(std::string)> read = [](std::string value) { return value; };

    void set(std::string_view key, std::string_view value) override { store_->set(key, written(std::string(value))); }
    std::string get(std::string_view key, Milliseconds timeout) override { return read(store_->get(key, timeout)); }
    std::optional<std::string> try_get(std::string_view key) override {
        auto value = store_->try_get(key);
        if (value) value = read(*value);
        return value;
    }
    std::int64_t add(std::string_view key, std::int64_t amount) override { return store_->add(key, amount); }
    std::string compare_set(std::string_view key, std::string_view expected, std::string_view desired) override {
        return store_->compare_set(key, expected, desired);
    }
    bool remove(std::string_view key) override { return store_->remove(key); }
    std::int64_t count() override { return store_->count(); }
    std::unique_ptr<Store> clone(Milliseconds timeout) override { return store_->clone(timeout); }
    Milliseconds time_limit() const override { return store_->time_limit(); }
    std::string describe() const override { return store_->describe(); }

private:
    std::shared_ptr<Store> store_;
};

void wait_until(const std::function<bool()>& there) {
    if (!test::comes_true(there)) throw std::runtime_error("the test waited for minutes");
}

/// A folder for the rendezvous of `size` ranks.
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

/// One call of each kind that no rank can complete without the others, selected by number.
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

/// Empty, or the reason why `text` is not the expected error.
Lines judge(const std::string& text, const std::string& wanted) {
    return contains(text, wanted) ? Lines() : Lines{"'" + text + "' does not say '" + wanted + "'"};
}

/// Makes calls of a kind until an error occurs, at most `most` of them; returns the error.
std::string call_until_error(Transport& transport, const Board& board, int rank, int kind, milliseconds deadline,
                             int most = 1'000'000) {
    Calls calls(3);
    return message_of<TransportError>([&] {
        for (int i = 0; i < most; ++i) {
            board->begun[rank] = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
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
        if (transport->backend() != "shm") failures.emplace_back("the backend has another name");
        for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
            std::error_code gone;
            if (contains(std::filesystem::read_symlink(entry.path(), gone).string(), "memfd"))
                failures.emplace_back("a file of shared memory is still open");
        }
        return failures;
    });
    CHECK(joined(ranks.finish()) == "");
}

TEST_CASE("shm: floats are added in rank order, with the same bits on all ranks") {
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

TEST_CASE("shm: if a rank is killed, all others fail at once in any operation") {
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
    std::this_thread::sleep_for(milliseconds(30));  // the others sleep in the next call
    ranks.signal(victim, SIGKILL);
    auto failures = ranks.finish();
    CHECK(failures[victim] == Lines{"ended by signal 9"});
    failures[victim].clear();
    CHECK(joined(failures) == "");
}

TEST_CASE("shm: a rank killed at any moment is a clean error on the others") {
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

TEST_CASE("shm: a stopped rank is named at the deadline and gets an error when it continues") {
    const int kind = GENERATE(range(0, Calls::kinds - 1));  // messages have no deadline in this case
    INFO("call " << kind);
    const Meeting meeting;
    std::string wrong;
    bool late = true;
    // If a rank was late, this machine was too busy for the limit, and the trial shows nothing.
    for (milliseconds limit(1000); late && limit < no_limit; limit *= 4) {
        const Board board;
        ForkedRanks ranks(meeting.size, [&](int rank) -> Lines {
            const auto transport = meeting.join(rank);
            const std::string text = call_until_error(*transport, board, rank, kind, limit);
            for (int other = 0; other < meeting.size; ++other)
                if (other != victim && std::chrono::nanoseconds(board->begun[other] - board->begun[rank]) > limit / 2)
                    board->late = true;
            ++board->ended;
            return judge(text, "the deadline has passed: rank 1 has");
        });
        wait_until([&] { return board->steps[victim] >= 3; });
        ranks.signal(victim, SIGSTOP);
        wait_until([&] { return board->ended == meeting.size - 1; });
        ranks.signal(victim, SIGCONT);
        wrong = joined(ranks.finish());
        late = board->late;
    }
    CHECK(wrong == "");
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
                transport->abort("a user pressed a key");
                transport->abort("too late");
            });
        if (rank == 2) wait_until([&] { return board->ended == 2; });
        const std::string text = message_of<TransportError>([&] { transport->barrier(RunClock::now() + no_limit); });
        ++board->ended;
        if (other.joinable()) other.join();
        Lines lines = judge(text, "a user pressed a key");
        const std::string again =
            message_of<TransportError>([&] { (void)transport->send(nullptr, 0, (rank + 1) % 3, 0); });
        if (again != "a user pressed a key") lines.push_back("afterwards: '" + again + "'");
        return lines;
    });
    CHECK(joined(ranks.finish()) == "");
}

TEST_CASE("shm: setup also ends in time") {
    Meeting meeting;
    meeting.timeout = milliseconds(3000);
    const Board board;
    const std::string how = GENERATE("absent", "killed", "stopped", "nonsense", "elsewhere");
    INFO(how);
    ForkedRanks ranks(meeting.size, [&](int rank) -> Lines {
        const auto store = std::make_shared<FaultyStore>(meeting.store());
        if (rank == victim && how == "absent") pause();
        if (rank != victim) {
            ++board->steps[rank];
            wait_until([&] { return board->steps[0] > 0 && board->steps[2] > 0; });
        }
        if (rank == victim && (how == "killed" || how == "stopped"))
            store->read = [&](std::string value) {  // it has published its identity, and stops there
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

TEST_CASE("shm: messages of the wrong size, abandoned messages and unreceived messages") {
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
                if (RunClock::now() > deadline) throw std::runtime_error("a message was not completed in time");
        };
        if (rank == 0) {
            auto given_up = transport->send(large.data(), large.size(), 1, 5);
            given_up.reset();  // in the middle: the ring contains a part of it
            transport->send(large.data(), large.size(), 1, 5).reset();
            const auto sent = transport->send(other.data(), other.size(), 1, 5);
            transport->barrier(soon());
            finish(*sent);
            finish(*transport->send(large.data(), large.size(), 1, 4));
            transport->barrier(soon());
            finish(*transport->send(other.data(), 8, 1, 6));
            auto after = transport->receive(got.data(), 1, 1, 7);
            transport.reset();
            if (message_of<TransportError>([&] { after->advance(); }).empty())
                lines.emplace_back("neither a group nor an error");
        } else {
            transport->barrier(soon());  // until then nothing is read from the ring
            const auto first = transport->receive(got.data(), got.size(), 0, 5);
            finish(*first);
            if (got != other) lines.emplace_back("an abandoned message was received");
            std::vector<char> unwanted(large.size());
            transport->receive(unwanted.data(), unwanted.size(), 0, 4)->advance();  // cancelled on this side
            const auto never = transport->receive(nullptr, 0, 0, 99);
            transport->meanwhile = [&] { never->advance(); };
            transport->barrier(soon());
            transport->meanwhile = nullptr;
            std::this_thread::sleep_for(milliseconds(50));  // the other rank has left; its message can still be
                                                            // received
            const std::string text =
                message_of<TransportError>([&] { finish(*transport->receive(got.data(), 4, 0, 6)); });
            if (!contains(text, "rank 0 sent 8 bytes with tag 6; expected 4")) lines.push_back(text);
        }
        return lines;
    });
    CHECK(joined(ranks.finish()) == "");
}
