// Rows of all shards in forward: a contrastive loss on 8 shards and 1, 2, 3 and 8 devices, compared with the whole
// batch in double precision.
#include <vector>

#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/contrastive.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct GatheredWeights {
    Linear fc{row_size, embedding_size};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) const { return fc(x) + sum(gather_shards(fc.weight.tensor())); }
};

}  // namespace

TEST_CASE("rows of all shards in forward: a contrastive loss does not depend on the number of devices") {
    manual_seed(41);
    const Contrastive net;
    const std::vector<double> start = values_of(net);
    for (const std::int64_t rows : {16, 20, 15, 5, 2}) {
        const Batch batch(rows);
        const std::vector<float> x = batch.x.to_vector<float>();
        const std::vector<double> expected = gradient_in_double(start, x);
        std::vector<double> first;
        for (const int k : {1, 2, 3, 8}) {
            INFO(rows << " rows on " << k << " devices");
            constexpr double rate = 1 << 20;  // the parameters' own digits do not matter in the difference
            DataParallel<Contrastive> model(net, cpu_devices(k), {.shards = 8});
            SGD sgd(model, {.lr = rate});
            CHECK(model.step(sgd, batch.x, batch.labels, cross_entropy).item() ==
                  Approx(loss_in_double(start, x)).epsilon(1e-5));
            const std::vector<double> after = values_of(*model);
            for (std::size_t i = 0; i < after.size(); ++i)
                CHECK((start[i] - after[i]) / rate == Approx(expected[i]).margin(3e-6));
            if (first.empty()) first = after;
            CHECK(after == first);
        }
    }
}

TEST_CASE("batches with equal shards and different numbers of them are different programs") {
    manual_seed(42);
    DataParallel<Contrastive> model(Contrastive{}, cpu_devices(2), {.shards = 8});
    SGD sgd(model, {.lr = 0.1});
    for (const std::int64_t rows : {16, 14, 16, 12, 14}) {
        const Batch batch(rows);
        const double expected = loss_in_double(values_of(*model), batch.x.to_vector<float>());
        CHECK(model.step(sgd, batch.x, batch.labels, cross_entropy).item() == Approx(expected).epsilon(1e-5));
        CHECK(model(batch.x).shape() == Shape{rows, rows});
    }
}

TEST_CASE("eager use has one shard; microbatches and tensors without rows are refused") {
    manual_seed(43);
    Contrastive net;
    const Batch batch(6);
    const Loss loss = cross_entropy(net.forward(batch.x), batch.labels);
    CHECK(loss.item() == Approx(loss_in_double(values_of(net), batch.x.to_vector<float>())).epsilon(1e-5));
    loss.backward();
    const std::vector<double> expected = gradient_in_double(values_of(net), batch.x.to_vector<float>());
    const std::vector<float> of_weight = net.fc.weight->grad().to_vector<float>();
    for (std::size_t i = 0; i < of_weight.size(); ++i) CHECK(of_weight[i] == Approx(expected[i]).margin(3e-6));
    CHECK(row_numbers(batch.x).to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2, 3, 4, 5});

    DataParallel<Contrastive> model(net, cpu_devices(2), {.shards = 4});
    SGD sgd(model, {.lr = 0.1});
    CHECK_THAT(message_of<InvalidArgument>(
                   [&] { model.step(sgd, batch.x, batch.labels, cross_entropy, {.accumulation_steps = 2}); }),
               contains("gather_shards: a microbatch has only some rows of the batch"));
    DataParallel<GatheredWeights> wrong(GatheredWeights{}, cpu_devices(1));
    CHECK_THAT(message_of<InvalidArgument>([&] { wrong(batch.x); }),
               contains("gather_shards: dimension 0 of the tensor (3, 4) is not the batch"));
}
