#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "lockstep/bench/collectives.h"
#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/stream.h"

namespace collectives {

namespace ls = lockstep;

namespace {

/// Elements [begin, end) of every device's memory.
struct Range {
    std::size_t begin = 0, end = 0;
};

/// Gradients of every device, and memory for their sum.
class Devices {
public:
    Devices(int devices, std::size_t count) : count_(count) {
        for (int d = 0; d < devices; ++d) {
            streams_.push_back(&ls::Stream::of(ls::Device::cpu(d), ls::StreamRole::commit));
            for (auto* side : {&gradients_, &sums_})
                side->push_back(ls::Buffer::allocate(*streams_.back(), count * sizeof(float), "collectives"));
            events_.emplace_back(ls::Device::cpu(d));
        }
    }
    ~Devices() {
        for (ls::Stream* stream : streams_) stream->synchronize();
    }
    Devices(const Devices&) = delete;
    Devices& operator=(const Devices&) = delete;

    float* gradients(std::size_t device) const { return static_cast<float*>(gradients_[device]->data()); }
    const float* sums(std::size_t device) const { return static_cast<const float*>(sums_[device]->data()); }

    void synchronize() {
        for (ls::Stream* stream : streams_) stream->synchronize();
    }

    void all_reduce(bool by_slices, std::size_t bucket) {
        for (std::size_t begin = 0; begin < count_; begin += bucket) {
            const Range range{begin, std::min(count_, begin + bucket)};
            const std::size_t summing = by_slices ? streams_.size() : 1;
            std::vector<Range> slices;
            for (std::size_t d = 0; d < summing; ++d) {
                const std::size_t length = range.end - range.begin;
                slices.push_back({range.begin + length * d / summing, range.begin + length * (d + 1) / summing});
                sum(d, slices.back());
                streams_[d]->record(events_[d]);
            }
            for (std::size_t d = 0; d < streams_.size(); ++d)
                for (std::size_t from = 0; from < summing; ++from)
                    if (from != d) copy(from, d, slices[from]);
        }
        // The next writes wait for all reads.
        for (std::size_t d = 0; d < streams_.size(); ++d) streams_[d]->record(events_[d]);
        for (ls::Stream* stream : streams_)
            for (const ls::Event& event : events_) stream->wait(event);
    }

private:
    void sum(std::size_t device, const Range& range) {
        const std::size_t length = range.end - range.begin;
        if (length == 0) return;
        std::vector<std::pair<int, int>> shards;
        std::vector<ls::Access> accesses;
        std::vector<void*> places;
        ls::Stream& stream = *streams_[device];
        for (std::size_t d = 0; d < streams_.size(); ++d) {
            shards.emplace_back(static_cast<int>(d), static_cast<int>(d) + 1);
            places.push_back(gradients(d) + range.begin);
            accesses.push_back({places.back(), length * sizeof(float), streams_[d]->device(),
                                d == device ? ls::Access::Mode::read : ls::Access::Mode::peer_read});
        }
        places.push_back(static_cast<float*>(sums_[device]->data()) + range.begin);
        accesses.push_back({places.back(), length * sizeof(float), stream.device(), ls::Access::Mode::write});
        const auto meta = ls::TensorMeta::contiguous(ls::DType::f32, {static_cast<std::int64_t>(length)});
        ls::KernelRequest request;
        request.in.assign(streams_.size(), meta);
        request.out = {meta};
        const auto kernel =
            ls::KernelTable::of(ls::DeviceKind::cpu).make(*ls::make_operation(ls::TreeSum{std::move(shards)}), request);
        std::shared_ptr<ls::Buffer> scratch;
        if (const std::size_t bytes = kernel->scratch_bytes()) scratch = ls::Buffer::allocate(stream, bytes, "scratch");
        stream.run("tree_sum", accesses, [kernel, scratch, places](const ls::ExecContext& context) {
            kernel->run({context, places.data(), &places.back(), scratch ? scratch->data() : nullptr, nullptr, nullptr,
                         nullptr, 0, 0, 0, 1});
        });
    }

    void copy(std::size_t from, std::size_t to, const Range& range) {
        streams_[to]->wait(events_[from]);
        streams_[to]->copy(static_cast<float*>(sums_[to]->data()) + range.begin, streams_[to]->device(),
                           sums(from) + range.begin, streams_[from]->device(),
                           (range.end - range.begin) * sizeof(float));
    }

    std::size_t count_;
    std::vector<ls::Stream*> streams_;
    std::vector<std::shared_ptr<ls::Buffer>> gradients_, sums_;
    std::vector<ls::Event> events_;
};

}  // namespace

void run_in_process(int devices, const Plan& plan, const Sink& sink) {
    // As in ArenaPartition for few parameters.
    const std::size_t cache = ls::device_info(ls::Device::cpu(0)).cache_bytes;
    const std::size_t bucket = std::clamp(cache / 4, std::size_t{64} << 10, std::size_t{1} << 20) / sizeof(float);
    for (const bool by_slices : {false, true})
        for (const std::size_t bytes : plan.sizes()) {
            const std::size_t count = bytes / sizeof(float);
            Devices all(devices, count);
            for (int d = 0; d < devices; ++d)
                for (std::size_t i = 0; i < count; ++i)
                    all.gradients(static_cast<std::size_t>(d))[i] = static_cast<float>(value_of(d, i));
            all.all_reduce(by_slices, bucket);
            all.synchronize();
            Row row{by_slices ? "in-process slices" : "in-process root", "all_reduce", count * sizeof(float), "f32",
                    devices};
            for (std::size_t i = 0; i < count; ++i) {
                int expected = 0;
                for (int d = 0; d < devices; ++d) expected += value_of(d, i);
                for (int d = 0; d < devices; ++d)
                    row.wrong += all.sums(static_cast<std::size_t>(d))[i] != static_cast<float>(expected) ? 1 : 0;
            }
            for (int i = 0; i < plan.warmup; ++i) all.all_reduce(by_slices, bucket);
            all.synchronize();
            const auto begin = std::chrono::steady_clock::now();
            for (int i = 0; i < plan.iterations; ++i) all.all_reduce(by_slices, bucket);
            all.synchronize();
            const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
            sink(finished(std::move(row), seconds / plan.iterations, 2.0 * (devices - 1) / devices));
        }
}

}  // namespace collectives
