// With eight shards a training run leaves the same checkpoint for any devices, reduction, number of cores and timing;
// and that checkpoint is correct. Every run is a separate process.
#include <cmath>
#include <map>
#include <sstream>

#include "lockstep/parallel/data/safetensors.h"
#include "lockstep/runtime/placement.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/files.h"
#include "lockstep/tests/fixtures/nets.h"
#include "lockstep/tests/fixtures/pairwise.h"
#include "lockstep/tests/fixtures/processes.h"
#include "lockstep/tests/reference/network.h"

using namespace lockstep;

namespace {

struct TrainingRun {
    std::string net = "small";
    int devices = 1;
    std::string reduction = "root";
    std::size_t bucket_bytes = std::size_t{1} << 20;
    std::int64_t rows = 404;  // batches of 64; the last one has 20 rows: shards of 3,3,3,3,3,3,2
    int epochs = 2;
    int shards = 8;
    int delay_us = 0;  ///< longest delay that is injected before a piece of work
    int cores = 0;     ///< 0: all
    std::string optimizer = "sgd";
};

struct Result {
    std::string checkpoint;  ///< bytes of the file
    std::vector<std::uint64_t> operations;
};

const test::TemporaryDirectory& directory() {
    static const test::TemporaryDirectory instance;
    return instance;
}

Result train(const TrainingRun& run) {
    const std::string file = directory() / "checkpoint.safetensors", output = directory() / "output";
    std::filesystem::remove(file);
    test::ChildProcess child;
    child.command = {TRAIN_CHECKPOINT,
                     run.net,
                     std::to_string(run.devices),
                     std::to_string(run.shards),
                     run.reduction,
                     std::to_string(run.bucket_bytes),
                     std::to_string(run.rows),
                     std::to_string(run.epochs),
                     file,
                     run.optimizer};
    child.environment = {{"LOCKSTEP_CPU_DEVICES", std::to_string(run.devices)},
                         {"LOCKSTEP_INJECT_DELAYS", std::to_string(run.delay_us)}};
    child.cores = run.cores;
    child.output = output;
    INFO(run.net << " on " << run.devices << " devices, " << run.reduction << ", " << run.rows << " rows, delays "
                 << run.delay_us << ", cores " << run.cores << ", buckets " << run.bucket_bytes << ", "
                 << run.optimizer);
    REQUIRE(test::run_child(child) == 0);
    Result result;
    result.checkpoint = test::get_bytes(file);
    std::istringstream numbers(test::get_bytes(output));
    for (std::uint64_t count = 0; numbers >> count;) result.operations.push_back(count);
    REQUIRE(result.operations.size() == static_cast<std::size_t>(run.devices));
    return result;
}

/// Every shard of every batch has the same number of operations, on the device that holds it.
void check_spread(const TrainingRun& run, const std::vector<std::uint64_t>& operations) {
    std::vector<std::uint64_t> shards(operations.size(), 0);
    std::uint64_t all_shards = 0, all_operations = 0;
    for (std::int64_t first = 0; first < run.rows; first += 64) {
        const int present = cut_batch(std::min<std::int64_t>(64, run.rows - first), run.shards).present;
        for (int d = 0; d < run.devices; ++d) {
            const ShardRange held = run_of(d, run.devices, run.shards);
            shards[static_cast<std::size_t>(d)] +=
                static_cast<std::uint64_t>(std::max(0, std::min(held.last, present) - held.first));
        }
    }
    for (const std::uint64_t count : shards) all_shards += count;
    for (const std::uint64_t count : operations) all_operations += count;
    for (std::size_t d = 0; d < shards.size(); ++d) {
        CHECK(operations[d] > 0);
        CHECK(operations[d] * all_shards == all_operations * shards[d]);
    }
}

void check_equal(const Result& expected, const TrainingRun& run) {
    const Result found = train(run);
    INFO(run.net << " on " << run.devices << " devices, " << run.reduction << ", " << run.rows << " rows, delays "
                 << run.delay_us << ", cores " << run.cores << ", buckets " << run.bucket_bytes << ", "
                 << run.optimizer);
    CHECK(found.checkpoint.size() == expected.checkpoint.size());
    CHECK((found.checkpoint == expected.checkpoint));  // in parentheses: files are not printed
    check_spread(run, found.operations);
}

void check_all(TrainingRun run, const std::vector<int>& devices) {
    const Result expected = train(run);  // on one device
    check_spread(run, expected.operations);
    check_equal(expected, run);  // two runs are equal
    for (run.devices = 1; run.devices <= devices.back(); ++run.devices) {
        if (std::find(devices.begin(), devices.end(), run.devices) == devices.end()) continue;
        TrainingRun other = run;
        if (run.devices > 1) check_equal(expected, other);
        other.reduction = "slices";
        check_equal(expected, other);
    }
}

std::map<std::string, reference::Values> load(const std::string& bytes) {
    const std::filesystem::path file = directory() / "loaded.safetensors";
    test::put_bytes(file, bytes);
    const SafetensorsFile tensors(file);
    std::map<std::string, reference::Values> result;
    for (const SafetensorsEntry& entry : tensors.entries()) {
        if (entry.dtype != DType::f32) continue;
        std::vector<float> values(entry.bytes / sizeof(float));
        tensors.read(entry.name, std::as_writable_bytes(std::span(values)));
        result[entry.name].assign(values.begin(), values.end());
    }
    return result;
}

/// ||found - expected|| / ||moved||, where `moved` is the change by training.
double distance(const reference::Values& found, const reference::Values& expected, const reference::Values& before) {
    double error = 0, moved = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        error += (found[i] - expected[i]) * (found[i] - expected[i]);
        moved += (expected[i] - before[i]) * (expected[i] - before[i]);
    }
    return std::sqrt(error / moved);
}

/// Trains the reference in the same way as train_checkpoint trains the model.
void train_reference(reference::Network& network, const TrainingRun& run, std::uint64_t seed) {
    const test::Images images(run.rows);
    StepCounters state;
    state.seed = seed;
    for (int epoch = 0; epoch < run.epochs; ++epoch)
        for (std::int64_t first = 0; first < run.rows; first += 64) {
            const std::int64_t last = std::min(first + 64, run.rows);
            const std::vector<float> pixels = images.batch(first, last).to_vector<float>();
            network.step({pixels.begin(), pixels.end()}, images.batch_labels(first, last), run.shards, state, 0.01,
                         0.5);
            ++state.step;
        }
}

reference::Network small_reference(const std::map<std::string, reference::Values>& before) {
    reference::Network network(10);
    for (const auto& [name, values] : before) network.weights[name].value = values;
    network.add_weighted<reference::ConvLayer>("conv1", 1, 28, 10, 5);
    network.add<reference::PoolLayer>(24u);
    network.add<reference::ReluLayer>();
    network.add_weighted<reference::ConvLayer>("conv2", 10, 12, 20, 5);
    network.add<reference::DropoutLayer>(0u, 0.5, 20u, 64u);
    network.add<reference::PoolLayer>(8u);
    network.add<reference::ReluLayer>();
    network.add_weighted<reference::LinearLayer>("fc1", 320u, 50u);
    network.add<reference::ReluLayer>();
    network.add<reference::DropoutLayer>(1u, 0.5, 50u, 1u);
    network.add_weighted<reference::LinearLayer>("fc2", 50u, 10u);
    return network;
}

}  // namespace

TEST_CASE("pairwise combinations contain every pair of values") {
    for (const std::vector<std::size_t>& sizes : std::vector<std::vector<std::size_t>>{
             {2, 2}, {3, 1, 4}, {2, 2, 2, 2, 2}, {6, 6, 3, 2}, {3, 2, 6, 2, 3, 2, 3, 6}}) {
        std::size_t product = 1;
        for (const std::size_t size : sizes) product *= size;
        const std::vector<test::Combination> rows = test::pairwise(sizes);
        CHECK(rows.size() <= product);
        for (std::size_t b = 1; b < sizes.size(); ++b)
            for (std::size_t a = 0; a < b; ++a)
                for (std::size_t i = 0; i < sizes[a]; ++i)
                    for (std::size_t j = 0; j < sizes[b]; ++j)
                        CHECK(std::any_of(rows.begin(), rows.end(),
                                          [&](const test::Combination& row) { return row[a] == i && row[b] == j; }));
        for (const test::Combination& row : rows) {
            REQUIRE(row.size() == sizes.size());
            for (std::size_t option = 0; option < sizes.size(); ++option) CHECK(row[option] < sizes[option]);
        }
    }
    CHECK(test::pairwise({3, 2, 6, 2, 3, 2, 3, 6}).size() < 50);  // there are 7776 combinations
}

// The full product, one option after the other, is hidden: it takes about 150 processes.
TEST_CASE("one checkpoint for all devices, reductions, buckets, delays, cores and optimizers") {
    const std::vector<std::string> nets{"small", "normed", "cnn"}, reductions{"root", "slices"},
        optimizers{"sgd", "adam", "adamw", "rmsprop", "adagrad", "lion"};
    const std::vector<std::int64_t> rows{84, 69};  // last batches of 20 and of 5 rows, fewer than there are shards
    const std::vector<int> devices{1, 2, 3, 4, 5, 8}, delays{0, 200}, cores{0, 1, 2};
    const std::vector<std::size_t> buckets{std::size_t{1} << 20, 4096, 20000};  // the last ones begin within parameters
    std::map<std::string, Result> expected;  // on one device, by the options that determine the result
    for (const test::Combination& at :
         test::pairwise({nets.size(), rows.size(), optimizers.size(), devices.size(), reductions.size(), buckets.size(),
                         delays.size(), cores.size()})) {
        TrainingRun run;
        run.net = nets[at[0]];
        run.rows = rows[at[1]];
        run.optimizer = optimizers[at[2]];
        const auto [one, is_new] = expected.try_emplace(run.net + std::to_string(run.rows) + run.optimizer);
        if (is_new) one->second = train(run);
        run.devices = devices[at[3]];
        run.reduction = reductions[at[4]];
        run.bucket_bytes = buckets[at[5]];
        run.delay_us = delays[at[6]];
        run.cores = cores[at[7]];
        check_equal(one->second, run);
    }
    CHECK(expected.size() >= nets.size() * optimizers.size());
}

TEST_CASE("small: one checkpoint for all devices and reductions", "[.full]") {
    for (const std::int64_t rows : {404, 389}) {  // 389: the last batch has 5 rows, fewer than there are shards
        TrainingRun run;
        run.rows = rows;
        check_all(run, {1, 2, 3, 4, 5, 8});
    }
}

TEST_CASE("batch normalisation and two dropouts: one checkpoint for all devices and reductions", "[.full]") {
    for (const std::int64_t rows : {404, 389}) {
        TrainingRun run;
        run.net = "normed";
        run.rows = rows;
        check_all(run, {1, 2, 3, 4, 5, 8});
    }
}

TEST_CASE("cnn: one checkpoint for all devices and reductions", "[.full]") {
    for (const std::int64_t rows : {84, 69}) {  // last batches of 20 and 5 rows
        TrainingRun run;
        run.net = "cnn";
        run.rows = rows;
        check_all(run, {1, 3, 8});
    }
}

TEST_CASE("buckets, cores and random delays do not change the checkpoint", "[.full]") {
    for (const char* net : {"small", "normed"}) {
        TrainingRun run;
        run.net = net;
        const Result expected = train(run);
        for (const int devices : {1, 3, 8})
            for (const char* reduction : {"root", "slices"}) {
                TrainingRun other = run;
                other.devices = devices;
                other.reduction = reduction;
                other.bucket_bytes = 4096;
                check_equal(expected, other);
                other.delay_us = 200;
                check_equal(expected, other);
            }
        for (const int devices : {1, 2})
            for (const int cores : {1, 2}) {
                TrainingRun other = run;
                other.devices = devices;
                other.cores = cores;
                check_equal(expected, other);
            }
    }
    TrainingRun run;
    run.net = "cnn";
    run.rows = 84;
    run.epochs = 1;
    const Result expected = train(run);
    for (const int cores : {1, 2}) {
        TrainingRun other = run;
        other.cores = cores;
        check_equal(expected, other);
    }
    run.devices = 3;
    run.delay_us = 500;
    check_equal(expected, run);
}

TEST_CASE("every optimizer: one checkpoint for all devices and reductions", "[.full]") {
    for (const char* optimizer : {"adam", "adamw", "rmsprop", "adagrad", "lars", "lamb", "lion"}) {
        TrainingRun run;
        run.epochs = 1;
        run.optimizer = optimizer;
        run.bucket_bytes = 20000;  // slices and buckets that begin within parameters
        check_all(run, {1, 3, 8});
    }
}

TEST_CASE("another number of shards changes the bits, so the comparison can fail") {
    TrainingRun run;
    const Result eight = train(run);
    run.shards = 7;
    CHECK_FALSE((train(run).checkpoint == eight.checkpoint));
}

TEST_CASE("small: parameters agree with the reference in double that uses the same masks") {
    TrainingRun run;
    run.devices = 3;
    const auto found = load(train(run).checkpoint);
    run.epochs = 0;
    run.devices = 1;
    const auto before = load(train(run).checkpoint);
    run.epochs = 2;
    REQUIRE(before.size() == 8);

    reference::Network network = small_reference(before), other_masks = small_reference(before);
    train_reference(network, run, 5);
    train_reference(other_masks, run, 6);
    for (const auto& [name, weight] : network.weights) {
        INFO(name);
        CHECK(distance(found.at(name), weight.value, before.at(name)) < 1e-3);
        CHECK(distance(found.at(name), other_masks.weights.at(name).value, before.at(name)) > 1e-2);
    }
}

TEST_CASE("batch normalisation: parameters and running statistics agree with the reference in double") {
    TrainingRun run;
    run.net = "normed";
    run.devices = 3;
    const auto found = load(train(run).checkpoint);
    run.epochs = 0;
    run.devices = 1;
    const auto before = load(train(run).checkpoint);
    run.epochs = 2;

    reference::Network network(10);
    for (const auto& [name, values] : before)
        if (name.find("running") == std::string::npos) network.weights[name].value = values;
    network.add_weighted<reference::ConvLayer>("conv", 1, 28, 8, 5);
    auto& norm = network.add_weighted<reference::BatchNormLayer>("norm", 8u, 24u * 24u);
    network.add<reference::ReluLayer>();
    network.add<reference::PoolLayer>(24u);
    network.add<reference::DropoutLayer>(0u, 0.25, 8u, 144u);
    network.add_weighted<reference::LinearLayer>("fc1", 1152u, 32u);
    network.add<reference::ReluLayer>();
    network.add<reference::DropoutLayer>(1u, 0.5, 32u, 1u);
    network.add_weighted<reference::LinearLayer>("fc2", 32u, 10u);
    train_reference(network, run, 5);
    for (const auto& [name, weight] : network.weights) {
        if (name == "conv.bias") continue;  // normalisation cancels it: its gradient is only rounding error
        INFO(name);
        CHECK(distance(found.at(name), weight.value, before.at(name)) < 1e-3);
    }
    for (std::size_t c = 0; c < norm.running_mean.size(); ++c) {
        CHECK(found.at("norm.running_mean")[c] == Approx(norm.running_mean[c]).epsilon(1e-4).margin(1e-5));
        CHECK(found.at("norm.running_var")[c] == Approx(norm.running_var[c]).epsilon(1e-4));
    }
}
