#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>

#include "lockstep/bench/collectives.h"
#include "lockstep/runtime/stream.h"
#include "lockstep/runtime/tensor.h"

namespace collectives {

namespace ls = lockstep;

namespace {

/// One rank's memory for calls of one size.
template <class T>
struct Call {
    ls::Communicator& ranks;
    std::size_t count;
    std::vector<std::size_t> counts, bytes;  ///< a part per rank
    std::vector<T> in, out;                  ///< before the call
    std::vector<T> expected;                 ///< after it, in `out`; empty if this rank receives nothing
    ls::Tensor in_place, out_place;          ///< tensors that the call uses

    Call(ls::Communicator& r, std::size_t n) : ranks(r), count(n), in(n), out(n) {
        const auto world = static_cast<std::size_t>(r.size());
        for (std::size_t rank = 0; rank < world; ++rank) {
            counts.push_back(n * (rank + 1) / world - n * rank / world);
            bytes.push_back(counts.back() * sizeof(T));
        }
        for (std::size_t i = 0; i < n; ++i) in[i] = static_cast<T>(value_of(r.rank(), i));
    }
    void place(ls::Device device) {
        const auto on_device = [&](const std::vector<T>& values) {
            return ls::Tensor::from(values, ls::Shape{static_cast<std::int64_t>(values.size())}).to(device);
        };
        in_place = on_device(in);
        out_place = on_device(out);
        settle();
    }
    void clear() {
        in_place.fill_(0);
        out_place.fill_(0);
        settle();
    }
    const T* from() const { return address(in_place); }
    T* to() const { return address(out_place); }
    std::size_t own() const { return counts[static_cast<std::size_t>(ranks.rank())]; }
    std::size_t first_of(int rank) const {
        return std::accumulate(counts.begin(), counts.begin() + rank, std::size_t{0});
    }
    T sum(std::size_t element) const {
        int total = 0;
        for (int rank = 0; rank < ranks.size(); ++rank) total += value_of(rank, element);
        return static_cast<T>(total);
    }
    template <class Value>
    void expect(std::size_t n, Value&& value) {
        for (std::size_t i = 0; i < n; ++i) expected.push_back(static_cast<T>(value(i)));
    }
    /// Expects the data of rank `sender` at part `part`, for all ranks in order.
    template <class Part>
    void expect_parts(Part&& part) {
        for (int sender = 0; sender < ranks.size(); ++sender) {
            const std::size_t first = first_of(part(sender));
            expect(counts[static_cast<std::size_t>(part(sender))],
                   [&](std::size_t i) { return value_of(sender, first + i); });
        }
    }
    bool is_root() const { return ranks.rank() == 0; }

private:
    static T* address(const ls::Tensor& tensor) { return static_cast<T*>(tensor.impl()->storage->buffer->data()); }
    /// The communicator does not synchronize with the tensor's stream.
    void settle() const {
        if (!in_place.device().is_host()) ls::Stream::of(in_place.device()).synchronize();
    }
};

template <class T>
struct Operation {
    std::string name;
    void (*prepare)(Call<T>& call);  ///< sets the expected result
    void (*run)(Call<T>& call);
};

template <class T>
std::vector<Operation<T>> table() {
    constexpr ls::DType dtype = ls::dtype_of<T>;
    return {
        {"all_reduce",
         [](Call<T>& c) {
             c.out = c.in;
             c.expect(c.count, [&](std::size_t i) { return c.sum(i); });
         },
         [](Call<T>& c) { c.ranks.all_reduce(c.to(), c.count, dtype, ls::ReduceOp::sum); }},
        {"reduce",
         [](Call<T>& c) {
             c.out = c.in;
             if (c.is_root()) c.expect(c.count, [&](std::size_t i) { return c.sum(i); });
         },
         [](Call<T>& c) { c.ranks.reduce(c.to(), c.count, dtype, ls::ReduceOp::sum, 0); }},
        {"reduce_scatter",
         [](Call<T>& c) { c.expect(c.own(), [&](std::size_t i) { return c.sum(c.first_of(c.ranks.rank()) + i); }); },
         [](Call<T>& c) { c.ranks.reduce_scatter(c.from(), c.to(), c.counts, dtype, ls::ReduceOp::sum); }},
        {"broadcast",
         [](Call<T>& c) {
             c.out = c.in;
             c.expect(c.count, [](std::size_t i) { return value_of(0, i); });
         },
         [](Call<T>& c) { c.ranks.broadcast(c.to(), c.count * sizeof(T), 0); }},
        {"all_gather", [](Call<T>& c) { c.expect_parts([](int sender) { return sender; }); },
         [](Call<T>& c) { c.ranks.all_gather(c.from() + c.first_of(c.ranks.rank()), c.to(), c.bytes); }},
        {"gather",
         [](Call<T>& c) {
             if (c.is_root()) c.expect_parts([](int sender) { return sender; });
         },
         [](Call<T>& c) { c.ranks.gather(c.from() + c.first_of(c.ranks.rank()), c.to(), c.bytes, 0); }},
        {"scatter",
         [](Call<T>& c) {
             c.expect(c.own(), [&](std::size_t i) { return value_of(0, c.first_of(c.ranks.rank()) + i); });
         },
         [](Call<T>& c) { c.ranks.scatter(c.from(), c.to(), c.bytes, 0); }},
        {"all_to_all",
         [](Call<T>& c) {
             c.expect_parts([own = c.ranks.rank()](int) { return own; });
             c.out.resize(c.expected.size());
         },
         [](Call<T>& c) {
             const std::vector<std::size_t> received(c.bytes.size(), c.own() * sizeof(T));
             c.ranks.all_to_all(c.from(), c.bytes, c.to(), received);
         }},
        {"send_receive",
         [](Call<T>& c) {
             const int previous = (c.ranks.rank() + c.ranks.size() - 1) % c.ranks.size();
             c.expect(c.count, [&](std::size_t i) { return value_of(previous, i); });
         },
         [](Call<T>& c) {
             const int size = c.ranks.size(), rank = c.ranks.rank();
             const std::size_t bytes = c.count * sizeof(T);
             const auto comes = c.ranks.receive(c.to(), bytes, (rank + size - 1) % size, 0);
             const auto goes = c.ranks.send(c.from(), bytes, (rank + 1) % size, 0);
             for (bool came = false, gone = false; !came || !gone;) {
                 came = came || c.ranks.advance(*comes, "receive", bytes);
                 gone = gone || c.ranks.advance(*goes, "send", bytes);
             }
         }}};
}

/// How often the busiest link carries the buffer (nccl-tests, PERFORMANCE.md).
double link_steps(const std::string& operation, int ranks) {
    if (operation == "reduce" || operation == "broadcast" || operation == "send_receive") return 1;
    const double all_but_own = static_cast<double>(ranks - 1) / ranks;
    return operation == "all_reduce" ? 2 * all_but_own : all_but_own;
}

template <class T>
void run(ls::Communicator& ranks, int local_rank, const Plan& plan, const Sink& sink) {
    const auto gpu = ranks.on(ls::Device::cuda(local_rank), nullptr);
    ls::Communicator& measured = gpu ? *gpu : ranks;
    for (const auto& [name, prepare, call_once] : table<T>()) {
        if (std::find(plan.operations.begin(), plan.operations.end(), name) == plan.operations.end()) continue;
        if (ranks.size() < min_ranks(name)) continue;
        if (gpu && name == "send_receive") continue;  // messages support only host memory
        for (const std::size_t bytes : plan.sizes()) {
            Call<T> call(measured, bytes / sizeof(T));
            prepare(call);
            call.place(gpu ? ls::Device::cuda(local_rank) : ls::Device::host());
            call_once(call);
            const std::vector<T> found = call.out_place.template to_vector<T>();
            std::int64_t wrong = 0;
            for (std::size_t i = 0; i < call.expected.size(); ++i) wrong += found[i] != call.expected[i] ? 1 : 0;
            call.clear();  // repeated sums of zeros remain zero
            for (int i = 0; i < plan.warmup; ++i) call_once(call);
            ranks.barrier();
            const auto begin = std::chrono::steady_clock::now();
            for (int i = 0; i < plan.iterations; ++i) call_once(call);
            double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            ranks.all_reduce(&seconds, 1, ls::DType::f64, ls::ReduceOp::max);
            ranks.all_reduce(&wrong, 1, ls::DType::i64, ls::ReduceOp::sum);
            Row row{std::string(ranks.backend()), name, call.count * sizeof(T), std::string(ls::name_of(plan.dtype)),
                    ranks.size()};
            row.wrong = wrong;
            if (ranks.rank() == 0)
                sink(finished(std::move(row), seconds / plan.iterations, link_steps(name, ranks.size())));
        }
    }
}

}  // namespace

std::vector<std::string> operations() {
    std::vector<std::string> names;
    for (const auto& operation : table<float>()) names.push_back(operation.name);
    return names;
}

std::vector<std::size_t> Plan::sizes() const {
    std::vector<std::size_t> all;
    if (begin < ls::size_of(dtype)) return all;
    for (double bytes = static_cast<double>(begin); bytes <= static_cast<double>(end) * (1 + 1e-9); bytes *= factor) {
        const std::size_t whole = static_cast<std::size_t>(bytes) / ls::size_of(dtype) * ls::size_of(dtype);
        if (all.empty() || whole > all.back()) all.push_back(whole);
    }
    return all;
}

Row finished(Row row, double seconds, double steps) {
    row.microseconds = 1e6 * seconds;
    row.algorithm_gbs = seconds > 0 ? 1e-9 * static_cast<double>(row.bytes) / seconds : 0;
    row.bus_gbs = row.algorithm_gbs * steps;
    return row;
}

void run_collectives(ls::Communicator& ranks, int local_rank, const Plan& plan, const Sink& sink) {
    switch (plan.dtype) {
        case ls::DType::f64: return run<double>(ranks, local_rank, plan, sink);
        case ls::DType::i32: return run<std::int32_t>(ranks, local_rank, plan, sink);
        case ls::DType::i64: return run<std::int64_t>(ranks, local_rank, plan, sink);
        default: return run<float>(ranks, local_rank, plan, sink);
    }
}

}  // namespace collectives
