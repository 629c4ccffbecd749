// Steps over rows of different lengths: the same bits on any devices, in microbatches and under autocast, and errors.
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/loader.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/packed.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

std::vector<float> packed_on(int devices, const ls::EngineOptions& options, const ls::StepOptions& step = {}) {
    ls::manual_seed(91);
    ls::DataParallel<PackedNet> model(PackedNet(), cpu_devices(devices), options);
    return trained_packed(model, step);
}

ls::Tensor packed_numbers(const std::vector<std::int64_t>& values) {
    return ls::Tensor::from(values, {static_cast<std::int64_t>(values.size())});
}

/// Uses lengths that belong to no batch.
struct FixedLengths {
    ls::GRU gru{3, 2};
    LOCKSTEP_MEMBERS(gru)
    ls::Tensor forward(const ls::Tensor& x) {
        return gru(ls::pack_padded_sequence(x, ls::Tensor::full({x.size(0)}, 1, ls::DType::i64, x.device()))).output;
    }
};

}  // namespace

TEST_CASE("packed rows get the same bits on 1, 2 and 3 devices, in microbatches and under autocast") {
    struct Case {
        std::optional<ls::DType> autocast;
        int parts;
    };
    for (const Case& c : {Case{{}, 1}, Case{{}, 2}, Case{ls::DType::f16, 1}, Case{ls::DType::bf16, 2}}) {
        INFO((c.autocast ? ls::name_of(*c.autocast) : "f32") << ", " << c.parts << " microbatches");
        const ls::EngineOptions options{.shards = 8, .autocast = c.autocast};
        const ls::StepOptions step{.accumulation_steps = c.parts};
        const std::vector<float> one = packed_on(1, options, step);
        CHECK(one[3] < one[0]);
        for (const int devices : {2, 3}) CHECK(packed_on(devices, options, step) == one);
    }
}

TEST_CASE("padding of packed rows has no effect on a step, also if it is NaN") {
    const std::vector<float> clean = packed_on(2, {.shards = 2});
    const PackedBatch batch;
    ls::manual_seed(91);
    ls::DataParallel<PackedNet> model(PackedNet(), cpu_devices(2), {.shards = 2});
    CHECK(trained_packed(model, {}, batch.with_padding(std::numeric_limits<double>::quiet_NaN())) == clean);
}

TEST_CASE("a length out of range refuses the step and names the row of the batch") {
    const PackedBatch batch;
    ls::manual_seed(91);
    ls::DataParallel<PackedNet> model(PackedNet(), cpu_devices(3), {.shards = 8});
    ls::SGD sgd(model, {.lr = 0.1});
    const std::vector<float> before = flat_weights_of(model);
    for (const std::int64_t wrong : {std::int64_t{0}, PackedBatch::length + 1}) {
        std::vector<std::int64_t> lengths = batch.lengths.to_vector<std::int64_t>();
        lengths[7] = wrong;
        const std::string message = message_of<ls::StepError>([&] {
            model.step(sgd, std::tuple(batch.x, packed_numbers(lengths)), batch.labels, ls::cross_entropy).item();
        });
        CAPTURE(message);
        CHECK(contains(message, std::to_string(wrong == 0 ? -1 : wrong) + " in row 7 of the batch is out of range"));
        CHECK(flat_weights_of(model) == before);
    }
    CHECK(model.step(sgd, std::tuple(batch.x, batch.lengths), batch.labels, ls::cross_entropy).item() > 0);
}

TEST_CASE("lengths without the rows of the batch are refused") {
    ls::DataParallel<FixedLengths> model(FixedLengths(), cpu_devices(2));
    CHECK(contains(message_of<ls::InvalidArgument>([&] {
                       model.forward(ls::Tensor::ones({4, 2, 3}));
                   }),
                   "pack_padded_sequence: input is a batch and lengths is not"));
}

TEST_CASE("a loader delivers padded rows and their lengths") {
    const PackedBatch batch;
    std::vector<ls::Tensor> sequences;
    const std::vector<std::int64_t> lengths = batch.lengths.to_vector<std::int64_t>();
    for (std::size_t n = 0; n < lengths.size(); ++n)
        sequences.push_back(batch.x.select(0, static_cast<std::int64_t>(n)).slice(0, 0, lengths[n]).contiguous());
    const ls::Tensor padded = ls::pad_sequence(sequences, true);
    CHECK(padded.shape() == batch.x.shape());
    const auto trained = [&](int devices) {
        ls::manual_seed(91);
        ls::DataParallel<PackedNet> model(PackedNet(), cpu_devices(devices), {.shards = 4});
        ls::SGD sgd(model, {.lr = 0.1});
        ls::Loader rows(model, ls::TensorDataset(padded, batch.lengths, batch.labels),
                        {.batch_size = 6, .shuffle = true, .seed = 1});
        for (auto& [x, length, labels] : rows.epoch(0))
            model.step(sgd, std::tuple(x, length), labels, ls::cross_entropy);
        return flat_weights_of(model);
    };
    CHECK(trained(1) == trained(3));
}
