// Errors of the NCCL stand-in: ranks that never connect or die, and wrong use.
#include <array>

#include "lockstep/tests/cuda_standin/nccl_ranks.h"

using namespace standin;

using Clock = std::chrono::steady_clock;

TEST_CASE("abort ends an operation that waits for an absent rank") {
    CHECK(on_ranks(2, true, [](Rank& self) {
              if (self.rank == 0) {
                  char* data = self.device(std::vector<char>(4000000));
                  for (int i = 0; i < 3; ++i) self.ok(self.sum(data, data, 1000000), "ncclAllReduce");
                  std::this_thread::sleep_for(std::chrono::milliseconds(50));
                  self.expect(cudaStreamQuery(self.stream) == cudaErrorNotReady, "the operation waits");
                  (void)cudaGetLastError();
                  std::thread([&] { self.ok(ncclCommAbort(self.comm), "ncclCommAbort"); }).join();
                  self.sync();
                  self.refused(ncclCommAbort(self.comm), ncclInvalidArgument, Kind::destroyed_handle, "abort twice");
                  self.comm = nullptr;
              }
              self.all_arrive(1);
          }) == "");
}

TEST_CASE("abort waits for all work before the last operation of a stream, including host functions") {
    CHECK(on_ranks(2, true, [](Rank& self) {
              if (self.rank == 0) {
                  std::atomic<bool> open{false};
                  char* data = self.device(std::vector<char>(4));
                  self.ok(self.sum(data, data, 1), "ncclAllReduce");
                  const auto wait = [](void* gate) {
                      while (!*static_cast<std::atomic<bool>*>(gate)) std::this_thread::yield();
                  };
                  self.ok(cudaLaunchHostFunc(self.stream, wait, &open), "cudaLaunchHostFunc");
                  self.ok(self.sum(data, data, 1), "ncclAllReduce");
                  std::atomic<bool> ended{false};
                  std::thread aborting([&] {
                      self.ok(ncclCommAbort(self.comm), "ncclCommAbort");
                      ended = true;
                  });
                  std::this_thread::sleep_for(std::chrono::milliseconds(200));
                  self.expect(!ended, "abort waits for the host function");
                  open = true;
                  aborting.join();
                  self.expect(cudaStreamQuery(self.stream) == cudaSuccess, "everything is done");
                  self.comm = nullptr;
              }
              self.all_arrive(1);
              if (self.comm) {
                  self.ok(ncclCommAbort(self.comm), "ncclCommAbort");
                  self.comm = nullptr;
              }
          }) == "");
}

TEST_CASE("a communicator is used by one thread at a time") {
    CHECK(on_ranks(1, true, [](Rank& self) {
              char* data = self.device(std::vector<char>(4));
              self.ok(ncclGroupStart(), "ncclGroupStart");
              self.ok(self.sum(data, data, 1), "ncclAllReduce");
              std::thread([&] {
                  self.refused(ncclCommAbort(self.comm), ncclInvalidUsage, Kind::concurrent_use, "abort in a group");
              }).join();
              self.ok(ncclGroupEnd(), "ncclGroupEnd");
              self.sync();
              std::thread([&] { self.ok(ncclCommAbort(self.comm), "ncclCommAbort"); }).join();
              self.comm = nullptr;
          }) == "");
}

TEST_CASE("a non-blocking call on a full queue returns, and the operation starts when there is room") {
    Config config = devices(1);
    config.launch_queue = 2;
    CHECK(on_ranks(1, false, [&](Rank& self) {
              reset(config);
              self.ok(cudaStreamCreateWithFlags(&self.stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
              ncclConfig_t how = NCCL_CONFIG_INITIALIZER;
              how.blocking = 0;
              self.expect(ncclCommInitRankConfig(&self.comm, 1, self.id(), 0, &how) == ncclInProgress, "init");
              ncclResult_t status = ncclInProgress;
              const auto ask = [&] { self.ok(ncclCommGetAsyncError(self.comm, &status), "ncclCommGetAsyncError"); };
              while (status == ncclInProgress) ask();
              char* data = self.device(std::vector<char>(4));
              std::atomic<bool> open{false};
              const auto wait = [](void* gate) {
                  while (!*static_cast<std::atomic<bool>*>(gate)) std::this_thread::yield();
              };
              for (int i = 0; i < 2; ++i) self.ok(cudaLaunchHostFunc(self.stream, wait, &open), "cudaLaunchHostFunc");
              self.expect(self.sum(data, data, 1) == ncclInProgress, "an operation");
              std::this_thread::sleep_for(std::chrono::milliseconds(100));
              ask();
              self.expect(status == ncclInProgress, "it is not launched");
              open = true;
              while (status == ncclInProgress) ask();
              self.expect(counters().devices[0].launches["ncclAllReduce"] == 1, "it is launched");
              self.sync();
          }) == "");
}

TEST_CASE("a non-blocking communicator") {
    CHECK(on_ranks(2, false, [](Rank& self) {
              ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
              config.blocking = 0;
              ncclResult_t status = ncclSuccess;
              const auto begin_init = [&](const ncclUniqueId& id) {
                  self.expect(ncclCommInitRankConfig(&self.comm, 2, id, self.rank, &config) == ncclInProgress, "init");
              };
              const auto settled = [&] {
                  do self.ok(ncclCommGetAsyncError(self.comm, &status), "ncclCommGetAsyncError");
                  while (status == ncclInProgress);
                  self.ok(status, "result of ncclCommGetAsyncError");
              };
              char* data = self.device(std::vector<char>(4));
              if (self.rank == 0) {  // no other rank connects
                  ncclUniqueId lonely;
                  self.ok(ncclGetUniqueId(&lonely), "ncclGetUniqueId");
                  begin_init(lonely);
                  self.refused(self.sum(data, data, 1), ncclInvalidArgument, Kind::invalid_argument, "too early");
                  self.ok(ncclCommGetAsyncError(self.comm, &status), "ncclCommGetAsyncError");
                  self.expect(status == ncclInProgress, "alone");
                  self.ok(ncclCommAbort(self.comm), "ncclCommAbort");
              }
              begin_init(self.id());
              settled();
              self.expect(self.sum(data, data, 1) == ncclInProgress, "an operation");
              self.refused(self.sum(data, data, 1), ncclInvalidArgument, Kind::invalid_argument, "not asked");
              settled();
              self.expect(ncclCommFinalize(self.comm) == ncclInProgress, "ncclCommFinalize");
              settled();
              self.refused(self.sum(data, data, 1), ncclInvalidArgument, Kind::invalid_argument, "finalized");
          }) == "");
}

TEST_CASE("a killed rank is a remote error, and the operation waits until abort") {
    const std::string wrong = on_ranks(2, true, [](Rank& self) {
        if (self.rank == 1) ::raise(SIGKILL);
        char* data = self.device(std::vector<char>(4));
        self.ok(self.sum(data, data, 1), "ncclAllReduce");
        ncclResult_t status = ncclSuccess;
        const auto deadline = Clock::now() + lockstep::test::hang;
        while (status == ncclSuccess && Clock::now() < deadline)
            self.ok(ncclCommGetAsyncError(self.comm, &status), "ncclCommGetAsyncError");
        self.expect(status == ncclRemoteError, "ncclRemoteError");
        self.expect(cudaStreamQuery(self.stream) == cudaErrorNotReady, "the operation waits");
        (void)cudaGetLastError();
        self.expect(self.sum(data, data, 1) == ncclRemoteError, "the next operation");
        (void)ncclGetLastError(self.comm);
        self.ok(ncclCommAbort(self.comm), "ncclCommAbort");
        self.sync();
        self.comm = nullptr;
    });
    CHECK(wrong == "rank 1: ended by signal 9\n");
}

TEST_CASE("a lost context ends a waiting operation, and abort still frees the communicator") {
    CHECK(on_ranks(2, true, [](Rank& self) {
              if (self.rank == 0) {
                  char* data = self.device(std::vector<char>(4));
                  self.ok(self.sum(data, data, 1), "ncclAllReduce");
                  std::thread waiting([&] {
                      self.expect(cudaStreamSynchronize(self.stream) == cudaErrorIllegalAddress, "the wait");
                      (void)cudaGetLastError();
                  });
                  std::this_thread::sleep_for(std::chrono::milliseconds(50));
                  inject_failure("cudaDeviceSynchronize", 1, cudaErrorIllegalAddress, true);
                  self.expect(cudaDeviceSynchronize() == cudaErrorIllegalAddress, "the failure");
                  (void)cudaGetLastError();
                  waiting.join();
                  self.expect(ncclCommAbort(self.comm) == ncclUnhandledCudaError, "ncclCommAbort");
                  self.comm = nullptr;
                  (void)ncclGetLastError(nullptr);
                  self.expect(counters().live_communicators == 0, "a communicator was not destroyed");
                  reset();
              }
              self.all_arrive(1);
          }) == "");
}

TEST_CASE("invalid use is rejected") {
    CHECK(
        on_ranks(1, true, [](Rank& self) {
            char* data = self.device(std::vector<char>(64));
            char* freed = self.device(std::vector<char>(64));
            self.ok(cudaFree(freed), "cudaFree");
            std::vector<char> pageable(64);
            const auto all_reduce = [&](char* to, ncclDataType_t type, int op) {
                return ncclAllReduce(data, to, 8, type, static_cast<ncclRedOp_t>(op), self.comm, self.stream);
            };
            const struct {
                const char* what;
                std::function<ncclResult_t()> call;
                ncclResult_t status;
                Kind kind;
            } cases[] = {
                {"freed", [&] { return self.sum(data, freed, 8); }, ncclUnhandledCudaError, Kind::use_after_free},
                {"host", [&] { return self.sum(data, pageable.data(), 8); }, ncclUnhandledCudaError, Kind::host_memory},
                {"bounds", [&] { return self.sum(data, data, 17); }, ncclUnhandledCudaError, Kind::out_of_bounds},
                {"null", [&] { return self.sum(data, nullptr, 8); }, ncclInvalidArgument, Kind::invalid_argument},
                {"operator", [&] { return all_reduce(data, ncclInt8, ncclNumOps); }, ncclInvalidArgument,
                 Kind::invalid_argument},
                {"fp8", [&] { return all_reduce(data, ncclFloat8e4m3, ncclSum); }, ncclInvalidUsage, Kind::unsupported},
                {"root", [&] { return ncclBroadcast(data, data, 8, ncclInt8, 1, self.comm, self.stream); },
                 ncclInvalidArgument, Kind::invalid_argument},
                {"half a message", [&] { return ncclSend(data, 8, ncclInt8, 0, self.comm, self.stream); },
                 ncclInvalidUsage, Kind::invalid_argument},
                {"no group", [] { return ncclGroupEnd(); }, ncclInvalidUsage, Kind::invalid_argument},
                {"no communicator", [&] { return ncclAllGather(data, data, 8, ncclInt8, nullptr, self.stream); },
                 ncclInvalidArgument, Kind::invalid_argument},
            };
            for (const auto& each : cases) self.refused(each.call(), each.status, each.kind, each.what);
            self.expect(counters().devices[0].launches.empty(), "nothing was launched");

            cudaStream_t foreign = nullptr;
            self.ok(cudaSetDevice(1), "cudaSetDevice");
            self.ok(cudaStreamCreateWithFlags(&foreign, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
            self.refused(self.sum(data, data, 8), ncclInvalidUsage, Kind::wrong_device, "another current device");
            self.ok(cudaSetDevice(0), "cudaSetDevice");
            self.refused(ncclAllReduce(data, data, 8, ncclInt8, ncclSum, self.comm, foreign), ncclInvalidUsage,
                         Kind::wrong_device, "another device's stream");

            // A group with a mistake has no effect at all.
            self.ok(ncclGroupStart(), "ncclGroupStart");
            self.ok(self.sum(data, data, 8), "ncclAllReduce");
            self.refused(self.sum(data, nullptr, 8), ncclInvalidArgument, Kind::invalid_argument, "in a group");
            self.expect(ncclGroupEnd() == ncclInvalidArgument, "the group also fails");
            self.expect(cudaStreamQuery(self.stream) == cudaSuccess, "the stream of a group that failed");
            self.expect(take_mistakes().empty(), "the group's error, fetched with its cause");
            self.expect(counters().devices[0].launches.empty(), "nothing was launched");

            inject_failure("ncclAllReduce", 1, ncclSystemError);
            self.expect(self.sum(data, data, 8) == ncclSystemError, "an injected failure");
            self.expect(self.sum(data, data, 0) == ncclSuccess, "an operation on nothing");
            const auto ignored = take_mistakes();
            self.expect(ignored.size() == 1 && ignored[0].kind == Kind::ignored_error, "an ignored error");

            self.expect(counters().live_communicators == 1, "live_communicators");
            self.ok(ncclCommDestroy(self.comm), "ncclCommDestroy");
            self.refused(self.sum(data, data, 8), ncclInvalidArgument, Kind::destroyed_handle, "destroyed");
            self.comm = nullptr;
        }) == "");
}

TEST_CASE("ranks that disagree, share a GPU or have the same number") {
    CHECK(on_ranks(2, true, [](Rank& self) {
              char* data = self.device(std::vector<char>(64));
              self.ok(self.rank == 0 ? ncclSend(data, 4, ncclInt8, 1, self.comm, self.stream)
                                     : ncclRecv(data, 8, ncclInt8, 0, self.comm, self.stream),
                      "a message");
              ncclResult_t status = ncclSuccess;
              while (self.rank == 1 && status == ncclSuccess)
                  self.ok(ncclCommGetAsyncError(self.comm, &status), "ncclCommGetAsyncError");
              if (self.rank == 1) self.refused(status, ncclInvalidUsage, Kind::invalid_argument, "8 bytes for 4");
              self.all_arrive(1);
              self.ok(ncclCommAbort(self.comm), "ncclCommAbort");
              self.comm = nullptr;
          }) == "");
    CHECK(on_ranks(1, false, [](Rank& self) {
              for (const int other : {0, 1}) {
                  ncclUniqueId id;
                  self.ok(ncclGetUniqueId(&id), "ncclGetUniqueId");
                  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
                  config.blocking = 0;
                  std::array<ncclComm_t, 2> comms{};
                  for (const int i : {0, 1})
                      self.expect(ncclCommInitRankConfig(&comms[static_cast<std::size_t>(i)], 2, id, i == 0 ? 0 : other,
                                                         &config) == ncclInProgress,
                                  "init");
                  ncclResult_t status = ncclInProgress;
                  for (std::size_t i = 0; status == ncclInProgress; i = 1 - i)
                      self.ok(ncclCommGetAsyncError(comms[i], &status), "ncclCommGetAsyncError");
                  self.expect(status == ncclInvalidUsage, "one of them fails");
                  for (const ncclComm_t each : comms) self.ok(ncclCommAbort(each), "ncclCommAbort");
                  const auto made = take_mistakes();
                  self.expect(!made.empty() && made[0].kind == Kind::invalid_argument, "the mistake");
              }
          }) == "");
}
