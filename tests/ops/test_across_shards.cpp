// The operations across shards, tested on their CPU kernels: eager use has only one shard.
#include <cmath>

#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/op_table.h"

using namespace lockstep;
using test::Array;

namespace {

/// Runs `operation` on `shards` inputs of `count` floats and returns its output.
template <class Op>
std::vector<float> across(const Op& operation, const std::vector<std::vector<float>>& shards) {
    const auto count = static_cast<std::int64_t>(shards[0].size());
    KernelRequest request;
    request.shards = static_cast<int>(shards.size());
    request.in = {TensorMeta::contiguous(DType::f32, {count})};
    request.out = request.in;
    const auto kernel = KernelTable::of(DeviceKind::cpu).make(*make_operation(operation), request);
    std::vector<float> out(shards[0].size(), NAN);
    std::vector<void*> in;
    for (const auto& shard : shards) in.push_back(const_cast<float*>(shard.data()));
    void* outputs[] = {out.data()};
    REQUIRE(kernel->scratch_bytes() == 0);
    const ExecContext context{Device::host()};
    kernel->run({context, in.data(), outputs, nullptr, nullptr, nullptr, nullptr, 0, 0, 0, request.shards});
    return out;
}

/// The tree of shards: [lo, hi) splits at the largest power of two below its length.
float tree_sum(const std::vector<std::vector<float>>& shards, std::size_t element, std::size_t lo, std::size_t hi) {
    if (hi - lo == 1) return shards[lo][element];
    std::size_t half = 1;
    while (2 * half < hi - lo) half *= 2;
    return tree_sum(shards, element, lo, lo + half) + tree_sum(shards, element, lo + half, hi);
}

}  // namespace

TEST_CASE("sums over shards follow the tree bit for bit") {
    for (std::size_t count = 1; count <= 17; ++count) {
        std::vector<std::vector<float>> shards;
        for (std::size_t s = 0; s < count; ++s) {
            const Array values = test::make_values({{37}}, static_cast<std::uint32_t>(s));
            shards.emplace_back(values.v.begin(), values.v.end());
        }
        const std::vector<float> found = across(SumOverShards{}, shards);
        for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == tree_sum(shards, i, 0, count));
    }
}

TEST_CASE("statistics of shards of unequal size are pooled over the batch, or are those of shard 0") {
    constexpr std::ptrdiff_t channels = 3, plane = 10;
    for (const std::vector<std::ptrdiff_t>& rows :
         {std::vector<std::ptrdiff_t>{4}, {3, 3, 2}, {3, 3, 3, 3, 3, 3, 2}, {1, 1, 1, 1, 1}}) {
        std::vector<Array> batches;
        std::vector<std::vector<float>> shards;
        for (std::size_t s = 0; s < rows.size(); ++s) {
            Array x = test::make_values({{rows[s], channels, 2, 5}}, static_cast<std::uint32_t>(s));
            for (double& value : x.v) value += 100 * static_cast<double>(s + 1);  // very different means
            const reference::ChannelStats stats = reference::channel_stats(x);
            const double n = static_cast<double>(rows[s] * plane);
            std::vector<float> packed;
            for (const double mean : stats.mean) packed.push_back(static_cast<float>(mean));
            for (const double variance : stats.variance) packed.push_back(static_cast<float>(variance * n));
            packed.push_back(static_cast<float>(n));
            shards.push_back(packed);
            batches.push_back(std::move(x));
        }
        const Array whole = reference::cat(batches, 0);
        const reference::ChannelStats expected = reference::channel_stats(whole);
        const double count = static_cast<double>(whole.size() / channels);
        const std::vector<float> found = across(BatchNormPoolStats{}, shards);
        for (std::size_t c = 0; c < channels; ++c) {
            CHECK(found[c] == Approx(expected.mean[c]).epsilon(1e-5));
            CHECK(found[channels + c] == Approx(expected.variance[c] * count).epsilon(1e-4));
        }
        CHECK(found[2 * channels] == static_cast<float>(count));
        CHECK(across(BatchNormPoolStats{true}, shards) == shards[0]);
    }
}
