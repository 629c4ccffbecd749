// Copies of a step between devices, one by one: docs/reduction.md has the list and the formulas.
#include <numeric>

#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/internal/copy_count.h"
#include "lockstep/runtime/status.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"

using namespace lockstep;

namespace {

using Counts = std::map<std::pair<Device, Device>, copy_count::Count>;

struct Setting {
    int devices = 2;
    int shards = 0;  ///< 0: one per device
    ReductionMode reduction = ReductionMode::root;
    std::size_t bucket_bytes = std::size_t{1} << 20;  ///< the default depends on the caches of the machine
    std::int64_t rows = 64;
    int accumulation_steps = 1;
};

/// The copies of one step, added up kind by kind.
class ExpectedCopies {
public:
    explicit ExpectedCopies(const Setting& setting)
        : setting_(setting),
          shards_(setting.shards > 0 ? setting.shards : setting.devices),
          cut_(cut_batch(setting.rows, shards_)) {}

    /// The following rows and shards are those of one microbatch.
    void begin_microbatch(const BatchCut& cut) { cut_ = cut; }
    void end_microbatches() { cut_ = cut_batch(setting_.rows, shards_); }

    /// Rows are copied directly to the device of their shard.
    void scatter(std::size_t row_bytes) {
        for (int shard = 0; shard < cut_.present; ++shard)
            add(Device::host(), device_of(shard), row_bytes * static_cast<std::size_t>(cut_.rows_of(shard)));
    }
    /// Device 0 reads the other shards' operands, and every other shard reads the results.
    void across_shards(const std::vector<std::size_t>& operand_bytes) {
        for (int shard = 0; shard < cut_.present; ++shard)
            for (const std::size_t bytes : operand_bytes) {
                add(device_of(shard), Device::cpu(0), bytes);
                add(Device::cpu(0), device_of(shard), bytes);
            }
    }
    /// Device 0 reads every shard's weight of the loss.
    void shard_weights() {
        for (int shard = 0; shard < cut_.present; ++shard) add(device_of(shard), Device::cpu(0), sizeof(float));
    }
    /// The sum of the weights, in microbatches.
    void pooled_weight() { to_all_others(sizeof(float)); }
    /// One word of every shard, the agreed one to every device, and the results of the step for the host.
    void status_and_loss() {
        for (int shard = 0; shard < cut_.present; ++shard) add(device_of(shard), Device::cpu(0), sizeof(StatusWord));
        to_all_others(sizeof(StatusWord));
        add(Device::cpu(0), Device::host(), sizeof(StatusWord));
        add(Device::cpu(0), Device::host(), sizeof(float));
    }
    void buffers(std::size_t arena_bytes) { to_all_others(arena_bytes); }
    /// Partial sums in, parameters out, for a bucket of that many f32 elements.
    void bucket(std::int64_t elements) {
        partial_sums(elements);
        parameters(elements);
    }
    void partial_sums(std::int64_t elements) {
        for (int d = 0; d < setting_.devices; ++d)
            for (const Device from : nodes()) add(from, Device::cpu(d), bytes_of(part_of(d, elements)));
    }
    void parameters(std::int64_t elements) {
        for (int d = 0; d < setting_.devices; ++d)
            for (int other = 0; other < setting_.devices; ++other)
                add(Device::cpu(d), Device::cpu(other), bytes_of(part_of(d, elements)));
    }
    const Counts& counts() const { return counts_; }
    std::uint64_t bytes_between_devices() const {
        std::uint64_t bytes = 0;
        for (const auto& [pair, count] : counts_)
            if (!pair.first.is_host() && !pair.second.is_host()) bytes += count.bytes;
        return bytes;
    }

private:
    static std::size_t bytes_of(std::int64_t elements) { return sizeof(float) * static_cast<std::size_t>(elements); }
    void add(Device from, Device to, std::size_t bytes) {
        if (from == to || bytes == 0) return;
        ++counts_[{from, to}].copies;
        counts_[{from, to}].bytes += bytes;
    }
    void to_all_others(std::size_t bytes) {
        for (int d = 1; d < setting_.devices; ++d) add(Device::cpu(0), Device::cpu(d), bytes);
    }
    Device device_of(int shard) const {
        for (int d = 0; d < setting_.devices; ++d) {
            const ShardRange run = run_of(d, setting_.devices, shards_);
            if (run.first <= shard && shard < run.last) return Device::cpu(d);
        }
        throw std::logic_error("no device has that shard");
    }
    /// The device of every partial sum.
    std::vector<Device> nodes() const {
        std::vector<Device> found;
        for (int d = 0; d < setting_.devices; ++d)
            found.insert(found.end(), tree_nodes(run_of(d, setting_.devices, shards_), cut_.present).size(),
                         Device::cpu(d));
        return found;
    }
    /// Elements of a bucket that a device sums and updates.
    std::int64_t part_of(int device, std::int64_t elements) const {
        if (setting_.reduction == ReductionMode::root) return device == 0 ? elements : 0;
        return slice_begin(device + 1, elements) - slice_begin(device, elements);
    }
    std::int64_t slice_begin(int device, std::int64_t elements) const {
        return std::min((elements + 63) / 64 * device / setting_.devices * 64, elements);
    }

    Setting setting_;
    int shards_;
    BatchCut cut_;
    Counts counts_;
};

/// Copies of the fourth of four steps.
template <class Net>
Counts copies_of_step(const Setting& setting, const Tensor& x, const Tensor& y) {
    EngineOptions options;
    options.shards = setting.shards;
    options.reduction = setting.reduction;
    options.bucket_bytes = setting.bucket_bytes;
    DataParallel<Net> model(Net{}, test::cpu_devices(setting.devices), options);
    SGD sgd(model, {.lr = 0.01, .momentum = 0.5});
    const StepOptions how{setting.accumulation_steps};
    for (int i = 0; i < 3; ++i) model.step(sgd, x, y, nll_loss, how);
    model.synchronize();
    copy_count::reset();
    model.step(sgd, x, y, nll_loss, how).item();
    return copy_count::between_devices();
}

void check_equal(const Counts& found, const Counts& expected) {
    CHECK(found.size() == expected.size());
    for (const auto& [pair, count] : found) {
        INFO("from " << pair.first.str() << " to " << pair.second.str());
        REQUIRE(expected.contains(pair));
        CHECK(count.copies == expected.at(pair).copies);
        CHECK(count.bytes == expected.at(pair).bytes);
    }
}

constexpr std::int64_t dense_elements = 2 * (64 * 64 + 64);  // no gaps: every size is a multiple of 64
constexpr std::size_t dense_row_bytes = 64 * sizeof(float), label_bytes = sizeof(std::int64_t);

Counts dense_copies(const Setting& setting) {
    std::vector<std::int64_t> labels(static_cast<std::size_t>(setting.rows));
    std::iota(labels.begin(), labels.end(), 0);
    return copies_of_step<test::Dense>(setting, Tensor::rand({setting.rows, 64}), Tensor::from(labels, {setting.rows}));
}

ExpectedCopies expected_dense(const Setting& setting, const std::vector<std::int64_t>& buckets = {dense_elements}) {
    ExpectedCopies expected(setting);
    expected.scatter(dense_row_bytes);
    expected.scatter(label_bytes);
    expected.across_shards({sizeof(float), sizeof(float)});  // numerator and weight of the loss
    expected.status_and_loss();
    for (const std::int64_t elements : buckets) expected.bucket(elements);
    return expected;
}

}  // namespace

TEST_CASE("two devices with one shard each: every copy of a step, listed by hand") {
    const Setting setting;
    const Counts found = dense_copies(setting);
    const Device host = Device::host(), first = Device::cpu(0), second = Device::cpu(1);
    REQUIRE(found.size() == 5);
    constexpr std::uint64_t parameters = dense_elements * 4, word = sizeof(StatusWord);
    for (const Device device : {first, second}) {  // 32 rows and 32 labels
        CHECK(found.at({host, device}).copies == 2);
        CHECK(found.at({host, device}).bytes == 32 * (dense_row_bytes + label_bytes));
    }
    CHECK(found.at({second, first}).copies == 4);  // two loss terms, the status word, the gradients
    CHECK(found.at({second, first}).bytes == 4 + 4 + word + parameters);
    CHECK(found.at({first, second}).copies == 4);  // their sums, the agreed word, the weights
    CHECK(found.at({first, second}).bytes == 4 + 4 + word + parameters);
    CHECK(found.at({first, host}).copies == 2);  // the agreed word and the loss
    CHECK(found.at({first, host}).bytes == word + 4);
}

TEST_CASE("one shard per device: parameters are copied in and out once per other device, and so are scalars") {
    for (const int devices : {1, 2, 3, 4, 5, 8})
        for (const std::int64_t rows : {64, 20, 5}) {
            Setting setting;
            setting.devices = devices;
            setting.rows = rows;
            INFO(devices << " devices, " << rows << " rows");
            const ExpectedCopies expected = expected_dense(setting);
            check_equal(dense_copies(setting), expected.counts());

            const auto others = static_cast<std::uint64_t>(devices - 1);
            const auto senders = static_cast<std::uint64_t>(cut_batch(rows, devices).present - 1);
            CHECK(expected.bytes_between_devices() == (senders + others) * dense_elements * 4 +
                                                          senders * (4 * 4 + sizeof(StatusWord)) +
                                                          others * sizeof(StatusWord));
        }
}

TEST_CASE("more shards than devices: partial sums follow the formula in both modes") {
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise})
        for (const int devices : {1, 2, 3, 5, 8})
            for (const std::int64_t rows : {64, 20, 5}) {
                Setting setting;
                setting.devices = devices;
                setting.shards = 8;
                setting.reduction = reduction;
                setting.rows = rows;
                INFO(devices << " devices, " << rows << " rows, "
                             << (reduction == ReductionMode::root ? "root" : "slices"));
                check_equal(dense_copies(setting), expected_dense(setting).counts());
            }
}

TEST_CASE("microbatches: partial sums once each, parameters once, targets twice") {
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise})
        for (const int devices : {1, 2, 3, 8})
            for (const int shards : {0, 8})
                for (const std::int64_t rows : {64, 29, 17}) {
                    Setting setting;
                    setting.devices = devices;
                    setting.shards = shards;
                    setting.reduction = reduction;
                    setting.rows = rows;
                    setting.accumulation_steps = 3;
                    INFO(devices << " devices, " << shards << " shards, " << rows << " rows, "
                                 << (reduction == ReductionMode::root ? "root" : "slices"));
                    ExpectedCopies expected(setting);
                    const BatchCut whole = cut_batch(rows, shards > 0 ? shards : devices);
                    for (const BatchCut& cut : cut_microbatches(whole, 3)) {
                        expected.begin_microbatch(cut);
                        expected.scatter(label_bytes);
                        expected.shard_weights();
                        expected.scatter(dense_row_bytes);
                        expected.scatter(label_bytes);
                        expected.across_shards({sizeof(float)});  // the numerator
                        expected.partial_sums(dense_elements);
                    }
                    expected.end_microbatches();
                    expected.pooled_weight();
                    expected.status_and_loss();
                    expected.parameters(dense_elements);
                    check_equal(dense_copies(setting), expected.counts());
                }
}

TEST_CASE("slices: with one shard per device, all devices send and receive the same amount") {
    Setting setting;
    setting.devices = setting.shards = 5;  // 130 pieces of 64 elements: 26 each
    setting.reduction = ReductionMode::slice_wise;
    setting.rows = 65;  // at most 64 classes
    std::vector<std::int64_t> labels(65, 3);
    const Counts found = copies_of_step<test::Dense>(setting, Tensor::rand({65, 64}), Tensor::from(labels, {65}));
    check_equal(found, expected_dense(setting).counts());
    for (int from = 1; from < 5; ++from)
        for (int to = 1; to < 5; ++to)
            if (from != to) CHECK(found.at({Device::cpu(from), Device::cpu(to)}).bytes == 2 * dense_elements / 5 * 4);
}

TEST_CASE("smaller buckets: more copies, the same bytes") {
    for (const ReductionMode reduction : {ReductionMode::root, ReductionMode::slice_wise}) {
        Setting setting;
        setting.devices = 3;
        setting.reduction = reduction;
        setting.bucket_bytes = 4096;
        // A layer each, bias and weights: 65 times 64 elements, 4 bytes each, in five pieces of 13 times 64.
        check_equal(dense_copies(setting), expected_dense(setting, std::vector<std::int64_t>(10, 13 * 64)).counts());
    }
}

TEST_CASE("batch normalisation adds its pooled statistics and the buffers") {
    for (const int devices : {2, 4}) {
        Setting setting;
        setting.devices = devices;
        const test::Images images(64);
        const Counts found = copies_of_step<test::Normed>(setting, images.batch(0, 64), images.targets(0, 64));
        ExpectedCopies expected(setting);
        expected.scatter(28 * 28 * sizeof(float));
        expected.scatter(label_bytes);
        expected.across_shards({sizeof(float), sizeof(float)});
        expected.across_shards({(2 * 8 + 1) * sizeof(float)});  // mean, M2 and count of 8 channels
        expected.status_and_loss();
        expected.buffers(2 * 64 * sizeof(float));     // running mean and variance, each at a multiple of 64
        expected.buffers(64 * sizeof(std::int64_t));  // num_batches_tracked
        // From the last member to the first, each at a multiple of 64 elements: fc2 bias and weight, fc1 bias and
        // weight, norm, conv. The bucket ends with the last element of conv's weights.
        expected.bucket(64 + 320 + 64 + 32 * 1152 + 64 + 64 + 64 + 200);
        check_equal(found, expected.counts());
    }
}
