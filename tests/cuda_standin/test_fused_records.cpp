// Programs for GPUs have fewer records than eager calls: gradients of ReLU are part of those of batch normalisation,
// gradients of weights are converted where they are computed, parameters are cast together, and small operations are
// sequences. Both must be bit-identical.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/autocast.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/tests/cuda_standin/training.h"
#include "lockstep/tests/fixtures/shard_programs.h"

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

/// Filters of all kinds: for cuDNN's order, of one channel, of one tap, and with channels not divisible by 8. One
/// is also read as a matrix.
struct Filters {
    Conv2d conv1{1, 16, 3}, conv2{16, 20, 3, {.bias = false}}, conv3{20, 16, 1}, conv4{16, 8, 3};
    ConvTranspose2d up{16, 16, 2, {.stride = 2}};
    LOCKSTEP_MEMBERS(conv1, conv2, conv3, conv4, up)
    Tensor forward(const Tensor& x) {
        const Tensor y = conv4(up(relu(conv3(relu(conv2(relu(conv1(x))))))));
        return matmul(mean(y, {2, 3}), Tensor(conv4.weight).reshape({8, 144}));
    }
};

/// Small operations of several shapes after one large one, and a large one between them.
struct Small {
    Conv2d conv1{1, 8, 3};
    LOCKSTEP_MEMBERS(conv1)
    Tensor forward(const Tensor& x) {
        const Tensor y = conv1(x);
        const Tensor means = mean(y, {2, 3});  // (4, 8)
        const Tensor part = tanh(means * 2 + 0.5);
        const Tensor image_means = mean(square(y), {1, 2, 3}).unsqueeze(1);
        const Tensor ratio = part / (square(means) + 1) - sigmoid(image_means) * sum(part, {1}, true);
        return sum(exp(-ratio) * means, {1});
    }
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

template <class Net>
ShardProgram program_of(Pass pass, std::optional<DType> autocast = {}, bool allow_tf32 = false) {
    Net net;
    const ParameterStore store(named_tensors(net), {Device::cuda(0)});
    return test::program_of(net, store, pass, {1, 12, 12},
                            {.prototype = Device::cuda(0), .allow_tf32 = allow_tf32, .autocast = autocast});
}

/// Numbers of records of a program with these names.
std::vector<std::ptrdiff_t> counts(const ShardProgram& program, const std::vector<std::string>& of) {
    std::vector<std::ptrdiff_t> counts;
    for (const std::string& name : of)
        counts.push_back(std::count_if(program.records.begin(), program.records.end(),
                                       [&](const Record& record) { return record.operation->name() == name; }));
    return counts;
}
template <class Net>
std::vector<std::ptrdiff_t> counts(const std::vector<std::string>& of, std::optional<DType> autocast = {}) {
    return counts(program_of<Net>(Pass::training, autocast), of);
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

TEST_CASE("gradients of weights in 16 bits are converted to f32 together") {
    const std::vector<std::string> names{"conv2d_backward_weights", "conv2d_backward_weights_widened",
                                         "cast_parameters"};
    CHECK((counts<Chain>(names) == std::vector<std::ptrdiff_t>{2, 0, 0}));
    const ShardProgram half = program_of<WithoutBias>(Pass::training, DType::bf16);
    CHECK((counts(half, names) == std::vector<std::ptrdiff_t>{2, 0, 1}));
    std::size_t last = 0;
    for (const Delivery& delivery : half.deliveries) {
        const auto writes = [&](const Record& record) {
            return std::any_of(record.out.begin(), record.out.end(),
                               [&](const Operand& out) { return out.buffer == delivery.gradient.buffer; });
        };
        const auto writer = std::find_if(half.records.begin(), half.records.end(), writes) - half.records.begin();
        CHECK(static_cast<std::size_t>(writer) <= delivery.ready);
        CHECK(last <= delivery.ready);
        last = delivery.ready;
    }
    check_same_bits<WithoutBias>();
    test::check_no_mistakes();
}

namespace {

/// Number of copies of parameters in cuDNN's order, and of records that reorder weights of `shape`.
std::pair<std::ptrdiff_t, std::ptrdiff_t> orders(const ShardProgram& program, const Shape& shape) {
    const auto is_arranged = [](const ParameterCast& cast) { return !cast.meta.is_contiguous(); };
    const auto reorders = [&](const Record& record) {
        return record.operation->name() == "reorder" && record.in[0].meta.shape == shape &&
               !record.out[0].meta.is_contiguous();
    };
    return {std::count_if(program.casts.begin(), program.casts.end(), is_arranged),
            std::count_if(program.records.begin(), program.records.end(), reorders)};
}

/// Parameters after three steps, the last one with fewer rows in the last shard.
std::vector<std::vector<float>> trained(int devices, const EngineOptions& options, bool long_form) {
    manual_seed(1);
    DataParallel<Filters> model(Filters(), gpus(devices), options);
    SGD sgd(model, {.lr = 0.1, .momentum = 0.5});
    for (const std::int64_t rows : {6, 6, 5}) {
        const Tensor x = Tensor::randn({rows, 1, 12, 12}), target = Tensor::randn({rows, 144});
        if (!long_form) {
            model.step(sgd, x, target, mse_loss);
            continue;
        }
        sgd.zero_grad();
        const Tensor y = model.forward(x);
        mse_loss(y.to(DType::f32), target.to(y.device())).backward();
        sgd.step();
    }
    return test::values_of(*model);
}

}  // namespace

TEST_CASE("weights are copied in cuDNN's order once for all shards") {
    const Shape square{20, 16, 3, 3}, read_as_matrix{8, 16, 3, 3};
    for (const Pass pass : {Pass::step, Pass::inference}) {
        const ShardProgram half = program_of<Filters>(pass, DType::bf16);
        // Inference reads the fourth filter in either order once: one copy for all shards is in cuDNN's.
        CHECK((orders(half, square) == std::pair<std::ptrdiff_t, std::ptrdiff_t>{pass == Pass::step ? 2 : 3, 0}));
        CHECK(orders(half, read_as_matrix).second == (pass == Pass::step ? 2 : 0));
        const ShardProgram tf32 = program_of<Filters>(pass, {}, true);
        CHECK((orders(tf32, square) == std::pair<std::ptrdiff_t, std::ptrdiff_t>{3, 0}));
        CHECK(orders(tf32, read_as_matrix).second == 0);
        CHECK(program_of<Filters>(pass).casts.empty());
    }
    // Another forward may run before this backward, which therefore needs separate copies.
    CHECK((orders(program_of<Filters>(Pass::training, DType::bf16), square) ==
           std::pair<std::ptrdiff_t, std::ptrdiff_t>{0, 2}));
    for (const bool tf32 : {false, true}) {
        EngineOptions options{.shards = 3, .allow_tf32 = tf32};
        if (!tf32) options.autocast = DType::bf16;
        const auto expected = trained(1, options, true);
        for (const int devices : {1, 3}) CHECK((trained(devices, options, false) == expected));
    }
    test::check_no_mistakes();
}

TEST_CASE("small operations are sequences, with the bits of separate operations") {
    const ShardProgram program = program_of<Small>(Pass::training);
    for (const char* name : {"tanh", "sigmoid", "exp", "neg", "div", "sub", "tanh_backward", "sigmoid_backward"}) {
        INFO(name);
        CHECK(counts(program, {name})[0] == 0);
    }
    // Forward waits for each of the two means of images at most once, and so does backward.
    const std::ptrdiff_t sequences = counts(program, {"sequence"})[0];
    CHECK(sequences >= 2);
    CHECK(sequences <= 4);
    check_same_bits<Small>();
    test::check_no_mistakes();
}
