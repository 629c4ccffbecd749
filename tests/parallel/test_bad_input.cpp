// Errors of DataParallel before anything runs: messages contain the error, its location and advice.
#include "lockstep/ops/sgd.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/nets.h"

namespace ls = lockstep;
using namespace lockstep::test;
using ls::Device;
using ls::InvalidArgument;

namespace {

const std::string visible = "(visible: cpu:0, cpu:1, cpu:2, cpu:3, cpu:4, cpu:5, cpu:6, cpu:7); ";

/// A model from a function, for errors in forward.
template <class F>
struct Free {
    ls::Linear fc{4, 3};
    F function;
    LOCKSTEP_MEMBERS(fc)
    auto forward(const ls::Tensor& x) { return function(fc, x); }
};

template <class F>
ls::DataParallel<Free<F>> wrapped(F function, int k = 3) {
    return ls::DataParallel<Free<F>>(Free<F>{.function = function}, cpu_devices(k));
}

bool says(const std::string& text, const std::string& part) {
    INFO(text);
    CHECK(text.find(part) != std::string::npos);
    return true;
}

}  // namespace

TEST_CASE("invalid lists of devices") {
    const auto wrap = [](std::vector<Device> list) {
        return message_of<InvalidArgument>([&] { ls::DataParallel<ConvNet> model(ConvNet{}, list); });
    };
    says(wrap({Device::cpu(0), Device::cpu(9)}), "device cpu:9 does not exist or is not visible (");
    says(wrap({Device::cpu(0), Device::cpu(9)}), visible);
    CHECK(wrap({Device::cpu(0), Device::cpu(1), Device::cpu(0)}) ==
          "devices cpu:0,cpu:1,cpu:0: cpu:0 is listed twice; expected every device once");
    says(wrap({}), "the list of devices is empty; expected at least one device, or 'all'; ");
    CHECK(wrap({Device::host()}) ==
          "devices host: the host cannot be used for training; expected a device such as cpu:0");
}

TEST_CASE("models that cannot be wrapped") {
    const auto spread = [] {
        ConvNet net;
        net.fc2.weight.rebind(net.fc2.weight->to(Device::cpu(1)).detach().requires_grad_());
        ls::DataParallel<ConvNet> model(std::move(net), cpu_devices(2));
    };
    CHECK(message_of<InvalidArgument>(spread) ==
          "module: parameters and buffers are on several devices: conv.weight is on host and fc2.weight on cpu:1; "
          "expected one device");

    ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(2));
    CHECK(message_of<InvalidArgument>([&] { ls::DataParallel<ConvNet> twice(std::move(*model), cpu_devices(2)); }) ==
          "the parameter conv.weight already belongs to another wrapper or optimizer; expected a copy of the model");
    ls::DataParallel<ConvNet> copy{ls::DataParallel<ConvNet>(ConvNet{}, cpu_devices(2)).module(),
                                   cpu_devices(2)};  // copies may be wrapped
    (void)copy(make_batch(4).images);
}

TEST_CASE("mismatched options and optimizers") {
    const auto with = [](const ls::DataParallelOptions& options) {
        return message_of<InvalidArgument>(
            [&] { ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(2), options); });
    };
    CHECK(with({.shards = -1}) == "shards: -1; expected 1 to 65536, or 0 for one per device");
    CHECK(with({.threads_per_shard = -2}) == "threads_per_shard: -2; expected 1 to 4096, or 0 for the default");
    says(with({.output_device = Device::cpu(12)}), "device cpu:12 does not exist or is not visible");
    ls::DataParallel<ConvNet> a(ConvNet{}, cpu_devices(2)), b(ConvNet{}, cpu_devices(2));
    ls::SGD sgd(b);
    const ConvNetBatch batch = make_batch(4);
    CHECK(message_of<InvalidArgument>([&] { a.step(sgd, batch.images, batch.labels, ls::nll_loss); }) ==
          "step: the optimizer belongs to another model; construct it from this wrapper: SGD(model, ...)");
    says(message_of<InvalidArgument>([&] { ls::SGD bad(a, {.lr = -1}); }), "SGD: invalid lr (-1); expected 0 or more");
}

TEST_CASE("inputs that cannot be scattered") {
    ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(2));
    ls::SGD sgd(model, {.lr = 0.1});
    const ConvNetBatch batch = make_batch(6);
    CHECK(message_of<InvalidArgument>([&] { (void)model(ls::Tensor::scalar(1)); }) ==
          "input 0: a scalar cannot be scattered; expected a batch dimension, or a number");
    CHECK(message_of<InvalidArgument>([&] {
              (void)model(ls::Tensor::zeros({0, 2, 7, 7}));
          }) == "an empty batch of shape (0, 2, 7, 7) cannot be scattered; expected rows");
    CHECK(message_of<InvalidArgument>([&] { (void)model(ls::Tensor()); }) == "input 0: the tensor is undefined");
    CHECK(message_of<InvalidArgument>([&] { model.step(sgd, batch.images, make_batch(5).labels, ls::nll_loss); }) ==
          "batch sizes differ: input 0 has 6 rows, input 1 has 5; expected the same number");
    (void)model(batch.images);  // still usable
}

TEST_CASE("shapes and dtypes that do not match a layer") {
    ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(2));
    ls::SGD sgd(model, {.lr = 0.1});
    const ConvNetBatch batch = make_batch(6);
    says(message_of<InvalidArgument>([&] { (void)model(ls::Tensor::zeros({6, 3, 7, 7})); }), "conv2d: ");
    says(message_of<InvalidArgument>([&] {
             (void)model(ls::Tensor::zeros({6, 2, 8, 9}));
         }),
         "linear: input (3, 48) has 48 features; weight (10, 36) expects 36");
    says(message_of<InvalidArgument>([&] { (void)model(batch.images.to(ls::DType::f16)); }),
         "weight has dtype f32; expected f16 like the others");
    says(message_of<InvalidArgument>([&] { (void)model(batch.images.to(ls::DType::f64)); }), "dtype");
    says(message_of<InvalidArgument>(
             [&] { model.step(sgd, batch.images, batch.labels.to(ls::DType::i32), ls::nll_loss); }),
         "nll_loss: target (3,) has dtype i32; expected i64");
    model.step(sgd, batch.images, batch.labels, ls::nll_loss);
    CHECK(model.engine().steps_done() == 1);
}

TEST_CASE("reading a value inside forward") {
    auto reads = wrapped([](ls::Linear& fc, const ls::Tensor& x) {
        const ls::Tensor y = fc(x);
        return y.to_vector<float>()[0] > 0 ? y : y * 2.0;
    });
    const std::string expected =
        "a value is read inside forward: while forward is traced its tensors have shapes but no values; expected "
        "forward to return the tensor, and the read outside";
    CHECK(message_of<InvalidArgument>([&] { (void)reads(ls::Tensor::zeros({5, 4})); }) == expected);
    auto item = wrapped([](ls::Linear& fc, const ls::Tensor& x) { return fc(x) * ls::sum(x).item(); });
    CHECK(message_of<InvalidArgument>([&] { (void)item(ls::Tensor::zeros({5, 4})); }) == expected);
}

TEST_CASE("tensors on the wrong device") {
    ls::DataParallel<ConvNet> model(ConvNet{}, cpu_devices(2));
    const ConvNetBatch batch = make_batch(6);
    const ls::Tensor output = model(batch.images.to(Device::cpu(5)));  // inputs may be on any device
    CHECK(message_of<InvalidArgument>([&] { (void)ls::nll_loss(output, batch.labels.to(Device::cpu(1))); }) ==
          "nll_loss: tensors are on different devices, cpu:0 and cpu:1; expected one device (use .to(device))");
    const ls::BatchCut cut = ls::cut_batch(6, 2);
    const ls::Tensor half = ls::Tensor::zeros({3, 2, 7, 7}, ls::DType::f32, Device::cpu(1));
    CHECK(message_of<InvalidArgument>([&] {
              (void)model(ls::ShardedTensor(cut, {half, half}));
          }) == "input 0: shard 0 is on cpu:1, the model has it on cpu:0; expected a loader of this model");
    CHECK(message_of<InvalidArgument>([&] { (void)ls::ShardedTensor(cut, {half}); }) ==
          "ShardedTensor: 1 tensors and no events for 2 shards that have rows; expected one for each, including those "
          "of other processes");
}

TEST_CASE("unequal shards with different operations across shards are rejected before anything runs") {
    auto number = wrapped([](ls::Linear& fc, const ls::Tensor& x) {
        const ls::Tensor y = fc(x);
        return x.size(0) > 1 ? y + ls::sum_over_shards(ls::sum(y)) : y;
    });
    CHECK(message_of<InvalidArgument>([&] {
              (void)number(ls::Tensor::zeros({7, 4}));
          }) ==
          "shards of input shapes (3, 4) and (1, 4) run different operations across shards: 2 and 0 operations span "
          "shards; operations that span shards must not depend on the length of the shard");
    auto shape = wrapped([](ls::Linear& fc, const ls::Tensor& x) {
        const ls::Tensor y = fc(x);
        return y + ls::sum(ls::sum_over_shards(y));
    });
    says(message_of<InvalidArgument>([&] {
             (void)shape(ls::Tensor::zeros({7, 4}));
         }),
         "shards of input shapes (3, 4) and (1, 4) run different operations across shards: operation 0 "
         "(sum_over_shards) has the inputs ");
    (void)shape(ls::Tensor::zeros({6, 4}));  // equal shards are fine
    CHECK(number(ls::Tensor::zeros({6, 4})).shape() == ls::Shape{6, 3});
}

TEST_CASE("outputs that cannot be gathered") {
    auto structure = wrapped([](ls::Linear& fc, const ls::Tensor& x) {
        return x.size(0) > 1 ? std::vector<ls::Tensor>{fc(x), x} : std::vector<ls::Tensor>{fc(x)};
    });
    CHECK(message_of<InvalidArgument>([&] {
              (void)structure(ls::Tensor::zeros({7, 4}));
          }) ==
          "forward returns outputs of different structure for shards of input shapes (3, 4) and (1, 4); expected the "
          "same containers for all");
    auto shapes = wrapped([](ls::Linear& fc, const ls::Tensor& x) {
        const ls::Tensor y = fc(x);
        return ls::matmul(y, y.transpose(0, 1));
    });
    says(message_of<InvalidArgument>([&] { (void)shapes(ls::Tensor::zeros({7, 4})); }), "output 0 of forward is ");
    says(message_of<InvalidArgument>([&] {
             (void)shapes(ls::Tensor::zeros({7, 4}));
         }),
         "for shards of input shapes (3, 4) and (1, 4); expected the same dimensions except the first");
}
