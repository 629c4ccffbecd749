// Runs the op table on the host, a virtual CPU device and, if available, a GPU: every entry with its inputs in every
// memory layout of a tensor, in f32 and f64, values and gradients against double-precision loops.
#include <fmt/format.h>

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/ops/op_table.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

enum class MemoryLayout {
    plain,           ///< row-major
    transposed,      ///< first and last dimension exchanged in memory
    strided,         ///< every second element of a larger tensor, not from its start
    opaque,          ///< as a convolution writes it: the backend's layout
    view_of_opaque,  ///< rows of a convolution's result
};
constexpr MemoryLayout all_layouts[] = {MemoryLayout::plain, MemoryLayout::transposed, MemoryLayout::strided,
                                        MemoryLayout::opaque, MemoryLayout::view_of_opaque};

const char* name_of(MemoryLayout layout) {
    constexpr const char* names[] = {"plain", "transposed", "strided", "opaque", "view of opaque"};
    return names[static_cast<int>(layout)];
}

/// Whether a convolution writes this number of channels in blocks; otherwise in channels-last order, unless they are
/// few.
bool blocked(const Tensor& x) { return x.size(1) % 16 == 0; }

/// Whether the layout differs from the plain one for this tensor.
bool applies(MemoryLayout layout, const Tensor& x) {
    if (!is_floating(x.dtype())) return layout == MemoryLayout::plain;
    switch (layout) {
        case MemoryLayout::transposed: return x.dims() >= 2;
        case MemoryLayout::strided: return x.dims() >= 1;
        case MemoryLayout::opaque:
        case MemoryLayout::view_of_opaque:
            return x.dims() == 4 && x.dtype() == DType::f32 &&
                   (blocked(x) || ((x.size(1) == 10 || x.size(1) == 20) && x.size(3) > 1));
        case MemoryLayout::plain: break;
    }
    return true;
}

/// The same values, convolved with the identity (which is exact).
Tensor convolved(const Tensor& x) {
    const std::int64_t channels = x.size(1), size = blocked(x) ? 1 : 3, taps = size * size;
    std::vector<float> identity(static_cast<std::size_t>(channels * channels * taps));
    for (std::int64_t c = 0; c < channels; ++c)
        identity[static_cast<std::size_t>((c * channels + c) * taps + taps / 2)] = 1;
    const int padding = static_cast<int>(size / 2);
    return conv2d(x, Tensor::from(identity, {channels, channels, size, size}, x.device()), Tensor(), 1, padding);
}

Tensor laid(const Tensor& x, MemoryLayout layout) {
    if (!applies(layout, x)) return x;
    const NoGrad no_grad;
    switch (layout) {
        case MemoryLayout::transposed: return x.transpose(0, -1).contiguous().transpose(0, -1);
        case MemoryLayout::strided: {
            Shape wide = x.shape();
            wide[x.dims() - 1] = 2 * x.size(-1) + 1;
            const Tensor result = Tensor::full(wide, 99, x.dtype(), x.device()).slice(-1, 1, wide[x.dims() - 1], 2);
            result.copy_(x);
            return result;
        }
        case MemoryLayout::opaque: return convolved(x);
        case MemoryLayout::view_of_opaque: {
            const std::int64_t rows = x.size(0);
            return convolved(cat({x, x})).slice(0, rows, 2 * rows);
        }
        case MemoryLayout::plain: break;
    }
    return x;
}

/// Largest difference relative to the largest finite element of `expected`, or to 1. NaN if one is NaN or infinite and
/// the other is not the same.
double error(const Array& found, const Array& expected) {
    double difference = 0, scale = 1;
    for (const double value : expected.v)
        if (std::isfinite(value)) scale = std::max(scale, std::abs(value));
    for (std::size_t i = 0; i < expected.v.size(); ++i) {
        if (found.v[i] == expected.v[i] || (std::isnan(found.v[i]) && std::isnan(expected.v[i]))) continue;
        const double d = std::abs(found.v[i] - expected.v[i]);
        if (!(d <= difference)) difference = std::isinf(d) ? NAN : d;
        if (std::isnan(difference)) break;
    }
    return difference / scale;
}

struct Expectation {
    std::vector<Input> inputs;
    std::vector<Array> in;
    Array y, dy;
    std::vector<Array> gradients;
};

Expectation make_expectation(const Op& op) {
    Expectation e;
    e.inputs = op.inputs();
    for (std::size_t i = 0; i < e.inputs.size(); ++i)
        e.in.push_back(make_values(e.inputs[i], static_cast<std::uint32_t>(i)));
    e.y = op.reference(e.in);
    e.dy = make_values({e.y.shape}, 77);
    if (op.has_gradient()) e.gradients = op.reference_gradients(e.in, e.dy);
    return e;
}

/// Computed once: finite differences, for entries without loops for their gradients, take most of the time.
const std::vector<std::pair<std::unique_ptr<Op>, Expectation>>& expectations() {
    static const auto made = [] {
        std::vector<std::pair<std::unique_ptr<Op>, Expectation>> all;
        for (auto& op : make_table()) {
            Expectation expectation = make_expectation(*op);
            all.emplace_back(std::move(op), std::move(expectation));
        }
        return all;
    }();
    return made;
}

/// Runs `op` with the inputs [first, last) in the given layout, and the gradient as well if that is opaque.
void check(const Op& op, const Expectation& e, Device device, DType dtype, MemoryLayout layout, std::size_t first,
           std::size_t last) {
    INFO(op.name() << " on " << device.str() << ", " << lockstep::name_of(dtype) << ", inputs " << first << " to "
                   << last << " " << name_of(layout));
    std::vector<Tensor> in;
    for (std::size_t i = 0; i < e.inputs.size(); ++i) {
        Tensor x = to_tensor(e.in[i], e.inputs[i], dtype, device);
        if (i >= first && i < last) x = laid(x, layout);
        if (layout == MemoryLayout::opaque && device.kind() == DeviceKind::cpu && i >= first && i < last &&
            applies(layout, x))
            REQUIRE(x.impl()->storage->opaque != nullptr);
        // A separate leaf, on the same memory.
        x = x.detach();
        if (e.inputs[i].gradient) x.requires_grad_();
        in.push_back(x);
    }
    manual_seed(seed);
    const Tensor y = op.run(in);
    REQUIRE(y.shape() == to_shape(e.y.shape));
    REQUIRE(y.device() == device);
    if (layout == MemoryLayout::opaque && first == 0 && op.keeps_layout() && in[0].impl()->storage->opaque) {
        const auto& opaque = y.impl()->storage->opaque;
        CHECK((opaque ? opaque->str() : "plain") == in[0].impl()->storage->opaque->str());
    }
    const double bound = dtype == DType::f64 ? 1e-12 : op.bound();
    CHECK(error(to_array(y), e.y) <= bound);
    if (!op.has_gradient()) return;
    if (layout == MemoryLayout::plain) {  // without autograd, so that nothing is saved for backward
        const NoGrad no_grad;
        manual_seed(seed);
        CHECK(error(to_array(op.run(in)), to_array(y)) == 0);
    }
    Tensor dy = to_tensor(e.dy, {e.y.shape}, dtype, device);
    if (layout == MemoryLayout::opaque) dy = laid(dy, layout);
    y.backward(dy);
    for (std::size_t i = 0; i < in.size(); ++i) {
        INFO("gradient of input " << i);
        REQUIRE(in[i].grad().defined() == e.inputs[i].gradient);
        if (!e.inputs[i].gradient) continue;
        REQUIRE(in[i].grad().shape() == in[i].shape());
        CHECK(error(to_array(in[i].grad()), e.gradients[i]) <= (dtype == DType::f64 ? 1e-7 : op.bound()));
    }
}

std::vector<Device> devices() {
    std::vector<Device> list{Device::host(), Device::cpu(0)};
    if (device_count(DeviceKind::cuda) > 0) list.push_back(Device::cuda(0));
    return list;
}

/// Whether there is an f64 kernel: on CUDA devices, convolutions have none.
bool computes_f64(const Op& op, Device device) {
    return device.kind() == DeviceKind::cpu || op.name().find("conv") == std::string::npos;
}

}  // namespace

TEST_CASE("every entry of the op table agrees with its loops") {
    for (const auto& [op, e] : expectations()) {
        for (const Device device : devices()) {
            check(*op, e, device, DType::f32, MemoryLayout::plain, 0, e.in.size());
            if (computes_f64(*op, device)) check(*op, e, device, DType::f64, MemoryLayout::plain, 0, e.in.size());
        }
    }
}

TEST_CASE("every entry has values and gradients in f16 and bf16") {
    const Device device = devices().back();
    for (const auto& [op, e] : expectations()) {
        if (op->is_special()) continue;
        for (const DType dtype : {DType::bf16, DType::f16}) {
            INFO(op->name() << " on " << device.str() << ", " << lockstep::name_of(dtype));
            std::vector<Tensor> rounded;  // the inputs, rounded to 16 bits
            std::vector<Array> exact;
            for (std::size_t i = 0; i < e.in.size(); ++i) {
                const Tensor x = to_tensor(e.in[i], e.inputs[i], DType::f32, device);
                rounded.push_back(is_floating(x.dtype()) ? x.to(dtype) : x);
                exact.push_back(to_array(rounded.back()));
            }
            const auto run = [&, &entry = *op, &expected = e](DType as) {
                std::vector<Tensor> in;
                for (std::size_t i = 0; i < rounded.size(); ++i) {
                    in.push_back(is_floating(rounded[i].dtype()) ? rounded[i].to(as).detach() : rounded[i]);
                    if (expected.inputs[i].gradient) in.back().requires_grad_();
                }
                manual_seed(seed);
                const Tensor y = entry.run(in);
                std::vector<Array> results{to_array(y)};
                if (!entry.has_gradient()) return results;
                y.backward(to_tensor(expected.dy, {expected.y.shape}, DType::f32, device).to(y.dtype()));
                for (const Tensor& x : in)
                    if (x.grad().defined()) {
                        CHECK(x.grad().dtype() == as);
                        results.push_back(to_array(x.grad()));
                    }
                return results;
            };
            // Some entries are several operations, each of which rounds.
            const double bound = 8 * (dtype == DType::bf16 ? 0x1p-9 : 0x1p-12);
            const auto found = run(dtype), wide = run(DType::f32);
            CHECK(error(found[0], op->reference(exact)) <= bound);
            REQUIRE(found.size() == wide.size());
            for (std::size_t i = 1; i < found.size(); ++i) {
                INFO("gradient " << i);
                CHECK(error(found[i], wide[i]) <= 2 * bound);
            }
        }
    }
}

TEST_CASE("inputs may have any memory layout") {
    for (const auto& [op, e] : expectations()) {
        for (const Device device : devices()) {
            if (device.is_host()) continue;
            for (const MemoryLayout layout : all_layouts) {
                std::size_t count = 0;
                for (std::size_t i = 0; i < e.in.size(); ++i) {
                    if (layout == MemoryLayout::plain ||
                        !applies(layout, to_tensor(e.in[i], e.inputs[i], DType::f32, device)))
                        continue;
                    ++count;
                    check(*op, e, device, DType::f32, layout, i, i + 1);
                }
                if (count > 1) check(*op, e, device, DType::f32, layout, 0, e.in.size());
                if (count > 0 && layout == MemoryLayout::transposed && computes_f64(*op, device))
                    check(*op, e, device, DType::f64, layout, 0, e.in.size());
            }
        }
    }
}

TEST_CASE("the loops' own gradients agree with finite differences") {
    for (const auto& [op, e] : expectations()) {
        if (!op->has_gradient() || op->is_special()) continue;
        std::ptrdiff_t work = e.y.size();
        for (const Array& in : e.in) work = std::max(work, in.size());
        if (work > 700) continue;  // finite differences take quadratic time
        INFO(op->name());
        const std::vector<Array> differences = op->Op::reference_gradients(e.in, e.dy);
        for (std::size_t i = 0; i < e.in.size(); ++i)
            if (e.inputs[i].gradient) CHECK(error(e.gradients[i], differences[i]) < 1e-8);
    }
}

TEST_CASE("the output of a convolution on a CPU device is opaque, and a view makes it strided") {
    const Tensor x = convolved(Tensor::randn({2, 16, 6, 6}).to(Device::cpu(0)));
    REQUIRE(x.impl()->storage->opaque != nullptr);
    const Tensor last = convolved(Tensor::randn({2, 10, 6, 6}).to(Device::cpu(0)));
    REQUIRE(last.impl()->storage->opaque != nullptr);
    CHECK(last.impl()->storage->opaque->str() == "nhwc");
    const std::vector<float> values = x.clone().to_vector<float>();
    const std::uint64_t version = x.version();
    const Tensor view = x.transpose(1, 2);
    CHECK(x.impl()->storage->opaque == nullptr);
    CHECK(x.version() == version);
    CHECK(x.to_vector<float>() == values);
    CHECK(view.transpose(1, 2).to_vector<float>() == values);
}

TEST_CASE("gradients are computed only for tensors that require them") {
    const Tensor x = Tensor::randn({2, 16, 6, 6});
    const Tensor w = Tensor::randn({32, 16, 3, 3});
    w.requires_grad_();
    conv2d(x, w).backward(Tensor::randn({2, 32, 4, 4}));
    CHECK(w.grad().defined());
    CHECK_FALSE(x.grad().defined());
    const NoGrad no_grad;
    CHECK_FALSE(conv2d(x, w).requires_grad());
}

TEST_CASE("operations keep the batch tag if dimension 0 still counts rows, in outputs and gradients") {
    for (const auto& [op, e] : expectations()) {
        if (op->is_special()) continue;  // the same functions
        for (std::size_t tagged = 0; tagged < e.in.size(); ++tagged) {
            if (e.inputs[tagged].shape.empty()) continue;
            INFO(op->name() << ", input " << tagged);
            std::vector<Tensor> in;
            for (std::size_t i = 0; i < e.in.size(); ++i) {
                in.push_back(to_tensor(e.in[i], e.inputs[i], DType::f32, Device::host()).tag_batch(i == tagged));
                if (e.inputs[i].gradient) in.back().requires_grad_();
            }
            const Tensor y = op->run(in);
            CHECK(y.is_batch() == op->hands_on_batch(tagged));
            if (!op->has_gradient()) continue;
            y.backward(to_tensor(e.dy, {e.y.shape}, DType::f32, Device::host()).tag_batch(y.is_batch()));
            for (std::size_t i = 0; i < in.size(); ++i) {
                const bool parameter = i == tagged && i > 0 && !op->hands_on_batch(i);  // never tagged
                if (in[i].grad().defined() && !parameter) CHECK(in[i].grad().is_batch() == in[i].is_batch());
            }
        }
    }
}

TEST_CASE("every call draws new masks, and the same seed repeats them") {
    const Tensor x = Tensor::full({64, 64}, 1);
    manual_seed(3);
    const auto first = dropout(x).to_vector<float>();
    const auto second = dropout(x).to_vector<float>();
    CHECK(first != second);
    manual_seed(3);
    CHECK(dropout(x).to_vector<float>() == first);
    manual_seed(4);
    CHECK(dropout(x).to_vector<float>() != first);
    double kept = 0;
    for (const float value : first) kept += value > 0;
    CHECK(kept / 4096 == Approx(0.5).margin(0.05));
    CHECK(dropout(x, 0.5, false).to_vector<float>() == x.to_vector<float>());
    CHECK(sum(dropout(x, 1.0)).item() == 0);
}

TEST_CASE("integers combined with integers stay integers, and become f32 where they do in PyTorch") {
    using Integers = std::vector<std::int64_t>;
    using Floats = std::vector<float>;
    for (const Device device : devices()) {
        INFO(device.str());
        const Tensor a = Tensor::from(Integers{7, -7}, {2}, device);
        CHECK((a * 2 - 1).to_vector<std::int64_t>() == Integers{13, -15});
        CHECK((1 - a + true).to_vector<std::int64_t>() == Integers{-5, 9});
        CHECK((a * 2.5).to_vector<float>() == Floats{17.5F, -17.5F});
        CHECK((0.5 - a).to_vector<float>() == Floats{-6.5F, 7.5F});
        CHECK((a + 1.0).to_vector<float>() == Floats{8, -6});
        CHECK((a - 0.25F).to_vector<float>() == Floats{6.75F, -7.25F});
        CHECK((a / 2).to_vector<float>() == Floats{3.5F, -3.5F});
        CHECK((14 / a).to_vector<float>() == Floats{2, -2});
        CHECK((a / Tensor::from(Integers{2}, {1}, device)).to_vector<float>() == Floats{3.5F, -3.5F});
        CHECK((a / Tensor::from(Integers{0}, {1}, device)).to_vector<float>() == Floats{INFINITY, -INFINITY});
        const Tensor bytes = Tensor::from(std::vector<std::uint8_t>{1, 255}, {2}, device);
        CHECK((bytes + 300).to_vector<std::uint8_t>() == std::vector<std::uint8_t>{45, 43});
        const Tensor words = Tensor::from(std::vector<std::int32_t>{1, -2}, {2}, device);
        CHECK((words * (std::int64_t{1} << 31)).to_vector<std::int32_t>() == std::vector<std::int32_t>{INT32_MIN, 0});
        CHECK_THROWS_AS(relu(a), InvalidArgument);
        CHECK_THROWS_AS(a + Tensor::scalar(1, DType::f32, device), InvalidArgument);
        CHECK_THROWS_AS(a / words, InvalidArgument);
        CHECK_THROWS_AS(a + (std::int64_t{1} << 53), InvalidArgument);
    }
}

TEST_CASE("numbers are compared with integers and chosen for them exactly, or refused") {
    using Flags = std::vector<std::uint8_t>;
    for (const Device device : devices()) {
        INFO(device.str());
        const auto flags = [](const Tensor& x) { return x.to(DType::u8).to_vector<std::uint8_t>(); };
        const Tensor bytes = Tensor::from(std::vector<std::uint8_t>{0, 44, 255}, {3}, device);
        CHECK(flags(bytes < 300) == Flags{1, 1, 1});
        CHECK(flags(eq(bytes, 300)) == Flags{0, 0, 0});  // not 44
        CHECK(flags(bytes > -1) == Flags{1, 1, 1});
        CHECK(flags(bytes >= 43.5) == Flags{0, 1, 1});
        CHECK(flags(43.5 <= bytes) == flags(bytes >= 43.5));
        CHECK(flags(1 < bytes) == flags(bytes > 1));
        CHECK(flags(1 >= bytes) == flags(bytes <= 1));
        CHECK(flags(255 > bytes) == flags(bytes < 255));
        const Tensor truth = bytes > 0;
        CHECK(flags(truth < 2) == Flags{1, 1, 1});
        CHECK(flags(eq(truth, true)) == Flags{0, 1, 1});
        const std::int64_t large = (std::int64_t{1} << 53) + 1;
        const Tensor longs = Tensor::from(std::vector<std::int64_t>{large, large - 1}, {2}, device);
        CHECK(flags(eq(longs, Tensor::from(std::vector<std::int64_t>{large}, {1}, device))) == Flags{1, 0});
        CHECK_THROWS_AS(eq(longs, large), InvalidArgument);
        CHECK_THROWS_AS(masked_fill(longs, eq(longs, longs), large), InvalidArgument);
        CHECK_THROWS_AS(where(eq(longs, longs), longs, INFINITY), InvalidArgument);
        const Tensor words = Tensor::from(std::vector<std::int32_t>{1, -2}, {2}, device);
        CHECK(flags(words < (std::int64_t{1} << 40)) == Flags{1, 1});
        CHECK_THROWS_AS(masked_fill(words, words > 0, std::int64_t{1} << 31), InvalidArgument);
        CHECK_THROWS_AS(masked_fill(bytes, truth, 256), InvalidArgument);
        CHECK_THROWS_AS(masked_fill(words, words > 0, 0.5), InvalidArgument);
        CHECK_THROWS_AS(where(words, words, words), InvalidArgument);
        CHECK(message_of<InvalidArgument>([&] { masked_fill(words, words, 1); }) ==
              "masked_fill: the mask has dtype i32; expected bool");
        CHECK_THROWS_AS(where(words > 0, words, longs), InvalidArgument);
        CHECK_THROWS_AS(lt(words, longs), InvalidArgument);
        CHECK_THROWS_AS(maximum(truth, truth), InvalidArgument);
        CHECK(masked_fill(words.to(DType::f32), words < 0, -INFINITY).to_vector<float>() ==
              std::vector<float>{1, -INFINITY});
    }
}

TEST_CASE("arguments of functions with indices") {
    const Tensor x = Tensor::from(std::vector<std::int64_t>{10, 11, 12, 20, 21, 22}, {2, 3});
    const auto indices = [](const std::vector<std::int64_t>& values, const Shape& shape) {
        return Tensor::from(values, shape);
    };
    using Numbers = std::vector<std::int64_t>;
    CHECK(index_select(x, 1, indices({2, 2}, {2})).to_vector<std::int64_t>() == Numbers{12, 12, 22, 22});
    CHECK(index_select(x, -2, indices({1}, {1})).shape() == Shape{1, 3});
    CHECK(index_select(x, 0, indices({1}, {})).shape() == Shape{1, 3});
    CHECK(index_select(x, 0, indices({}, {0})).shape() == Shape{0, 3});
    CHECK(index_select(x.select(0, 1).select(0, 2), 0, indices({0}, {1})).item() == 22);
    CHECK(gather(x, 1, indices({0, 2}, {2, 1})).to_vector<std::int64_t>() == Numbers{10, 22});
    CHECK(gather(x.transpose(0, 1), 0, indices({2, 0}, {1, 2})).to_vector<std::int64_t>() == Numbers{12, 20});
    CHECK(gather(x.select(0, 0), 0, indices({1}, {})).shape() == Shape{});
    CHECK(take_along_dim(x, indices({5, 0}, {2})).to_vector<std::int64_t>() == Numbers{22, 10});
    CHECK(take_along_dim(x, indices({1}, {1, 1}), 1).to_vector<std::int64_t>() == Numbers{11, 21});
    CHECK(take_along_dim(x.select(0, 0).reshape({1, 3}), indices({1, 2}, {2, 1}), -1).to_vector<std::int64_t>() ==
          Numbers{11, 12});
    CHECK(scatter_add(x, 1, indices({0, 0, 2, 1}, {2, 2}), x).to_vector<std::int64_t>() ==
          Numbers{31, 11, 12, 20, 42, 42});
    CHECK(scatter_add(x, 0, indices({}, {0, 3}), x).to_vector<std::int64_t>() == Numbers{10, 11, 12, 20, 21, 22});

    const auto rejected = [](const std::function<void()>& call, const std::string& message) {
        CHECK(message_of<InvalidArgument>(call) == message);
    };
    const Tensor at = indices({0, 1}, {2}), weight = Tensor::zeros({4, 3});
    rejected([&] { embedding(weight, weight); },
             "embedding: index (4, 3) has dtype f32; expected i64 (use .to(DType::i64))");
    rejected([&] { embedding(at, x); },
             "embedding: weight (2, 3) has dtype i64; expected a floating dtype (use .to(DType::f32))");
    rejected([&] { index_select(x, 0, x); }, "index_select: index (2, 3) is not a vector; expected one dimension");
    CHECK_THROWS_AS(embedding(at, Tensor::zeros({4})), InvalidArgument);
    CHECK_THROWS_AS(index_select(x, 2, at), InvalidArgument);
    rejected(
        [&] { gather(x, 1, at); },
        "gather: index (2,) does not fit the tensor (2, 3); expected as many dimensions, and sizes that are not larger "
        "except along dimension 1");
    CHECK_THROWS_AS(gather(x, 1, indices({0, 0, 0}, {3, 1})), InvalidArgument);
    CHECK_THROWS_AS(take_along_dim(x, at, 1), InvalidArgument);
    CHECK_THROWS_AS(take_along_dim(x, indices({0, 0, 0}, {3, 1}), 1), InvalidArgument);
    CHECK_THROWS_AS(scatter_add(x, 1, indices({0, 0, 0, 0}, {1, 4}), x), InvalidArgument);
    CHECK_THROWS_AS(scatter_add(x, 1, indices({0}, {1, 1}), weight), InvalidArgument);

    // Only the device sees the values.
    const Tensor beyond = index_select(weight, 0, indices({3, 4}, {2}));
    CHECK(message_of<InvalidArgument>([&] { (void)sum(beyond).item(); }) ==
          "index_select: index 4 in row 1 is out of range; expected 0 to (size of the dimension - 1)");
    const Tensor words = embedding(indices({0, 1, 2, -1, 0, 0}, {3, 2}), weight);
    CHECK(message_of<InvalidArgument>([&] { (void)sum(words).item(); }) ==
          "embedding: index -1 in row 1 is out of range; expected 0 to (size of the dimension - 1)");
}

TEST_CASE("arguments of functions that cut and repeat") {
    const Tensor x = Tensor::from(std::vector<std::int64_t>{1, 2, 3, 4, 5, 6}, {3, 2});
    using Numbers = std::vector<std::int64_t>;
    CHECK(ones_like(x).dtype() == DType::i64);
    CHECK(ones_like(x).to_vector<std::int64_t>() == Numbers{1, 1, 1, 1, 1, 1});
    CHECK(full_like(x.slice(0, 0, 1), -3).to_vector<std::int64_t>() == Numbers{-3, -3});
    CHECK(zeros_like(x.tag_batch()).is_batch());
    CHECK(split(x, 2).size() == 2);
    CHECK(split(x, 2)[1].to_vector<std::int64_t>() == Numbers{5, 6});
    CHECK(split(x.slice(0, 0, 0), 2).size() == 1);
    CHECK(chunk(x, 2)[0].shape() == Shape{2, 2});
    CHECK(chunk(x, 9).size() == 3);
    CHECK(chunk(x.slice(0, 0, 0), 4).size() == 4);
    CHECK(flip(x, {0, 1}).to_vector<std::int64_t>() == Numbers{6, 5, 4, 3, 2, 1});
    CHECK(flip(x, {}).to_vector<std::int64_t>() == Numbers{1, 2, 3, 4, 5, 6});
    CHECK(roll(x, -1, 0).to_vector<std::int64_t>() == Numbers{3, 4, 5, 6, 1, 2});
    CHECK(repeat(x, {0, 1}).shape() == Shape{0, 2});
    CHECK(repeat(x.select(0, 0), {2, 1}).to_vector<std::int64_t>() == Numbers{1, 2, 1, 2});
    CHECK(repeat_interleave(x, 0, 1).shape() == Shape{3, 0});
    CHECK(tril(x > 2).to(DType::i64).to_vector<std::int64_t>() == Numbers{0, 0, 1, 1, 1, 1});
    const Tensor y = Tensor::zeros({2}), z = Tensor::zeros({3});
    CHECK(message_of<InvalidArgument>([&] {
              stack({y, z});
          }) == "stack: tensors of shapes (2,) and (3,); expected equal shapes");
    CHECK(message_of<InvalidArgument>([&] {
              split(x, {1, 1});
          }) == "split: the sizes add up to 2; expected 3, the size of dimension 0 of (3, 2)");
    CHECK_THROWS_AS(stack({}), InvalidArgument);
    CHECK_THROWS_AS(stack({x}), InvalidArgument);
    CHECK_THROWS_AS(stack({y}, 2), InvalidArgument);
    CHECK_THROWS_AS(split(x, 0), InvalidArgument);
    CHECK_THROWS_AS(split(x, {4, -1}), InvalidArgument);
    CHECK_THROWS_AS(chunk(x, 0), InvalidArgument);
    CHECK_THROWS_AS(flip(x, {1, -1}), InvalidArgument);
    CHECK_THROWS_AS(roll(x, 1, 2), InvalidArgument);
    CHECK_THROWS_AS(repeat(x, {2}), InvalidArgument);
    CHECK_THROWS_AS(repeat(x, {1, -2}), InvalidArgument);
    CHECK_THROWS_AS(repeat_interleave(x, -1, 0), InvalidArgument);
    CHECK_THROWS_AS(triu(y), InvalidArgument);
    CHECK_THROWS_AS(split(Tensor::scalar(1), 1), InvalidArgument);
}

TEST_CASE("extremes, norms and moments of special values") {
    const auto nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    using Floats = std::vector<float>;
    using Numbers = std::vector<std::int64_t>;
    const Tensor x = Tensor::from(Floats{1, nan, 3, nan, 2, 2, 1, 2, -inf, inf, -inf, inf}, {4, 3}).requires_grad_();
    const auto [largest, where_largest] = (max)(x, 1);
    CHECK(std::isnan(largest.to_vector<float>()[0]));
    CHECK(where_largest.to_vector<std::int64_t>() == Numbers{1, 0, 1, 0});
    CHECK((min)(x, 1).indices.to_vector<std::int64_t>() == Numbers{1, 0, 2, 1});
    CHECK(argmin(x, 1).to_vector<std::int64_t>() == Numbers{1, 0, 2, 1});
    CHECK(amax(x.slice(0, 2, 4), 1).to_vector<float>() == Floats{2, inf});

    // Equal extremes: the first one has the gradient of max, all share that of amax.
    Tensor equal = Tensor::from(Floats{2, 5, 5, 5}, {2, 2}).requires_grad_();
    sum((max)(equal, 1).values).backward();
    CHECK(equal.grad().to_vector<float>() == Floats{0, 1, 1, 0});
    equal = equal.detach().clone().requires_grad_();
    amax(equal).backward();
    const float third = 1.0F / 3;
    CHECK(equal.grad().to_vector<float>() == Floats{0, third, third, third});

    // At 0 the norm and the deviation have the gradient 0.
    Tensor zero = Tensor::zeros({3}).requires_grad_();
    (norm(zero) + lockstep::std(zero)).backward();
    CHECK(zero.grad().to_vector<float>() == Floats{0, 0, 0});
    CHECK(std::isnan(var(Tensor::ones({1})).item()));
    CHECK(var(Tensor::from(Floats{1, 3, nan}, {3}).slice(0, 0, 2), {}, 0).item() == 1);

    CHECK(std::abs(logsumexp(Tensor::from(Floats{1000, 1000}, {2}), 0).item() - 1000.693147) < 1e-4);
    CHECK(logsumexp(Tensor::from(Floats{-inf, -inf}, {2}), 0).item() == -inf);
    CHECK(logsumexp(Tensor::from(Floats{-inf, inf}, {2}), 0).item() == inf);
    CHECK(std::isnan(logsumexp(Tensor::from(Floats{nan, 1}, {2}), 0).item()));

    // Scalars and empty tensors.
    CHECK((max)(Tensor::scalar(3), -1).values.item() == 3);
    CHECK(amin(Tensor::scalar(3)).item() == 3);
    CHECK(norm(Tensor::scalar(-3)).item() == 3);
    CHECK(any(Tensor::zeros({2, 0}), 1).to(DType::i64).to_vector<std::int64_t>() == Numbers{0, 0});
    CHECK(all(Tensor::zeros({2, 0}), 1).to(DType::i64).to_vector<std::int64_t>() == Numbers{1, 1});
    CHECK(any(Tensor::from(Floats{0, nan}, {2})).item() == 1);
    CHECK(all(Tensor::from(Numbers{3, -1}, {2})).item() == 1);
    CHECK(message_of<InvalidArgument>([] {
              (max)(Tensor::zeros({2, 0}), 1);
          }) == "max: dimension 1 of (2, 0) is empty; expected at least one element");
    CHECK(message_of<InvalidArgument>([] { norm(Tensor::zeros({2}), 3); }) ==
          "norm: invalid order (3); expected 1, 2 or infinity");
    CHECK_THROWS_AS(amax(Tensor::zeros({0})), InvalidArgument);
    CHECK_THROWS_AS(amax(Tensor::zeros({2, 1}), {0, -2}), InvalidArgument);
    CHECK_THROWS_AS(any(Tensor::zeros({2, 1}), {1, 1}), InvalidArgument);
    CHECK_THROWS_AS((min)(Tensor::zeros({2}, DType::i64), 0), InvalidArgument);
    CHECK_THROWS_AS(var(Tensor::zeros({2}), 1), InvalidArgument);
    CHECK_THROWS_AS(outer(Tensor::zeros({2, 2}), Tensor::zeros({2})), InvalidArgument);
}

TEST_CASE("pooling propagates NaN in every layout, as in PyTorch") {
    // The square root makes some elements NaN in place.
    for (const std::int64_t channels : {1, 10, 16, 20, 32})
        for (const std::int64_t window : {2, 3}) {
            INFO(channels << " channels, windows of " << window);
            manual_seed(4);
            Tensor x = Tensor::randn({2, channels, 7, 9}).to(Device::cpu(0)) + 1.0;
            x = channels == 1 ? x : convolved(x);
            const Tensor lying = sqrt(x).detach(), plain = lying.contiguous().clone().detach();
            lying.requires_grad_();
            plain.requires_grad_();
            const int size = static_cast<int>(window);
            const Tensor found = max_pool2d(lying, size, Pair(2), size / 2),
                         y = max_pool2d(plain, size, Pair(2), size / 2);
            CHECK(error(to_array(found), to_array(y)) == 0);
            std::vector<float> values = y.detach().to_vector<float>();
            CHECK(std::any_of(values.begin(), values.end(), [](float value) { return std::isnan(value); }));
            const Tensor dy = Tensor::randn(y.shape()).to(Device::cpu(0));
            found.backward(dy);
            y.backward(dy);
            CHECK(error(to_array(lying.grad()), to_array(plain.grad())) == 0);
        }
}

TEST_CASE("non-finite numbers do not reach the padding of a blocked tensor") {
    const Tensor x = convolved(Tensor::randn({2, 10, 4, 4}).to(Device::cpu(0)));
    const Tensor w = Tensor::full({16, 10, 1, 1}, 1, DType::f32, Device::cpu(0));
    const Tensor spoiled = conv2d(x * INFINITY, w) * 0.0;  // all NaN
    CHECK(std::isnan(sum(spoiled).item()));
    const Tensor ten_channels = conv2d(Tensor::full({1, 1, 8, 8}, 1, DType::f32, Device::cpu(0)),
                                       Tensor::full({10, 1, 5, 5}, 1, DType::f32, Device::cpu(0)));
    const Tensor y = conv2d(ten_channels * INFINITY, Tensor::full({16, 10, 1, 1}, 1, DType::f32, Device::cpu(0)));
    for (const float value : y.to_vector<float>()) CHECK(value == INFINITY);
}
