// ctc_loss: rows that have no alignment, extreme lengths, and refused arguments. The op table has its values.
#include <cmath>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using test::contains;
using test::refusal_of;

namespace {

Tensor numbers(const std::vector<std::int64_t>& values, const Shape& shape) { return Tensor::from(values, shape); }

/// Equal probabilities of `classes` at every position.
Tensor even(std::int64_t rows, std::int64_t length, std::int64_t classes) {
    return Tensor::full({rows, length, classes}, -std::log(static_cast<double>(classes)));
}

struct Reader {
    Linear fc{4, 3};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) const { return log_softmax(fc(x), 2); }
};

}  // namespace

TEST_CASE(
    "ctc_loss of rows without an alignment is infinite, or 0 on request, without NaN in the gradients of others") {
    const Tensor x = Tensor::zeros({2, 2, 3}).requires_grad_();
    // Two equal labels need three positions.
    const Tensor labels = numbers({1, 1, 1, 2}, {2, 2}), positions = numbers({2, 2}, {2}), count = numbers({2, 2}, {2});
    const auto loss = [&](bool zero_infinity) {
        return CtcLoss{{.reduction = Reduction::sum, .zero_infinity = zero_infinity}}(log_softmax(x, 2), labels,
                                                                                      positions, count)
            .value();
    };
    CHECK(std::isinf(loss(false).item()));
    const Tensor finite = loss(true);
    CHECK(finite.item() == Approx(2 * std::log(3)));
    finite.backward();
    for (const float slope : x.grad().to_vector<float>()) CHECK(std::isfinite(slope));
    CHECK(x.grad().select(0, 0).contiguous().to_vector<float>() == std::vector<float>(6, 0.0f));
}

TEST_CASE("ctc_loss of one position, without labels, and with another blank") {
    const Tensor one = numbers({1}, {1}), none = numbers({0}, {1});
    CHECK(ctc_loss(even(1, 1, 4), numbers({2}, {1, 1}), one, one).value().item() == Approx(std::log(4)));
    CHECK(ctc_loss(even(1, 3, 4), numbers({2}, {1, 1}), numbers({3}, {1}), none).value().item() ==
          Approx(3 * std::log(4)));
    CHECK(ctc_loss(even(1, 3, 4), Tensor::zeros({1, 0}, DType::i64), numbers({2}, {1}), none).value().item() ==
          Approx(2 * std::log(4)));
    // Three of the 16 alignments of two positions show the label.
    const CtcLoss last{{.blank = 3}};
    CHECK(last(even(1, 2, 4), numbers({0}, {1, 1}), numbers({2}, {1}), one).value().item() ==
          Approx(-std::log(3.0 / 16)));
}

TEST_CASE("ctc_loss refuses other shapes and dtypes, and reports lengths and labels out of range") {
    const Tensor x = even(2, 3, 4), labels = numbers({1, 2, 3, 1}, {2, 2}), three = numbers({3, 3}, {2}),
                 two = numbers({2, 2}, {2});
    const auto refused = [](const auto& call, const std::string& part) {
        const std::string message = refusal_of<InvalidArgument>(call);
        CAPTURE(message);
        CHECK(message.starts_with("ctc_loss: "));
        CHECK(contains(message, part));
    };
    refused([&] { ctc_loss(x.select(0, 0), labels, three, two); }, "(N, T, C)");
    refused([&] { ctc_loss(x, labels.to(DType::f32), three, two); }, "targets has dtype f32");
    refused([&] { ctc_loss(x, labels.slice(0, 0, 1), three, two); }, "targets has dtype i64 and shape (1, 2)");
    refused([&] { ctc_loss(x, labels, numbers({3}, {1}), two); }, "input_lengths");
    refused([&] { ctc_loss(x, labels, three, labels); }, "target_lengths");
    refused([&] { CtcLoss{{.blank = 4}}(x, labels, three, two); }, "invalid blank (4)");
    refused([&] { ctc_loss(Tensor::zeros({2, 0, 4}), labels, three, two); }, "no positions");
    const auto reported = [&](const Tensor& classes, const Tensor& positions, const Tensor& count) {
        return refusal_of<InvalidArgument>([&] { ctc_loss(x, classes, positions, count).value().item(); });
    };
    CHECK(contains(reported(numbers({1, 4, 3, 1}, {2, 2}), three, two), "out of range"));
    CHECK(contains(reported(labels, numbers({3, 4}, {2}), two), "out of range"));
    CHECK(contains(reported(labels, numbers({3, 0}, {2}), two), "out of range"));
    CHECK(contains(reported(labels, three, numbers({2, 3}, {2})), "out of range"));
}

TEST_CASE("ctc_loss in steps has the same bits on any number of devices") {
    manual_seed(6);
    const Tensor x = Tensor::randn({6, 5, 4});
    const Tensor labels = numbers({1, 2, 2, 2, 1, 1, 2, 1, 1, 2, 2, 1}, {6, 2});
    const Tensor positions = numbers({5, 4, 5, 5, 3, 5}, {6}), count = numbers({2, 1, 2, 1, 2, 0}, {6});
    const Reader net;
    const auto trained = [&](const std::vector<Device>& devices) {
        DataParallel<Reader> model(net, Devices(devices), {.shards = 2});
        SGD sgd(model, {.lr = 0.1});
        const auto loss = [](const Tensor& y, const std::tuple<Tensor, Tensor, Tensor>& t) {
            return ctc_loss(y, std::get<0>(t), std::get<1>(t), std::get<2>(t));
        };
        for (int step = 0; step < 3; ++step) model.step(sgd, x, std::tuple(labels, positions, count), loss);
        return model->fc.weight->to_vector<float>();
    };
    CHECK(trained({Device::cpu(0)}) == trained({Device::cpu(0), Device::cpu(1)}));
}
