// On GPUs, the gradient of a ReLU after batch normalisation is part of the normalisation's gradient. Eager calls are
// not fused: both must be bit-identical.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/parallel/program/trace_shard.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/tests/cuda_standin/training.h"

using namespace lockstep;
using test::gpus;

namespace {

/// Two blocks as in a U-Net, the second without scale and shift.
struct Chain {
    Conv2d conv1{1, 16, 3}, conv2{16, 16, 3};
    BatchNorm2d norm1{16}, norm2{16, {.affine = false}};
    LOCKSTEP_MEMBERS(conv1, conv2, norm1, norm2)
    Tensor forward(const Tensor& x) { return relu(norm2(conv2(relu(norm1(conv1(x)))))); }
};

/// The normalised value has a second user, and so has the gradient of its ReLU.
struct Shared {
    Conv2d conv1{1, 16, 3}, conv2{16, 16, 3};
    BatchNorm2d norm1{16}, norm2{16};
    LOCKSTEP_MEMBERS(conv1, conv2, norm1, norm2)
    Tensor forward(const Tensor& x) {
        const Tensor normal = norm1(conv1(x));
        const Tensor y = conv2(relu(normal));
        return relu(norm2(y) + y) + normal.slice(2, 1, 9).slice(3, 1, 9);
    }
};

/// Running statistics, to which no gradient flows.
struct Fixed {
    Conv2d conv1{1, 16, 3};
    BatchNorm2d norm1{16};
    LOCKSTEP_MEMBERS(conv1, norm1)
    Fixed() { norm1.training = false; }
    Tensor forward(const Tensor& x) { return relu(norm1(conv1(x))); }
};

/// Convolutions as they are before batch normalisation, one of them transposed.
struct WithoutBias {
    Conv2d conv1{1, 16, 3, {.bias = false}};
    ConvTranspose2d conv2{16, 8, 2, {.stride = 2, .bias = false}};
    LOCKSTEP_MEMBERS(conv1, conv2)
    Tensor forward(const Tensor& x) { return conv2(relu(conv1(x))); }
};

using Results = std::vector<std::pair<std::string, std::vector<float>>>;

/// The output and the gradients of all parameters.
template <class Net, class Forward>
Results results(Net& net, const Forward& forward, Device device) {
    manual_seed(2);
    const Tensor x = Tensor::randn({4, 1, 12, 12});
    const Tensor y = forward(x.to(device));
    const Tensor dy = Tensor::randn(y.shape());
    y.backward(dy.to(y.dtype()).to(y.device()));
    Results found{{"output", y.to(DType::f32).to(Device::host()).template to_vector<float>()}};
    for (const NamedTensor& named : named_tensors(net))
        if (const Tensor gradient = named.member->tensor().grad(); gradient.defined())
            found.emplace_back(named.name, gradient.to(Device::host()).to_vector<float>());
    return found;
}

template <class Net>
void check_same_bits() {
    manual_seed(1);
    const Net net;
    for (const std::optional<DType> half : {std::optional<DType>(), std::optional(DType::bf16)}) {
        DataParallel<Net> model(net, gpus(1), {.autocast = half});
        const auto found = results(
            *model, [&](const Tensor& x) { return model.forward(x); }, Device::host());
        Net eager = net;
        to(eager, Device::cuda(0));
        const Autocast precision(Autocast::dtype_or(half));
        const auto expected = results(
            eager, [&](const Tensor& x) { return eager.forward(x); }, Device::cuda(0));
        REQUIRE(found.size() == expected.size());
        for (std::size_t i = 0; i < found.size(); ++i) {
            INFO(found[i].first);
            CHECK((found[i] == expected[i]));
        }
    }
}

/// Numbers of records of a training program with these names.
template <class Net>
std::vector<std::ptrdiff_t> counts(const std::vector<std::string>& of, std::optional<DType> autocast = {}) {
    Net net;
    const ParameterStore store(named_tensors(net), {Device::cuda(0)});
    ModelCall call;
    call.function = [&](const std::vector<Tensor>& inputs) {
        ModelResult result;
        result.outputs = {net.forward(inputs[0])};
        return result;
    };
    const std::vector<TensorMeta> inputs{TensorMeta::contiguous(DType::f32, {4, 1, 12, 12}, true)};
    const ShardProgram program = trace_shard({call, Pass::training, inputs, {false}}, 4,
                                             {.prototype = Device::cuda(0), .autocast = autocast}, store, true);
    std::vector<std::ptrdiff_t> counts;
    for (const std::string& name : of)
        counts.push_back(std::count_if(program.records.begin(), program.records.end(),
                                       [&](const Record& record) { return record.operation->name() == name; }));
    return counts;
}

}  // namespace

TEST_CASE("gradients through ReLU and batch normalisation are those of separate operations") {
    check_same_bits<Chain>();
    check_same_bits<Shared>();
    check_same_bits<Fixed>();
    test::check_no_mistakes();
}

TEST_CASE("ReLU's gradient remains a record if another record reads it") {
    const std::vector<std::string> names{"relu_backward", "batch_norm_relu_backward_sums",
                                         "batch_norm_relu_backward_data", "batch_norm_backward_data"};
    CHECK((counts<Chain>(names) == std::vector<std::ptrdiff_t>{0, 2, 2, 0}));
    CHECK((counts<Shared>(names) == std::vector<std::ptrdiff_t>{2, 0, 0, 2}));
    CHECK((counts<Fixed>(names) == std::vector<std::ptrdiff_t>{0, 1, 1, 0}));
    test::check_no_mistakes();
}

TEST_CASE("gradients of weights in 16 bits are converted to f32 where they are computed") {
    const std::vector<std::string> names{"conv2d_backward_weights", "conv2d_backward_weights_widened"};
    CHECK((counts<Chain>(names) == std::vector<std::ptrdiff_t>{2, 0}));
    CHECK((counts<WithoutBias>(names, DType::bf16) == std::vector<std::ptrdiff_t>{0, 2}));
    check_same_bits<WithoutBias>();
    test::check_no_mistakes();
}
