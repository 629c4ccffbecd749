// LOCKSTEP_CHECK_TRACE=1 detects changes of host state that forward or loss read under a cached program.
#include <cstdlib>

#include "lockstep/ops/sgd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"

namespace ls = lockstep;
using namespace lockstep::test;

namespace {

struct Checking {
    Checking() { setenv("LOCKSTEP_CHECK_TRACE", "1", 1); }
};
const Checking checking;

struct Careless {
    ls::Linear a{4, 4}, b{4, 4};
    ls::BatchNorm2d norm{4};
    ls::Dropout drop{0.5};
    double scale = 1;
    bool second = false, extra = false, swap = false;
    std::vector<float> shift = {1, 2, 3, 4};
    LOCKSTEP_MEMBERS(a, b, norm, drop)
    ls::Tensor forward(const ls::Tensor& x) {
        ls::Tensor y = (second ? b : a)(x)*scale + ls::Tensor::from(shift, {4});
        if (extra) y = ls::relu(y);
        y = swap ? x - y : y - x;
        return drop(norm(y.reshape({-1, 4, 1, 1})).flatten(1));
    }
};

constexpr auto advice =
    "; numbers and flags that they read are frozen when they are traced: use a tensor, an argument or a by-value "
    "capture of the loss";

}  // namespace

TEST_CASE("only changes behind a cached program are reported, by name") {
    ls::manual_seed(41);
    ls::DataParallel<Careless> model(Careless{}, cpu_devices(3));
    ls::SGD sgd(model, {.lr = 0.01, .momentum = 0.5});
    const ls::Tensor x = ls::Tensor::randn({8, 4}), y = ls::Tensor::randn({8, 4});
    double factor = 1;
    const auto loss = [&factor](const ls::Tensor& output, const ls::Tensor& target) {
        return factor * ls::mse_loss(output, target);
    };
    const auto step = [&] { model.step(sgd, x, y, loss); };
    for (int i = 0; i < 3; ++i) step();
    (void)model(x);
    (void)model(x);
    CHECK(model.engine().steps_done() == 3);
    const auto said = [&](const std::string& part) {
        const std::string text = message_of<ls::InvalidArgument>(step);
        INFO(text);
        CHECK(text.find("forward or loss changed for shards of input shape (3, 4): record ") == 0);
        CHECK(text.find(part) != std::string::npos);
        CHECK(text.find(advice) != std::string::npos);
    };
    model->scale = 2;
    said(", had the attributes (1, 0) and has (2, 0)");
    model->scale = 1;
    model->second = true;  // another parameter of the same shape
    said(", reads b.weight instead of a.weight");
    model->second = false;
    model->shift[2] = 7;  // a constant created again in every forward
    said(", reads a constant whose element 2 was 3 and is 7");
    model->shift[2] = 3;
    model->extra = true;
    said(" and is relu ");
    model->extra = false;
    model->swap = true;
    said(" of the trace instead of result ");
    model->swap = false;
    factor = 3;
    said("");
    factor = 1;
    step();
    CHECK(model.engine().steps_done() == 4);
    const ls::Tensor many = ls::Tensor::randn({12, 4});
    const auto step_in_parts = [&] { model.step(sgd, many, many, loss, {.accumulation_steps = 2}); };
    for (int i = 0; i < 2; ++i) step_in_parts();
    factor = 3;
    const std::string text = message_of<ls::InvalidArgument>(step_in_parts);
    CHECK(text.find("forward or loss changed for shards of input shape (2, 4): record ") == 0);
    factor = 1;
    step_in_parts();
    CHECK(model.engine().steps_done() == 7);
    model.engine().verify_replicas();
}
