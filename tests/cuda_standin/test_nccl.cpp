// Operations of the NCCL stand-in, on ranks that are processes.
#include <cmath>
#include <cstring>

#include "lockstep/tests/cuda_standin/nccl_ranks.h"

using namespace standin;

namespace {

template <class T>
void put(char* to, double value) {
    const T typed = static_cast<T>(value);
    std::memcpy(to, &typed, sizeof typed);
}
template <class T>
double get(const char* from) {
    T typed;
    std::memcpy(&typed, from, sizeof typed);
    return static_cast<double>(typed);
}
void put_half(char* to, double value) {
    const __half typed = __float2half(static_cast<float>(value));
    std::memcpy(to, &typed, sizeof typed);
}
double get_half(const char* from) {
    __half typed;
    std::memcpy(&typed, from, sizeof typed);
    return static_cast<double>(__half2float(typed));
}
void put_bfloat(char* to, double value) {
    const __nv_bfloat16 typed = __float2bfloat16(static_cast<float>(value));
    std::memcpy(to, &typed, sizeof typed);
}
double get_bfloat(const char* from) {
    __nv_bfloat16 typed;
    std::memcpy(&typed, from, sizeof typed);
    return static_cast<double>(__bfloat162float(typed));
}

struct Type {
    ncclDataType_t type;
    std::size_t bytes;
    bool floating;
    void (*put)(char*, double);
    double (*get)(const char*);
};
const Type kTypes[] = {
    {ncclInt8, 1, false, put<std::int8_t>, get<std::int8_t>},
    {ncclUint8, 1, false, put<std::uint8_t>, get<std::uint8_t>},
    {ncclInt32, 4, false, put<std::int32_t>, get<std::int32_t>},
    {ncclUint32, 4, false, put<std::uint32_t>, get<std::uint32_t>},
    {ncclInt64, 8, false, put<std::int64_t>, get<std::int64_t>},
    {ncclUint64, 8, false, put<std::uint64_t>, get<std::uint64_t>},
    {ncclFloat16, 2, true, put_half, get_half},
    {ncclFloat32, 4, true, put<float>, get<float>},
    {ncclFloat64, 8, true, put<double>, get<double>},
    {ncclBfloat16, 2, true, put_bfloat, get_bfloat},
};

// Exact in every type, as are their products over three ranks.
double value_of(int rank, std::size_t i) {
    return static_cast<double>(1 + (static_cast<std::size_t>(rank) * 3 + i * 7) % 5);
}

double reduced(const Type& type, ncclRedOp_t op, int size, std::size_t i) {
    double result = value_of(0, i);
    for (int rank = 1; rank < size; ++rank) {
        const double value = value_of(rank, i);
        result = op == ncclProd  ? result * value
                 : op == ncclMin ? std::min(result, value)
                 : op == ncclMax ? std::max(result, value)
                                 : result + value;
    }
    if (op != ncclAvg) return result;
    return type.floating ? result / size : std::floor(result / size);
}

void check_type(Rank& self, const Type& type, std::size_t count) {
    const auto size = static_cast<std::size_t>(self.size), rank = static_cast<std::size_t>(self.rank);
    const std::size_t bytes = count * type.bytes;
    const int root = self.size - 1;
    std::vector<char> values(bytes * size);
    for (std::size_t i = 0; i < count * size; ++i) type.put(values.data() + i * type.bytes, value_of(self.rank, i));
    char* in = self.device(values);
    char* out = self.device(std::vector<char>(bytes * size));
    const auto compare = [&](const char* data, std::size_t many, double tolerance, const std::string& what,
                             const std::function<double(std::size_t)>& wanted) {
        const auto got = self.host(data, many * type.bytes);
        for (std::size_t i = 0; i < many; ++i) {
            const double value = type.get(got.data() + i * type.bytes), want = wanted(i);
            if (std::fabs(value - want) <= tolerance * std::fabs(want)) continue;
            return self.lines.push_back(what + ", type " + std::to_string(type.type) + ", element " +
                                        std::to_string(i) + ": " + std::to_string(value) + " for " +
                                        std::to_string(want));
        }
    };
    for (const ncclRedOp_t op : {ncclSum, ncclProd, ncclMin, ncclMax, ncclAvg}) {
        const double tolerance = type.floating && op == ncclAvg ? 0.01 : 0;
        const std::string suffix = " with operator " + std::to_string(op);
        const auto wanted = [&](std::size_t i) { return reduced(type, op, self.size, i); };
        self.ok(ncclAllReduce(in, out, count, type.type, op, self.comm, self.stream), "ncclAllReduce");
        compare(out, count, tolerance, "ncclAllReduce" + suffix, wanted);
        self.ok(ncclReduce(in, self.rank == root ? out : nullptr, count, type.type, op, root, self.comm, self.stream),
                "ncclReduce");
        if (self.rank == root) compare(out, count, tolerance, "ncclReduce" + suffix, wanted);
        self.ok(ncclReduceScatter(in, out, count, type.type, op, self.comm, self.stream), "ncclReduceScatter");
        compare(out, count, tolerance, "ncclReduceScatter" + suffix,
                [&](std::size_t i) { return wanted(rank * count + i); });
    }
    self.ok(ncclBroadcast(self.rank == root ? in : nullptr, out, count, type.type, root, self.comm, self.stream),
            "ncclBroadcast");
    compare(out, count, 0, "ncclBroadcast", [&](std::size_t i) { return value_of(root, i); });
    self.ok(ncclAllGather(in, out, count, type.type, self.comm, self.stream), "ncclAllGather");
    compare(out, count * size, 0, "ncclAllGather",
            [&](std::size_t i) { return value_of(static_cast<int>(i / count), i % count); });
    // In place, with NCCL's convention.
    self.ok(ncclReduceScatter(in, in + rank * bytes, count, type.type, ncclSum, self.comm, self.stream), "in place");
    compare(in + rank * bytes, count, 0, "in place",
            [&](std::size_t i) { return reduced(type, ncclSum, self.size, rank * count + i); });
    self.ok(cudaFree(in), "cudaFree");
    self.ok(cudaFree(out), "cudaFree");
}

}  // namespace

TEST_CASE("every operation, type and operator agrees with plain loops") {
    for (const int size : {1, 2, 3})
        CHECK(on_ranks(size, true, [](Rank& self) {
                  set_delays(static_cast<std::uint64_t>(self.rank), 100);
                  for (const Type& type : kTypes) check_type(self, type, 7);
                  check_type(self, kTypes[7], 200003);
                  self.expect(counters().devices[0].launches["ncclAllReduce"] == 55, "launches are counted");
                  int count = 0, rank = -1;
                  self.ok(ncclCommCount(self.comm, &count), "ncclCommCount");
                  self.ok(ncclCommUserRank(self.comm, &rank), "ncclCommUserRank");
                  self.expect(count == self.size && rank == self.rank, "number of ranks and rank");
              }) == "");
}

TEST_CASE("all ranks get the same bits") {
    CHECK(on_ranks(3, true, [](Rank& self) {
              constexpr std::size_t kCount = 1000;
              std::vector<char> values(kCount * 4);
              for (std::size_t i = 0; i < kCount; ++i)
                  put<float>(values.data() + i * 4, std::sin(static_cast<double>(i) * (self.rank + 1)));
              char* data = self.device(values);
              char* all = self.device(std::vector<char>(values.size() * 3));
              self.ok(self.sum(data, data, kCount), "ncclAllReduce");
              self.ok(ncclAllGather(data, all, kCount, ncclFloat32, self.comm, self.stream), "ncclAllGather");
              const auto got = self.host(all, values.size() * 3);
              for (std::size_t rank = 1; rank < 3; ++rank)
                  self.expect(std::memcmp(got.data(), got.data() + rank * values.size(), values.size()) == 0, "bits");
          }) == "");
}

TEST_CASE("all ranks send to all ranks in a group, on two streams, with more data than the links hold") {
    CHECK(on_ranks(3, true, [](Rank& self) {
              // From `from` to `to`; nothing from 2 to 1.
              const auto bytes = [](int from, int to) -> std::size_t {
                  return from == 2 && to == 1 ? 0 : 400000 + static_cast<std::size_t>(10 * from + to);
              };
              cudaStream_t second = nullptr;
              self.ok(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
              const auto slow = [] { std::this_thread::sleep_for(std::chrono::milliseconds(30)); };
              self.ok(enqueue_host_kernel(self.stream, "slow", slow, {}), "enqueue_host_kernel");
              std::vector<char*> in, out;
              self.ok(ncclGroupStart(), "ncclGroupStart");
              for (int peer = 0; peer < 3; ++peer) {
                  in.push_back(self.device(std::vector<char>(500000)));
                  self.ok(cudaMemsetAsync(in.back(), 10 * self.rank + peer, 500000, self.stream), "cudaMemsetAsync");
                  out.push_back(self.device(std::vector<char>(500000, 99)));
                  self.ok(ncclSend(in.back(), bytes(self.rank, peer), ncclInt8, peer, self.comm, self.stream), "send");
                  self.ok(ncclRecv(out.back(), bytes(peer, self.rank), ncclInt8, peer, self.comm, second), "recv");
              }
              self.ok(ncclGroupEnd(), "ncclGroupEnd");
              for (int peer = 0; peer < 3; ++peer) {
                  auto wanted = std::vector<char>(500000, 99);
                  std::fill_n(wanted.begin(), bytes(peer, self.rank), static_cast<char>(10 * peer + self.rank));
                  self.expect(self.host(out[static_cast<std::size_t>(peer)], wanted.size()) == wanted,
                              "the bytes received from " + std::to_string(peer));
              }
              self.expect(counters().devices[0].launches["ncclSend"] == 3, "launches are counted");
          }) == "");
}

TEST_CASE("a sum runs after a copy that an event orders, and operations of a stream run in order") {
    CHECK(on_ranks(2, true, [](Rank& self) {
              set_delays(static_cast<std::uint64_t>(self.rank) + 5, 20000);
              cudaStream_t copies = nullptr;
              cudaEvent_t copied = nullptr;
              self.ok(cudaStreamCreateWithFlags(&copies, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
              self.ok(cudaEventCreateWithFlags(&copied, cudaEventDisableTiming), "cudaEventCreateWithFlags");
              std::vector<char> one(4);
              put<float>(one.data(), 1);
              char* source = self.device(one);
              char* data = self.device(std::vector<char>(4));
              self.ok(cudaMemcpyAsync(data, source, 4, cudaMemcpyDeviceToDevice, copies), "cudaMemcpyAsync");
              self.ok(cudaEventRecord(copied, copies), "cudaEventRecord");
              self.ok(cudaStreamWaitEvent(self.stream, copied, 0), "cudaStreamWaitEvent");
              self.ok(self.sum(data, data, 1), "ncclAllReduce");
              self.ok(ncclAllReduce(data, data, 1, ncclFloat32, ncclSum, self.comm, copies), "ncclAllReduce");
              self.ok(cudaStreamSynchronize(copies), "cudaStreamSynchronize");
              self.expect(get<float>(self.host(data, 4).data()) == 4, "the sum");
          }) == "");
}
