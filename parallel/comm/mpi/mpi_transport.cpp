// Process groups by MPI. Nothing blocks: non-blocking operations are polled until their deadlines. Barrier, broadcast
// and small all-reduces are MPI's. The others are made of its messages, which have no limit of 2 GiB. So are large
// all-reduces, which are as fast as Open MPI's MPI_Allreduce, while its MPI_Iallreduce takes nearly twice as long.
//
// If a rank ends without MPI_Finalize, mpirun ends the whole job, and the reaction of the others no longer matters.
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>

#include "lockstep/parallel/comm/group/host_identity.h"
#include "lockstep/parallel/comm/group/message_collectives.h"
#include "lockstep/parallel/comm/group/optional_backends.h"
#include "lockstep/parallel/comm/mpi/mpi_operations.h"
#include "lockstep/parallel/comm/mpi/mpi_world.h"
#include "lockstep/parallel/comm/store/deadline.h"
#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

namespace {

constexpr std::size_t longest_call = std::size_t{1} << 30;    ///< bytes per call
constexpr std::size_t largest_whole = std::size_t{64} << 10;  ///< see all_reduce
constexpr std::chrono::seconds time_for_destructors{1};

/// Whether the transport still works; messages that outlive it check it as well.
class Condition {
public:
    void end(const std::string& reason) noexcept {
        const std::lock_guard lock(mutex_);
        if (ended_) return;
        reason_ = reason;
        ended_ = true;
    }
    bool ended() const { return ended_ || MpiWorld::given_up(); }
    std::string reason() {
        const std::lock_guard lock(mutex_);
        return ended_ ? reason_ : "an operation of another group has failed, and MPI with it";
    }
    void require() {
        if (ended()) throw TransportError(reason());
    }

private:
    std::atomic<bool> ended_{false};
    std::mutex mutex_;
    std::string reason_;
};

class MpiMessage final : public Message {
public:
    MpiMessage(MpiWorld& world, std::shared_ptr<Condition> health, int from, std::size_t bytes)
        : world_(world), health_(std::move(health)), from_(from), bytes_(bytes) {}
    ~MpiMessage() override {
        if (request_ == MPI_REQUEST_NULL || MpiWorld::given_up()) return;
        const auto alone = [this](auto call) {  // other threads advance their messages between calls
            const auto lock = world_.lock();
            return call();
        };
        if (from_ != sent) alone([&] { return MPI_Cancel(&request_); });
        const Deadline deadline = RunClock::now() + time_for_destructors;
        int done = 0;
        for (Backoff backoff(0); done == 0; backoff.pause()) {
            if (alone([&] { return MPI_Test(&request_, &done, MPI_STATUS_IGNORE); }) != MPI_SUCCESS) return;
            if (done == 0 && RunClock::now() > deadline) {
                health_->end("a message was aborted before it was complete");
                MpiWorld::give_up();
                return;
            }
        }
    }

    static constexpr int sent = -2;  ///< in place of `from`
    MPI_Request* request() { return &request_; }

    bool advance() override {
        if (done_) return true;
        health_->require();
        try {
            const auto lock = world_.lock();
            MPI_Status status{};
            int done = 0;
            require_mpi(require_room(MPI_Test(&request_, &done, &status)), "MPI_Test");
            if (done != 0 && from_ != sent) require_size(status);
            if (done != 0 && from_ != sent) from_ = status.MPI_SOURCE;
            return done_ = done != 0;
        } catch (const TransportError& error) {
            health_->end(error.what());
            MpiWorld::give_up();
            throw;
        }
    }
    int source() const override { return from_; }

private:
    int require_room(int status) const {
        int kind = MPI_SUCCESS;
        if (status != MPI_SUCCESS) MPI_Error_class(status, &kind);
        if (kind == MPI_ERR_TRUNCATE)
            throw TransportError(fmt::format("a message has more bytes than the {} expected", bytes_));
        return status;
    }
    void require_size(const MPI_Status& status) const {
        MPI_Count got = 0;
        require_mpi(MPI_Get_elements_x(&status, MPI_BYTE, &got), "MPI_Get_elements_x");
        if (static_cast<std::size_t>(got) != bytes_)
            throw TransportError(fmt::format("rank {} sent {} bytes; expected {}", status.MPI_SOURCE, got, bytes_));
    }

    MpiWorld& world_;
    std::shared_ptr<Condition> health_;
    MPI_Request request_ = MPI_REQUEST_NULL;
    int from_;
    std::size_t bytes_;
    bool done_ = false;
};

/// Number of immediate polls of MPI: about a millisecond's worth if every rank of this host has its own core.
int spins_of(const GroupInfo& info) {
    const char* local = std::getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    const int ranks = local != nullptr ? std::atoi(local) : info.size;
    return ranks <= static_cast<int>(std::thread::hardware_concurrency()) ? 10000 : 0;
}

class MpiTransport final : public MessageCollectives {
public:
    explicit MpiTransport(const GroupInfo& info)
        : MessageCollectives(info.rank, info.size, spins_of(info), info.verdict), world_(MpiWorld::get(info)) {
        meet(info);
        make_communicators(info);
    }
    ~MpiTransport() override {
        health_->end("the transport was destroyed");
        if (MpiWorld::given_up()) return;
        const auto lock = world_.lock();  // MPI_Comm_free waits for no rank: no operation is in flight
        int finalized = 0;
        MPI_Finalized(&finalized);
        for (MPI_Comm& one : communicators_)
            if (finalized == 0 && one != MPI_COMM_NULL) MPI_Comm_free(&one);
    }

    std::string_view backend() const override { return "mpi"; }
    bool takes_gpu_memory() const override { return world_.cuda_aware(); }
    bool may_call_cuda() const override { return world_.may_call_cuda(); }

    std::unique_ptr<Message> send(const void* data, std::size_t bytes, int to, std::uint32_t tag) override {
        return begin_send(data, bytes, to, communicators_[tag >> 31], tag);
    }
    std::unique_ptr<Message> receive(void* data, std::size_t bytes, int from, std::uint32_t tag) override {
        return begin_receive(data, bytes, from, communicators_[tag >> 31], tag);
    }
    int announced(std::uint32_t tag) override {
        int found = 0;
        MPI_Status status{};
        begin("MPI_Iprobe",
              [&] { return MPI_Iprobe(MPI_ANY_SOURCE, tag_of(tag), communicators_[tag >> 31], &found, &status); });
        return found != 0 ? status.MPI_SOURCE : any_source;
    }

    void barrier(Deadline deadline) override {
        perform("MPI_Ibarrier", deadline, [&](MPI_Request* request) { return MPI_Ibarrier(collectives(), request); });
    }
    void broadcast(void* data, std::size_t bytes, int root, Deadline deadline) override {
        for (std::size_t at = 0; at < bytes; at += longest_call) {
            const int count = static_cast<int>(std::min(longest_call, bytes - at));
            perform("MPI_Ibcast", deadline, [&](MPI_Request* request) {
                return MPI_Ibcast(static_cast<std::byte*>(data) + at, count, MPI_BYTE, root, collectives(), request);
            });
        }
    }
    void all_reduce(void* data, std::size_t count, DType dtype, ReduceOp op, Deadline deadline) override {
        if (count * size_of(dtype) > largest_whole)
            return MessageCollectives::all_reduce(data, count, dtype, op, deadline);
        if (count == 0) return;
        perform("MPI_Iallreduce", deadline, [&](MPI_Request* request) {
            return MPI_Iallreduce(MPI_IN_PLACE, data, static_cast<int>(count), mpi_type(dtype), mpi_op(dtype, op),
                                  collectives(), request);
        });
    }

    void abort(const std::string& reason) noexcept override {
        health_->end(reason);
        MpiWorld::skip_finalize();
    }

private:
    using Communicators = std::array<MPI_Comm, 3>;
    MPI_Comm collectives() const { return communicators_[2]; }

    /// Creating a communicator waits without a deadline, so this first waits until all ranks have arrived.
    void meet(const GroupInfo& info) {
        const Deadline deadline = deadline_in(info.timeout);
        const int expected = global_rank(info, info.rank);
        if (world_.rank() != expected)
            throw TransportError(
                fmt::format("this is rank {} of the job, but rank {} of MPI; expected the rank that mpirun assigns",
                            expected, world_.rank()));
        try {
            info.store->set(fmt::format("here/{}", info.rank), "1");
            for (int r = 0; r < info.size; ++r) entry_of(info, "here", r, deadline);
        } catch (const std::exception& error) {
            throw TransportError(fmt::format("not all ranks have arrived: {}", error.what()));
        }
    }
    static int global_rank(const GroupInfo& info, int rank) {
        return info.global_ranks.empty() ? rank : info.global_ranks[static_cast<std::size_t>(rank)];
    }

    /// Creating a communicator blocks inside of MPI until all of its ranks take part. If two ranks created two groups
    /// in two threads, in opposite orders, they would wait for each other or, as MPI cannot tell the calls of groups
    /// with the same ranks apart, get a mixture of both. So a process has one turn, and a group collects those of its
    /// ranks in the order of their numbers in MPI, which is the same for all groups.
    void make_communicators(const GroupInfo& info) {
        const Deadline deadline = deadline_in(info.timeout);
        std::vector<int> order(static_cast<std::size_t>(info.size));
        std::iota(order.begin(), order.end(), 0);
        std::sort(order.begin(), order.end(),
                  [&](int a, int b) { return global_rank(info, a) < global_rank(info, b); });
        const auto own = std::find(order.begin(), order.end(), info.rank);
        if (own != order.begin()) entry_of(info, "turn", *std::prev(own), deadline);
        const MpiWorld::Turn turn(world_, deadline);
        info.store->set(fmt::format("turn/{}", info.rank), "1");
        entry_of(info, "turn", order.back(), deadline);
        create(info, deadline);
    }

    /// With the turns of all ranks: each is about to make the same calls, and none waits for another thread.
    void create(const GroupInfo& info, Deadline deadline) {
        std::vector<int> ranks(static_cast<std::size_t>(info.size));
        for (int r = 0; r < info.size; ++r) ranks[static_cast<std::size_t>(r)] = global_rank(info, r);
        const auto lock = world_.lock();
        const auto made = std::make_shared<Communicators>();
        const auto make = [made, ranks] {
            MPI_Group all = MPI_GROUP_NULL, group = MPI_GROUP_NULL;
            require_mpi(MPI_Comm_group(MPI_COMM_WORLD, &all), "MPI_Comm_group");
            require_mpi(MPI_Group_incl(all, static_cast<int>(ranks.size()), ranks.data(), &group), "MPI_Group_incl");
            for (std::size_t i = 0; i < made->size(); ++i) {
                MPI_Comm& one = (*made)[i];
                require_mpi(MPI_Comm_create_group(MPI_COMM_WORLD, group, static_cast<int>(i), &one),
                            "MPI_Comm_create_group");
                require_mpi(MPI_Comm_set_errhandler(one, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
            }
            MPI_Group_free(&group);
            MPI_Group_free(&all);
        };
        if (!MpiThread::run(make, deadline)) {
            MpiWorld::give_up();
            throw TransportError(
                fmt::format("the ranks did not create a communicator within {} ms", info.timeout.count()));
        }
        communicators_ = *made;
        int known = 0;
        const int* highest = nullptr;
        require_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&highest), &known),
                    "MPI_Comm_get_attr");
        if (known != 0) highest_tag_ = *highest;
    }

    std::unique_ptr<Message> send_part(const void* data, std::size_t bytes, int to, std::uint32_t call) override {
        return begin_send(data, bytes, to, collectives(), part_tag(call));
    }
    std::unique_ptr<Message> receive_part(void* data, std::size_t bytes, int from, std::uint32_t call) override {
        return begin_receive(data, bytes, from, collectives(), part_tag(call));
    }
    std::unique_ptr<Message> begin_send(const void* data, std::size_t bytes, int to, MPI_Comm on, std::uint32_t tag) {
        auto message = std::make_unique<MpiMessage>(world_, health_, MpiMessage::sent, bytes);
        begin("MPI_Isend", [&] {
            const MpiBytes size(bytes);
            return MPI_Isend(data, size.count(), size.type(), to, tag_of(tag), on, message->request());
        });
        return message;
    }
    std::unique_ptr<Message> begin_receive(void* data, std::size_t bytes, int from, MPI_Comm on, std::uint32_t tag) {
        auto message = std::make_unique<MpiMessage>(world_, health_, from, bytes);
        begin("MPI_Irecv", [&] {
            const MpiBytes size(bytes);
            return MPI_Irecv(data, size.count(), size.type(), from == any_source ? MPI_ANY_SOURCE : from, tag_of(tag),
                             on, message->request());
        });
        return message;
    }
    static std::uint32_t part_tag(std::uint32_t call) { return call % 32768; }  // limit that every MPI supports
    int tag_of(std::uint32_t tag) const {
        const int lower = static_cast<int>(tag & 0x7fffffffu);
        if (lower > highest_tag_)
            throw TransportError(fmt::format("this MPI supports tags up to {}; {} is higher", highest_tag_, lower));
        return lower;
    }

    template <class Call>
    void begin(const char* name, Call&& call) {
        health_->require();
        call_mpi(name, call);
    }
    template <class Call>
    void call_mpi(const char* name, Call&& call) {
        try {
            const auto lock = world_.lock();
            require_mpi(call(), name);
        } catch (const TransportError& error) {
            fail(error.what());
        }
    }
    template <class Call>
    void perform(const char* name, Deadline deadline, Call&& call) {
        MPI_Request request = MPI_REQUEST_NULL;
        begin(name, [&] { return call(&request); });
        for (Backoff backoff(spins_);; backoff.pause()) {
            int done = 0;
            call_mpi("MPI_Test", [&] { return MPI_Test(&request, &done, MPI_STATUS_IGNORE); });
            if (done != 0) return;
            if (health_->ended()) fail(health_->reason());
            if (meanwhile) meanwhile();
            if (RunClock::now() >= deadline) fail(late("the other ranks"));
        }
    }
    [[noreturn]] void fail(const std::string& reason) override {
        health_->end(reason);  // no effect if a reason is already recorded
        MpiWorld::give_up();
        throw TransportError(health_->reason());
    }

    MpiWorld& world_;
    std::shared_ptr<Condition> health_ = std::make_shared<Condition>();
    int highest_tag_ = 32767;
    /// For messages with tags below 2^31 and above, which MPI's tags cannot tell apart, and for collectives.
    Communicators communicators_{MPI_COMM_NULL, MPI_COMM_NULL, MPI_COMM_NULL};
};

}  // namespace

void lockstep_mpi_backend(TransportBackend& backend) {
    backend.make = [](const GroupInfo& info) -> std::unique_ptr<Transport> {
        return std::make_unique<MpiTransport>(info);
    };
}

}  // namespace lockstep
