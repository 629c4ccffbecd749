// Ranks of the NCCL stand-in for its own tests: processes forked before any code uses the devices.
#pragma once

#include <nccl.h>
#include <sys/mman.h>

#include <atomic>
#include <source_location>
#include <thread>

#include "lockstep/tests/cuda_standin/fixture.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/processes.h"

namespace standin {

/// Memory that the ranks of a test share.
struct Meeting {
    ncclUniqueId id;
    std::atomic<bool> known;
    std::atomic<int> arrived;
};

struct Rank {
    int rank, size;
    Meeting& meeting;
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    std::vector<std::string> lines = {};

    void expect(bool held, const std::string& what,
                const std::source_location& where = std::source_location::current()) {
        if (!held) lines.push_back(lockstep::test::place_of(where) + what);
    }
    template <class Status>
    void ok(Status status, const std::string& what,
            const std::source_location& where = std::source_location::current()) {
        expect(static_cast<int>(status) == 0, what + ": " + std::to_string(static_cast<int>(status)), where);
    }
    ncclUniqueId id() {
        if (rank == 0 && !meeting.known) {
            ok(ncclGetUniqueId(&meeting.id), "ncclGetUniqueId");
            meeting.known = true;
        }
        while (!meeting.known) std::this_thread::yield();
        return meeting.id;
    }
    void all_arrive(int times) {
        for (++meeting.arrived; meeting.arrived < times * size;) std::this_thread::yield();
    }
    void sync() { ok(cudaStreamSynchronize(stream), "cudaStreamSynchronize"); }
    char* device(const std::vector<char>& bytes) {
        void* data = nullptr;
        ok(cudaMalloc(&data, bytes.size()), "cudaMalloc");
        ok(cudaMemcpy(data, bytes.data(), bytes.size(), cudaMemcpyHostToDevice), "cudaMemcpy");
        return static_cast<char*>(data);
    }
    std::vector<char> host(const char* data, std::size_t bytes) {
        sync();
        std::vector<char> copy(bytes);
        ok(cudaMemcpy(copy.data(), data, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
        return copy;
    }
    // Checks that the last call failed with `status` and made one mistake of this kind.
    void refused(ncclResult_t got, ncclResult_t status, Kind kind, const std::string& what) {
        (void)ncclGetLastError(nullptr);
        const auto made = take_mistakes();
        expect(got == status, what + " returned " + std::to_string(got));
        expect(made.size() == 1 && made[0].kind == kind,
               what + ": " + std::to_string(made.size()) + " mistakes " + (made.empty() ? "" : made[0].message));
    }
    ncclResult_t sum(const void* from, void* to, std::size_t count) {
        return ncclAllReduce(from, to, count, ncclFloat32, ncclSum, comm, stream);
    }
};

/// Runs `body` on `size` ranks, connected by one communicator if `connect`. Returns their failures, one per line.
inline std::string on_ranks(int size, bool connect, const std::function<void(Rank&)>& body) {
    void* place = ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    REQUIRE(place != MAP_FAILED);
    auto& meeting = *new (place) Meeting{};
    std::string wrong;
    {
        lockstep::test::ForkedRanks ranks(size, [&](int rank) {
            Rank self{.rank = rank, .size = size, .meeting = meeting};
            self.ok(cudaStreamCreateWithFlags(&self.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
            if (connect) self.ok(ncclCommInitRank(&self.comm, size, self.id(), rank), "ncclCommInitRank");
            body(self);
            if (self.comm != nullptr) self.ok(ncclCommDestroy(self.comm), "ncclCommDestroy");
            for (const auto& each : take_mistakes())
                self.lines.push_back(std::string(name_of(each.kind)) + ": " + each.message);
            self.expect(counters().live_communicators == 0, "a communicator was not destroyed");
            return self.lines;
        });
        wrong = lockstep::test::joined(ranks.finish());
    }
    ::munmap(place, sizeof(Meeting));
    return wrong;
}

}  // namespace standin
