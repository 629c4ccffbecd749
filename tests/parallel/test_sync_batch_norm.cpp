// Batch normalization with the statistics of the whole batch: on several shards it computes the same as BatchNorm2d on
// the batch in one piece.
#include <cmath>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"

using namespace lockstep;

namespace {

struct Net {
    BatchNorm2d norm;
    explicit Net(BatchNorm2d n) : norm(std::move(n)) {}
    LOCKSTEP_MEMBERS(norm)
    Tensor forward(const Tensor& x) { return norm(x); }
};

struct Seen {
    std::vector<float> output, input_gradient, weight, bias, mean, variance;
};

template <class Model>
Seen pass(Model& model, BatchNorm2d& norm, const Tensor& values, const Tensor& direction) {
    const Tensor x = values.clone().requires_grad_();
    const Tensor y = model.forward(x);
    sum(y * direction.to(y.device())).backward();
    const auto floats = [](const Tensor& tensor) { return tensor.to_vector<float>(); };
    return {floats(y),
            floats(x.grad()),
            floats(norm.weight->tensor().grad()),
            floats(norm.bias->tensor().grad()),
            floats(norm.running_mean->tensor()),
            floats(norm.running_var->tensor())};
}

void check_close(const std::vector<float>& found, const std::vector<float>& expected) {
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).epsilon(1e-4).margin(2e-5));
}

}  // namespace

TEST_CASE("SyncBatchNorm on shards is equivalent to BatchNorm2d on the whole batch") {
    manual_seed(3);
    for (const std::int64_t rows : {8, 7, 3}) {
        const Tensor values = Tensor::randn({rows, 3, 4, 5}) * 2.0 + 1.0;
        const Tensor direction = Tensor::randn({rows, 3, 4, 5});
        Net whole{BatchNorm2d(3)};
        const Seen expected = pass(whole, whole.norm, values, direction);
        for (const int devices : {1, 2, 3}) {
            INFO(rows << " rows on " << devices << " devices");
            DataParallel model(Net{SyncBatchNorm(3)}, test::cpu_devices(devices), {.shards = 4});
            const Seen found = pass(model, model->norm, values, direction);
            check_close(found.output, expected.output);
            check_close(found.input_gradient, expected.input_gradient);
            check_close(found.weight, expected.weight);
            check_close(found.bias, expected.bias);
            check_close(found.mean, expected.mean);
            check_close(found.variance, expected.variance);
        }
        DataParallel other(Net{BatchNorm2d(3)}, test::cpu_devices(2), {.shards = 4});
        CHECK_FALSE(pass(other, other->norm, values, direction).output == expected.output);
    }
}

TEST_CASE("shards with one value per channel are normalised together, and convert_sync_batchnorm keeps all state") {
    const Tensor values = Tensor::from<float>({1, 2, 3, 6}, {4, 1, 1, 1});
    Net net{BatchNorm2d(1)};
    net.norm.running_mean->tensor().fill_(5);
    convert_sync_batchnorm(net);
    CHECK(net.norm.options.statistics == BatchNormStatistics::synchronized);
    DataParallel model(std::move(net), test::cpu_devices(2), {.shards = 4});
    const std::vector<float> found = model.forward(values).to_vector<float>();
    const double mean = 3, deviation = std::sqrt((4 + 1 + 0 + 9) / 4.0 + 1e-5);
    const std::vector<double> expected{-2 / deviation, -1 / deviation, 0, 3 / deviation};
    for (std::size_t i = 0; i < 4; ++i) CHECK(found[i] == Approx(expected[i]).margin(1e-6));
    CHECK(model->norm.running_mean->tensor().to_vector<float>()[0] == Approx(0.9 * 5 + 0.1 * mean));
    CHECK(model->norm.running_var->tensor().to_vector<float>()[0] == Approx(0.9 * 1 + 0.1 * 14 / 3));
}
