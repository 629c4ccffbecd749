// A program fuses a ReLU and its neighbour into one record. Eager calls are not fused: both must be bit-identical.
#include <algorithm>

#include "lockstep/ops/cpu/isa.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/parallel/program/trace_shard.h"
#include "lockstep/runtime/checkpointed.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/nets.h"

using namespace lockstep;

namespace {

/// ReLU after convolutions of either layout and before pooling, whose windows overlap once.
struct ReluFirst {
    Conv2d conv1{1, 32, 3}, conv2{32, 16, 3}, conv3{16, 10, 5}, conv4{10, 20, 3};
    LOCKSTEP_MEMBERS(conv1, conv2, conv3, conv4)
    Tensor forward(const Tensor& x) {
        const Tensor y = max_pool2d(relu(conv2(relu(conv1(x)))), 2);
        return max_pool2d(relu(conv4(relu(conv3(y)))), 3, 1).flatten(1);
    }
};

/// Pooling before ReLU, and a number of channels that does not fill a block.
struct PoolFirst {
    Conv2d conv1{1, 10, 5}, conv2{10, 20, 5}, conv3{20, 32, 3};
    LOCKSTEP_MEMBERS(conv1, conv2, conv3)
    Tensor forward(const Tensor& x) {
        const Tensor y = relu(max_pool2d(conv2(relu(max_pool2d(conv1(x), 2))), 2));
        return relu(conv3(y)).flatten(1);
    }
};

/// Every value between two records is used by a third.
struct Shared {
    Conv2d conv1{1, 16, 3}, conv2{16, 16, 3};
    LOCKSTEP_MEMBERS(conv1, conv2)
    Tensor forward(const Tensor& x) {
        const Tensor a = conv1(x), b = relu(a), c = conv2(b), d = relu(c);
        return add(add(max_pool2d(d, 2), max_pool2d(c, 2)), max_pool2d(add(a, b), {3, 3}, Pair{2, 2})).flatten(1);
    }
};

/// Two ReLUs in a row, one of the input, one of a parameter, and f64.
struct Odd {
    Conv2d conv1{1, 16, 3};
    LOCKSTEP_MEMBERS(conv1)
    Tensor forward(const Tensor& x) {
        const Tensor weight = relu(conv1.weight);
        const Tensor y = relu(relu(conv2d(relu(x), weight)));
        return add(max_pool2d(y, 2), max_pool2d(y.to(DType::f64), 2).to(DType::f32)).flatten(1);
    }
};

/// ReLU after linear layers of few rows and of many.
struct Rows {
    Linear few{784, 33}, many{28, 20};
    LOCKSTEP_MEMBERS(few, many)
    Tensor forward(const Tensor& x) {
        const std::int64_t images = x.size(0);
        const Tensor rows = relu(many(x.reshape({images * 28, 28}))).reshape({images, 560}).tag_batch();
        return cat({relu(few(x.flatten(1))), rows}, 1);
    }
};

/// Normalisations with different numbers of channels, before ReLU and not; one layer is called twice.
struct Normalized {
    Conv2d conv1{1, 3, 3}, conv2{3, 20, 3};
    BatchNorm2d norm1{3}, norm2{20};
    LOCKSTEP_MEMBERS(conv1, conv2, norm1, norm2)
    Tensor forward(const Tensor& x) {
        const Tensor y = norm1(relu(norm1(conv1(x))));
        return relu(norm2(conv2(y))).flatten(1);
    }
};

/// A checkpointed part whose backward reads the result of exp, and not that of cumsum.
struct HalfRead {
    Linear fc{784, 8};
    LOCKSTEP_MEMBERS(fc)
    Tensor forward(const Tensor& x) {
        return checkpointed([](const Tensor& in) { return cumsum(exp(in), 1); }, fc(x.flatten(1)));
    }
};

std::string bytes_of(const Tensor& tensor) {
    const std::vector<float> values = tensor.to_vector<float>();
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

/// Bytes of the output and of the gradient of every parameter, by their names.
template <class Net, class Forward>
std::vector<std::pair<std::string, std::string>> results(Net& net, const Forward& forward) {
    const test::Images images(12);
    const Tensor y = forward(images.pixels - 0.3);
    manual_seed(3);
    const Tensor dy = Tensor::randn(y.shape()).to(y.device());
    y.backward(dy);
    std::vector<std::pair<std::string, std::string>> found{{"output", bytes_of(y)}};
    for (const NamedTensor& named : named_tensors(net))
        if (const Tensor gradient = named.member->tensor().grad(); gradient.defined())
            found.emplace_back(named.name, bytes_of(gradient));
    return found;
}

template <class Net>
void check_same_bits() {
    manual_seed(1);
    const Net net;
    Net eager = net;
    const ComputeScope one_thread({.threads = 1});
    const auto expected = results(eager, [&](const Tensor& x) { return eager.forward(x); });
    DataParallel<Net> model(net, test::cpu_devices(1), {.threads_per_shard = 1});
    const auto found = results(*model, [&](const Tensor& x) { return model.forward(x); });
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        INFO(found[i].first);
        CHECK((found[i] == expected[i]));
    }
}

/// Names of the records of a training program.
template <class Net>
std::vector<std::string> operations() {
    Net net;
    const ParameterStore store(named_tensors(net), {Device::cpu(0)});
    ModelCall call;
    call.function = [&](const std::vector<Tensor>& inputs) {
        ModelResult result;
        result.outputs = {net.forward(inputs[0])};
        return result;
    };
    const std::vector<TensorMeta> inputs{TensorMeta::contiguous(DType::f32, {4, 1, 28, 28}, true)};
    const ShardProgram program =
        trace_shard({call, Pass::training, inputs, {false}}, {4, 4}, {.prototype = Device::cpu(0)}, store, true);
    std::vector<std::string> names;
    for (const Record& record : program.records) names.emplace_back(record.operation->name());
    for (const Delivery& delivery : program.deliveries) {
        REQUIRE(delivery.ready < program.records.size());
        bool written = false;
        for (std::size_t i = program.backward_begin; i <= delivery.ready; ++i)
            for (const Operand& out : program.records[i].out) written |= out.buffer == delivery.gradient.buffer;
        CHECK(written);
    }
    return names;
}

std::ptrdiff_t count(const std::vector<std::string>& names, const char* name) {
    return std::count(names.begin(), names.end(), name);
}

}  // namespace

TEST_CASE("a program with fused records is bit-identical to separate operations") {
    check_same_bits<ReluFirst>();
    check_same_bits<PoolFirst>();
    check_same_bits<Shared>();
    check_same_bits<Odd>();
    check_same_bits<Rows>();
    check_same_bits<Normalized>();
}

TEST_CASE("a ReLU and its neighbour are one record if nothing else uses the value between them") {
    if (cpu::allowed_isa() < cpu::Isa::avx2) return;  // then oneDNN chooses layouts that differ from layer to layer
    const auto cnn = operations<test::Cnn>();
    CHECK(count(cnn, "conv2d_relu_forward") == 2);
    CHECK(count(cnn, "conv2d_forward") == 0);
    CHECK(count(cnn, "linear_relu_forward") == 1);
    CHECK(count(cnn, "relu") == 0);
    CHECK(count(cnn, "max_pool2d_relu_backward") == 1);
    CHECK(count(cnn, "conv2d_relu_backward_data") == 1);
    CHECK(count(cnn, "relu_backward") == 1);
    const auto first = operations<ReluFirst>();
    CHECK(count(first, "conv2d_relu_forward") == 4);
    CHECK(count(first, "relu") == 0);
    CHECK(count(first, "max_pool2d_relu_backward") == 2);
    CHECK(count(first, "relu_backward") == 0);
    const auto small = operations<test::Small>();
    CHECK(count(small, "max_pool2d_relu_backward") == 1);  // the other ReLU's result was row-major
    CHECK(count(operations<Rows>(), "linear_relu_forward") == 2);
    const auto shared = operations<Shared>();
    CHECK(count(shared, "conv2d_relu_forward") == 0);
    CHECK(count(shared, "relu") == 2);
}

TEST_CASE("a checkpointed part repeats only the records whose results backward reads") {
    const auto names = operations<HalfRead>();
    CHECK(count(names, "exp") == 2);
    CHECK(count(names, "cumsum") == 2);  // that of forward, and its gradient
}

TEST_CASE("layers of a kind commit their state in one record") {
    const auto names = operations<Normalized>();
    CHECK(count(names, "batch_norm_stats") == 3);
    CHECK(count(names, "batch_norm_relu_normalize") == 2);
    CHECK(count(names, "batch_norm_normalize") == 1);
    CHECK(count(names, "batch_norm_pool_stats") == 1);
    // The second call of norm1 continues from the result of the first one.
    CHECK(count(names, "batch_norm_update_running") == 2);
    CHECK(count(names, "increment_counter") == 2);
}

TEST_CASE("joined records leave the state of the operations one by one") {
    manual_seed(1);
    Normalized eager;
    const ComputeScope one_thread({.threads = 1});
    DataParallel<Normalized> model(eager, test::cpu_devices(2), {.shards = 1, .threads_per_shard = 1});
    const test::Images images(12);
    for (int step = 0; step < 3; ++step) {
        const Tensor x = images.pixels * (1.0 + step);
        (void)eager.forward(x);
        (void)model.forward(x);
    }
    model.synchronize();
    const auto expected = named_tensors(eager), found = named_tensors(*model);
    REQUIRE(found.size() == expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
        INFO(found[i].name);
        const Tensor &a = expected[i].member->tensor(), b = found[i].member->tensor().to(Device::host());
        if (a.dtype() == DType::f32)
            CHECK((bytes_of(a) == bytes_of(b)));
        else
            CHECK(a.item() == b.item());
    }
    CHECK(model->norm1.num_batches_tracked->tensor().item() == 6);
    CHECK(model->norm2.num_batches_tracked->tensor().item() == 3);
}
