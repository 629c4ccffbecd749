// Peak memory per device, as documented in docs/reduction.md.
#include <algorithm>
#include <cstdio>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/nets.h"

using namespace lockstep;

namespace {

constexpr int devices = 4;  ///< unless a test sets another number

/// Size of the allocation for `bytes` bytes: rounded up to an eighth of a power of two, at least 512 bytes.
std::size_t block(std::size_t bytes) {
    std::size_t power = 512;
    while (2 * power < bytes) power *= 2;
    const std::size_t step = std::max<std::size_t>(power / 8, 512);
    return (bytes + step - 1) / step * step;
}

/// Peak of every device over some steps of the mnist network; `arena` gets the bytes of its parameter arena.
std::vector<std::size_t> peaks(const EngineOptions& options, std::size_t& arena, std::size_t& parameters,
                               int count = devices) {
    const test::Images images(64);
    std::vector<std::size_t> before;  // a few words that the library holds permanently
    for (int d = 0; d < count; ++d) {
        before.push_back(memory_stats(Device::cpu(d)).current);
        REQUIRE(before.back() <= 512);
        reset_peak_memory(Device::cpu(d));
    }
    DataParallel<test::Cnn> model(test::Cnn{}, test::cpu_devices(count), options);
    SGD sgd(model, {.lr = 0.01, .momentum = 0.5});
    for (int i = 0; i < 3; ++i) model.step(sgd, images.batch(0, 64), images.targets(0, 64), nll_loss);
    model.synchronize();
    arena = model.parameter_store()->parameters()[0].bytes();
    parameters = model.parameter_store()->parameters()[0].segments.size();
    std::vector<std::size_t> result;
    for (int d = 0; d < count; ++d) {
        result.push_back(memory_stats(Device::cpu(d)).peak - before[static_cast<std::size_t>(d)]);
        std::printf("cpu:%d peak %zu bytes\n", d, result.back());
    }
    return result;
}

}  // namespace

TEST_CASE("slice-wise, loss per replica: device 0 has at most 5% more than the others") {
    EngineOptions options;
    options.reduction = ReductionMode::slice_wise;
    std::size_t arena = 0, parameters = 0;
    const std::vector<std::size_t> found = peaks(options, arena, parameters);
    for (int d = 1; d < devices; ++d)
        CHECK(static_cast<double>(found[0]) <= 1.05 * static_cast<double>(found[static_cast<std::size_t>(d)]));
}

TEST_CASE("default mode: device 0 has extra memory for the optimizer's state and the scratch of sums only") {
    std::size_t arena = 0, parameters = 0;
    const std::vector<std::size_t> found = peaks({}, arena, parameters);
    // Momentum; the table of settings and, while it is replaced, the new one; a piece of a sum for each of 17 levels.
    const std::size_t excess =
        block(arena) + 2 * block(parameters * sizeof(RowWith<SgdOptions>)) + block(17 * 4096 * sizeof(float));
    for (std::size_t d = 1; d < found.size(); ++d) {
        CHECK(found[d] == found[1]);
        CHECK(found[0] >= found[d] + excess);
        CHECK(found[0] <= found[d] + excess + 512);  // words that the library holds permanently, if they are new
    }
}

TEST_CASE("partial sums beyond a device's first use two buckets each, for any size of model") {
    // Eight shards on three devices: nodes [0, 2) [2, 3), [3, 4) [4, 6), [6, 8): one more than the first on devices 0
    // and 1, none on device 2. A shard's activations are the same whatever the buckets.
    std::vector<std::vector<std::size_t>> found;
    const std::vector<std::size_t> bucket_bytes{1 << 19, 1 << 17};
    std::vector<std::size_t> slots;
    for (const std::size_t bytes : bucket_bytes) {
        std::size_t arena = 0, parameters = 0;
        found.push_back(peaks({.shards = 8, .bucket_bytes = bytes}, arena, parameters, 3));
        // fc1.weight has 4608 KiB, and the elements before it 6: ten pieces of at most half a MiB, or thirty-seven.
        const std::size_t elements = 64 + 1280 + 128 + 128 * 9216;
        const std::size_t pieces = bytes == (1 << 19) ? 10 : 37;
        const std::size_t grains = (elements + 63) / 64;
        slots.push_back(block(2 * ((grains + pieces - 1) / pieces * 64 * sizeof(float))));
    }
    CHECK(found[0][0] - found[1][0] == slots[0] - slots[1]);
    CHECK(found[0][1] - found[1][1] == slots[0] - slots[1]);
    CHECK(found[0][2] == found[1][2]);
}
