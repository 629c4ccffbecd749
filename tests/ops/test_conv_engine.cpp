// CPU convolutions: every path against loops in double, on every instruction set of this machine.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/ops/cpu/conv/conv_engine.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/reference/conv.h"
#include "lockstep/tests/reference/relative_error.h"

using namespace lockstep;
using namespace lockstep::cpu;
using lockstep::test::message_of;
using reference::relative_error;

namespace {

/// Floats aligned to 64 bytes, filled with NaN so that unwritten elements are noticed.
class Aligned {
public:
    explicit Aligned(std::size_t bytes)
        : size_(bytes / sizeof(float)), data_(static_cast<float*>(std::aligned_alloc(64, (bytes + 64) / 64 * 64))) {
        if (data_ == nullptr) throw std::bad_alloc();
        std::fill(data_.get(), data_.get() + size_, NAN);
    }
    float* data() const { return data_.get(); }
    std::vector<float> values() const { return {data_.get(), data_.get() + size_}; }

private:
    struct Free {
        void operator()(float* p) const { std::free(p); }
    };
    std::size_t size_;
    std::unique_ptr<float, Free> data_;
};

void reorder(const onednn::Desc& from, float* source, const onednn::Desc& to, float* target) {
    dnnl::memory a(from, onednn::cpu_engine(), source), b(to, onednn::cpu_engine(), target);
    dnnl::reorder(a, b).execute(onednn::cpu_stream(), a, b);
    onednn::cpu_stream().wait();
}

onednn::Desc plain_like(const onednn::Desc& desc) {
    return {onednn::dims(desc), dnnl::memory::data_type::f32, dnnl::memory::format_tag::nchw};
}

Aligned in_layout(std::vector<float> plain, const onednn::Desc& layout) {
    Aligned result(layout.get_size());
    reorder(plain_like(layout), plain.data(), layout, result.data());
    return result;
}

std::vector<float> as_plain(const Aligned& data, const onednn::Desc& layout) {
    const onednn::Desc plain = plain_like(layout);
    std::vector<float> result(plain.get_size() / sizeof(float));
    reorder(layout, data.data(), plain, result.data());
    return result;
}

std::vector<float> normal(std::ptrdiff_t size, unsigned seed, float scale = 1.0F) {
    std::mt19937 generator(seed);
    std::normal_distribution<float> distribution(0.0F, scale);
    std::vector<float> values(static_cast<std::size_t>(size));
    for (float& value : values) value = distribution(generator);
    return values;
}

/// Results of the three passes of one engine, in plain layout.
struct Results {
    std::vector<float> y, dx, dw, db;
    std::array<std::vector<float>, 2> blocked;  // y and dx as the engine wrote them, padding included
};

struct Data {
    std::vector<float> x, w, bias, dy;
    explicit Data(const reference::ConvShape& s)
        : x(normal(s.x_size(), 1)),
          w(normal(s.w_size(), 2, 1.0F / std::sqrt(static_cast<float>(s.group_c() * s.kh * s.kw)))),
          bias(normal(s.k, 3)),
          dy(normal(s.y_size(), 4)) {}
};

Results run(const ConvEngine& engine, const Data& data) {
    const onednn::Desc& src = engine.src_layout();
    const onednn::Desc& dst = engine.dst_layout();
    const Aligned x = in_layout(data.x, src), dy = in_layout(data.dy, dst);
    const Aligned y(dst.get_size()), dx(src.get_size());
    // Offset of one float: parameters may be anywhere in their arena.
    std::vector<float> w(data.w.size() + 1), dw(data.w.size() + 1, NAN), db(data.bias.size() + 1, NAN);
    std::copy(data.w.begin(), data.w.end(), w.begin() + 1);
    const auto with_scratch = [&](auto pass) {
        const Aligned scratch(engine.scratch_bytes());
        pass(scratch.data());
    };
    with_scratch([&](void* s) { engine.forward(x.data(), w.data() + 1, data.bias.data(), false, y.data(), s); });
    with_scratch([&](void* s) { engine.backward_data(dy.data(), w.data() + 1, nullptr, dx.data(), s); });
    with_scratch([&](void* s) { engine.backward_weights(x.data(), dy.data(), dw.data() + 1, db.data() + 1, s); });
    return {as_plain(y, dst),
            as_plain(dx, src),
            {dw.begin() + 1, dw.end()},
            {db.begin() + 1, db.end()},
            {y.values(), dx.values()}};
}

std::vector<Isa> isas() {
    std::vector<Isa> result;
    for (const Isa isa : {Isa::generic, Isa::avx2, Isa::avx512})
        if (isa <= allowed_isa()) result.push_back(isa);
    return result;
}

ConvShape engine_shape(const reference::ConvShape& s) {
    return {s.n,
            s.c,
            s.h,
            s.w,
            s.k,
            s.kh,
            s.kw,
            {s.stride.h, s.stride.w},
            {s.pad.h, s.pad.w},
            true,
            {s.dilation.h, s.dilation.w},
            s.groups};
}

bool same_bits(std::vector<float> a, std::vector<float> b) {
    for (std::vector<float>* values : {&a, &b})  // the compiler determines which NaN
        std::replace_if(
            values->begin(), values->end(), [](float value) { return std::isnan(value); }, NAN);
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// All algorithms on every instruction set; the first of each set is the choice of the rule.
std::vector<std::pair<Isa, std::string>> all_ways(const reference::ConvShape& s) {
    std::vector<std::pair<Isa, std::string>> result;
    for (const Isa isa : isas())
        for (const std::string& way : ConvEngine::algorithms(engine_shape(s), isa)) result.emplace_back(isa, way);
    return result;
}

void check_shape(const reference::ConvShape& s) {
    const Data data(s);
    const auto y = reference::conv_forward(s, data.x, data.w, data.bias);
    const auto dx = reference::conv_backward_data(s, data.dy, data.w);
    const auto dw = reference::conv_backward_weights(s, data.x, data.dy);
    const auto db = reference::conv_backward_bias(s, data.dy);
    for (const auto& [isa, way] : all_ways(s)) {
        const ConvEngine engine(engine_shape(s), 1, isa, way);
        const bool winograd = engine.path() == ConvPath::winograd;
        INFO(isa_name(isa) << ", " << way << ", x " << s.n << " " << s.c << " " << s.h << " " << s.w << ", weights "
                           << s.k << " " << s.kh << " " << s.kw << ", stride " << s.stride.h << " " << s.stride.w
                           << ", padding " << s.pad.h << " " << s.pad.w << ", dilation " << s.dilation.h << " "
                           << s.dilation.w << ", groups " << s.groups);
        // One sum of n random terms in float has an error of about 2^-24 sqrt(n / 6): oneDNN adds one by one. Winograd
        // rounds its transforms as well; the library's own sums have shorter parts.
        const auto bound = [&](std::ptrdiff_t terms) {
            return winograd ? 3e-6 : std::max(1e-6, 3e-8 * std::sqrt(static_cast<double>(terms)));
        };
        const std::ptrdiff_t outputs = engine.path() == ConvPath::direct ? s.n * s.out_h() * s.out_w() : 1;
        const Results got = run(engine, data);
        CHECK(relative_error(got.y, y) < bound(s.group_c() * s.kh * s.kw));
        CHECK(relative_error(got.dx, dx) < bound(s.group_k() * s.kh * s.kw));
        CHECK(relative_error(got.dw, dw) < bound(outputs));
        CHECK(relative_error(got.db, db) < (winograd ? 1e-6 : bound(outputs)));
        // The library's own kernels give the same bits on any number of threads; in the first layer that is only the
        // gradient.
        if (engine.path() == ConvPath::direct) continue;
        for (const int threads : {2, 3}) {
            const Results other = run(ConvEngine(engine_shape(s), threads, isa, way), data);
            CHECK(same_bits(other.dw, got.dw));
            CHECK(same_bits(other.db, got.db));
            if (engine.path() == ConvPath::first_layer) continue;
            CHECK(same_bits(other.blocked[0], got.blocked[0]));
            CHECK(same_bits(other.blocked[1], got.blocked[1]));
        }
    }
}

}  // namespace

TEST_CASE("Winograd convolutions", "[conv]") {
    check_shape({8, 32, 26, 26, 64, 3, 3, 1, 0});  // a shard of MNIST's second convolution
    check_shape({1, 32, 26, 26, 64, 3, 3, 1, 0});
    check_shape({2, 48, 7, 9, 80, 3, 3, 1, 1});  // a panel of one vector; sizes that are not multiples of 4
    check_shape({3, 16, 5, 3, 16, 3, 3, 1, 2});
    check_shape({1, 8, 3, 3, 24, 3, 3, 1, 0});      // one output, one tile, 8-wide vectors only
    check_shape({1, 16, 1, 1, 16, 3, 3, 1, 1});     // windows with only one sample outside the padding
    check_shape({24, 16, 20, 23, 32, 3, 3, 1, 1});  // enough tiles for slices; an output that is written past the cache
    check_shape({24, 32, 20, 23, 16, 3, 3, 1, 1});  // an input gradient that is
    check_shape({2, 64, 21, 18, 160, 3, 3, 1, 1});  // chunks
}

TEST_CASE("Winograd convolutions with large filters work in panels", "[conv]") {
    check_shape({1, 352, 6, 5, 352, 3, 3, 1, 1});
}

TEST_CASE("convolutions with few input channels", "[conv]") {
    check_shape({64, 1, 28, 28, 32, 3, 3, 1, 0});  // MNIST's first convolution
    check_shape({1, 1, 28, 28, 32, 3, 3, 1, 0});
    check_shape({5, 1, 28, 28, 10, 5, 5, 1, 0});  // the small network's: channels padded to a block
    check_shape({2, 3, 16, 24, 64, 3, 3, 1, 1});  // U-Net's
    check_shape({17, 4, 11, 13, 72, 3, 3, 2, 1});
    check_shape({3, 2, 9, 5, 20, 5, 5, 2, 2});
    check_shape({9, 1, 3, 3, 1, 3, 3, 1, 0});
}

TEST_CASE("direct convolutions", "[conv]") {
    check_shape({4, 10, 12, 12, 20, 5, 5, 1, 0});  // the small network's second convolution
    check_shape({1, 10, 12, 12, 20, 5, 5, 1, 0});
    check_shape({2, 64, 9, 11, 10, 1, 1, 1, 0});  // U-Net's last layer
    check_shape({2, 32, 9, 11, 64, 3, 3, 2, 1});
    check_shape({3, 20, 8, 7, 32, 3, 3, 1, 1});
    check_shape({2, 48, 8, 8, 64, 1, 1, 2, 0});
    check_shape({1, 1, 9, 9, 4, 1, 1, 1, 0});
    check_shape({2, 1, 12, 10, 6, 7, 7, 2, 2});
    check_shape({2, 16, 9, 8, 16, 5, 5, 1, 2});
}

TEST_CASE("convolutions with different strides or padding in the two directions", "[conv]") {
    check_shape({2, 3, 8, 11, 5, 2, 4, {2, 3}, {1, 2}});
    check_shape({2, 16, 9, 8, 32, 3, 3, {1, 1}, {0, 1}});
    check_shape({3, 32, 10, 9, 16, 3, 3, {2, 1}, {1, 1}});
    check_shape({2, 1, 12, 14, 10, 5, 5, {1, 2}, {2, 0}});
    check_shape({2, 10, 9, 12, 20, 3, 5, {1, 3}, {1, 2}});
    check_shape({2, 16, 7, 9, 16, 1, 7, {1, 1}, {0, 3}});
    check_shape({1, 24, 7, 6, 8, 1, 1, {3, 2}, {0, 0}});
}

TEST_CASE("depthwise convolutions", "[conv]") {
    check_shape({4, 64, 14, 14, 64, 3, 3, 1, 1, 1, 64});  // MobileNet's
    check_shape({2, 72, 14, 15, 72, 5, 5, 2, 2, 1, 72});
    check_shape({17, 16, 7, 7, 16, 3, 3, 1, 1, 1, 16});  // more images than slices
    check_shape({3, 32, 9, 11, 32, 3, 3, 1, 2, 2, 32});
    check_shape({2, 16, 11, 9, 16, 3, 3, 2, 2, 2, 16});  // half of the gradient's elements have no product
    check_shape({2, 6, 9, 8, 6, 3, 3, 1, 1, 1, 6});      // a block with padding
    check_shape({2, 20, 8, 7, 20, 3, 5, {1, 2}, {0, 3}, {3, 1}, 20});
    check_shape({1, 8, 5, 6, 8, 1, 1, 1, 0, 1, 8});
    check_shape({2, 8, 6, 7, 8, 1, 1, 3, 1, 1, 8});     // output from padding only
    check_shape({1, 10, 6, 6, 10, 2, 4, 3, 5, 1, 10});  // padding larger than the window
    check_shape({2, 8, 13, 12, 8, 7, 7, 1, 3, 1, 8});
    check_shape({1, 16, 20, 4, 16, 11, 1, 1, {5, 0}, 1, 16});
    check_shape({1, 24, 40, 33, 24, 3, 6, 1, 1, {4, 5}, 24});
}

TEST_CASE("convolutions with groups", "[conv]") {
    check_shape({2, 64, 9, 8, 64, 3, 3, 1, 1, 1, 4});   // whole blocks of channels
    check_shape({2, 64, 9, 8, 64, 3, 3, 1, 1, 1, 32});  // ResNeXt's
    check_shape({2, 16, 7, 9, 32, 3, 3, 2, 1, 1, 16});  // two results of each channel
    check_shape({3, 6, 9, 8, 4, 3, 3, 2, 1, 1, 2});
    check_shape({2, 24, 5, 6, 8, 1, 1, 1, 0, 1, 8});  // no window
    check_shape({1, 6, 8, 7, 9, 2, 3, {1, 2}, {1, 0}, {2, 1}, 3});
    check_shape({2, 32, 10, 9, 32, 3, 3, 1, 2, 2, 2});
}

TEST_CASE("convolutions with dilation", "[conv]") {
    check_shape({2, 32, 12, 11, 64, 3, 3, 1, 2, 2});  // not Winograd's
    check_shape({2, 3, 14, 13, 16, 3, 3, 1, 0, {2, 3}});
    check_shape({2, 1, 14, 13, 16, 5, 5, 1, 2, 2});  // not the first layer's
    check_shape({3, 10, 9, 12, 20, 3, 3, 2, 1, {1, 2}});
    check_shape({1, 16, 9, 9, 16, 1, 3, 1, {0, 4}, {7, 4}});
}

TEST_CASE("convolutions with fused ReLU give the bits of a separate ReLU", "[conv]") {
    const auto shape = GENERATE(reference::ConvShape{3, 32, 10, 9, 64, 3, 3, 1, 0},   // Winograd, partial tiles
                                reference::ConvShape{5, 16, 64, 64, 16, 3, 3, 1, 1},  // written past the cache
                                reference::ConvShape{2, 1, 28, 28, 10, 5, 5, 1, 0},   // padded channels
                                reference::ConvShape{2, 10, 12, 12, 20, 5, 5, 1, 0},  // channels last
                                reference::ConvShape{2, 20, 12, 11, 20, 3, 3, 1, 1, 1, 20});
    Data data(shape);
    data.x[7] = NAN;
    data.dy[11] = NAN;
    data.bias[1] = -100;  // ReLU sets a whole channel to zero
    for (const Isa isa : isas())
        for (const int threads : {1, 2}) {
            const ConvEngine engine(engine_shape(shape), threads, isa);
            const onednn::Desc &src = engine.src_layout(), &dst = engine.dst_layout();
            const Aligned x = in_layout(data.x, src), dy = in_layout(data.dy, dst), scratch(engine.scratch_bytes());
            const Aligned y(dst.get_size()), y_relu(dst.get_size()), dx(src.get_size()), dx_relu(src.get_size());
            engine.forward(x.data(), data.w.data(), data.bias.data(), false, y.data(), scratch.data());
            engine.forward(x.data(), data.w.data(), data.bias.data(), true, y_relu.data(), scratch.data());
            engine.backward_data(dy.data(), data.w.data(), nullptr, dx.data(), scratch.data());
            engine.backward_data(dy.data(), data.w.data(), x.data(), dx_relu.data(), scratch.data());
            std::vector<float> expected_y = y.values(), expected_dx = dx.values();
            const std::vector<float> made = x.values();
            for (float& value : expected_y) value = value < 0 ? 0 : value;
            for (std::size_t i = 0; i < made.size(); ++i)
                if (made[i] <= 0) expected_dx[i] = 0;  // NaN passes the gradient on
            INFO(isa_name(isa) << ", channels " << shape.c << " to " << shape.k << ", threads " << threads);
            CHECK(same_bits(y_relu.values(), expected_y));
            CHECK(same_bits(dx_relu.values(), expected_dx));
            CHECK(std::any_of(expected_y.begin(), expected_y.end(), [](float value) { return std::isnan(value); }));
            const auto of_nan = static_cast<std::size_t>(
                std::find_if(made.begin(), made.end(), [](float value) { return std::isnan(value); }) - made.begin());
            REQUIRE(of_nan < made.size());
            CHECK(dx_relu.values()[of_nan] != 0);
        }
}

TEST_CASE("the path for each shape", "[conv]") {
    const auto path = [](std::int64_t c, std::int64_t k, std::int64_t kernel, std::int64_t stride, Isa isa) {
        return ConvEngine({2, c, 12, 12, k, kernel, kernel, stride, 0, true}, 1, isa).path();
    };
    CHECK(path(32, 64, 3, 1, Isa::generic) == ConvPath::direct);
    CHECK(path(1, 32, 3, 1, Isa::generic) == ConvPath::direct);
    if (allowed_isa() < Isa::avx2) return;
    CHECK(path(32, 64, 3, 1, Isa::avx2) == ConvPath::winograd);
    CHECK(path(32, 64, 3, 2, Isa::avx2) == ConvPath::direct);
    CHECK(path(32, 64, 5, 1, Isa::avx2) == ConvPath::direct);
    CHECK(path(1, 10, 5, 1, Isa::avx2) == ConvPath::first_layer);
    CHECK(path(10, 20, 5, 1, Isa::avx2) == ConvPath::direct);
    const ConvEngine direct({2, 32, 12, 12, 64, 3, 3, 1, 0, true}, 1, allowed_isa(), ConvAlgorithm::direct);
    CHECK(direct.path() == ConvPath::direct);
    const auto grouped = [](std::int64_t c, std::int64_t k, std::int64_t groups, std::int64_t dilation) {
        return ConvEngine({2, c, 12, 12, k, 3, 3, 1, 0, true, dilation, groups}, 1).path();
    };
    CHECK(grouped(32, 32, 32, 1) == ConvPath::depthwise);
    CHECK(grouped(32, 32, 32, 2) == ConvPath::depthwise);
    CHECK(grouped(32, 64, 32, 1) == ConvPath::direct);
    CHECK(grouped(32, 32, 2, 1) == ConvPath::direct);
    CHECK(grouped(32, 32, 1, 2) == ConvPath::direct);
    CHECK(grouped(1, 16, 1, 2) == ConvPath::direct);
    CHECK(grouped(2, 16, 2, 1) == ConvPath::direct);
}

TEST_CASE("the first algorithm is the default for the shape, and unsupported ones are rejected", "[conv]") {
    for (const Isa isa : isas())
        for (const ConvShape& shape : {ConvShape{2, 32, 12, 12, 64, 3, 3, 1, 1}, ConvShape{5, 1, 28, 28, 10, 5, 5},
                                       ConvShape{2, 10, 8, 8, 20, 5, 5}, ConvShape{2, 64, 8, 8, 16, 1, 1},
                                       ConvShape{1, 512, 6, 6, 512, 3, 3, 1, 1}}) {
            const std::vector<std::string> ways = ConvEngine::algorithms(shape, isa);
            const ConvEngine by_rule(shape, 1, isa), first(shape, 1, isa, ways.front());
            INFO(isa_name(isa) << ", " << ways.front());
            CHECK(by_rule.path() == first.path());
            CHECK(by_rule.src_layout() == first.src_layout());
            CHECK(by_rule.dst_layout() == first.dst_layout());
        }
    CHECK(message_of<InvalidArgument>([] {
              ConvEngine({2, 64, 8, 8, 16, 1, 1}, 1, Isa::generic, "winograd avx2");
          }) == "convolution: algorithm 'winograd avx2' does not support this shape; expected one such as 'direct'");
}

TEST_CASE("NaN spreads to its own windows in direct convolutions and to whole tiles in Winograd ones", "[conv]") {
    const reference::ConvShape shape{1, 32, 12, 12, 32, 3, 3, 1, 1};
    Data data(shape);
    data.x[5 * 144 + 6 * 12 + 6] = NAN;  // channel 5, row 6, column 6
    for (const auto algorithm : {ConvAlgorithm::direct, ConvAlgorithm::automatic})
        for (const Isa isa : isas()) {
            const ConvEngine engine(engine_shape(shape), 1, isa, algorithm);
            INFO(isa_name(isa) << ", path " << static_cast<int>(engine.path()));
            const bool tiles = engine.path() == ConvPath::winograd;
            const std::vector<float> y = run(engine, data).y;
            // Rows and columns of windows or 4x4 tiles that contain element 6.
            const auto reached = [&](std::size_t at) { return tiles ? at / 4 == 1 : at >= 5 && at <= 7; };
            for (std::size_t i = 0; i < y.size(); ++i) {
                INFO("row " << i % 144 / 12 << ", column " << i % 12);
                CHECK(std::isnan(y[i]) == (reached(i % 144 / 12) && reached(i % 12)));
            }
        }
}

TEST_CASE("long sums are added in parts", "[conv]") {
    // 4,608 products: added one by one in float, they have an error of 1.2e-6, and Winograd's 512 an error of 2e-6.
    const auto shape = GENERATE(reference::ConvShape{1, 512, 6, 6, 512, 3, 3, 1, 1},
                                reference::ConvShape{1, 32, 6, 6, 512, 3, 3, 1, 1},
                                reference::ConvShape{1, 512, 6, 6, 32, 3, 3, 1, 1});
    INFO(shape.c << " to " << shape.k << " channels");
    const Data data(shape);
    const ConvEngine engine(engine_shape(shape), 1);
    INFO(isa_name(allowed_isa()) << ", path " << static_cast<int>(engine.path()));
    const double bound = engine.path() == ConvPath::winograd ? 1.1e-6 : 5e-7;
    const Results got = run(engine, data);
    CHECK(relative_error(got.y, reference::conv_forward(shape, data.x, data.w, data.bias)) < bound);
    CHECK(relative_error(got.dx, reference::conv_backward_data(shape, data.dy, data.w)) < bound);
    CHECK(relative_error(got.dw, reference::conv_backward_weights(shape, data.x, data.dy)) < bound);
}

TEST_CASE("an engine may run in other threads than its creator, and in several at once", "[conv]") {
    const auto shape = GENERATE(reference::ConvShape{2, 32, 10, 10, 64, 3, 3, 1, 0},
                                reference::ConvShape{2, 10, 12, 12, 20, 5, 5, 1, 0});
    const Data data(shape);
    const ConvEngine engine(engine_shape(shape), 1);
    const Results expected = run(engine, data);
    std::array<Results, 2> got;
    {
        std::jthread first([&] { got[0] = run(engine, data); });
        std::jthread second([&] { got[1] = run(engine, data); });
    }
    for (const Results& result : got) {
        CHECK(same_bits(result.y, expected.y));
        CHECK(same_bits(result.dx, expected.dx));
        CHECK(same_bits(result.dw, expected.dw));
        CHECK(same_bits(result.db, expected.db));
    }
}

TEST_CASE("impossible convolutions are rejected", "[conv]") {
    CHECK_THROWS_AS(ConvEngine({1, 1, 2, 2, 1, 3, 3, 1, 0, true}, 1), InvalidArgument);
    CHECK_THROWS_AS(ConvEngine({0, 1, 4, 4, 1, 3, 3, 1, 0, true}, 1), InvalidArgument);
    CHECK_THROWS_AS(ConvEngine({1, 1, 4, 4, 1, 3, 3, 0, 0, true}, 1), InvalidArgument);
    CHECK_THROWS_AS(ConvEngine({1, 1, 4, 4, 1, 3, 3, 1, 0, true}, 0), InvalidArgument);
    CHECK_THROWS_AS(ConvEngine({1, 1, 4, 4, 1, 3, 3, 1, 0, true, 2}, 1), InvalidArgument);
    CHECK_THROWS_AS(ConvEngine({1, 1, 4, 4, 1, 3, 3, 1, 0, true, 0}, 1), InvalidArgument);
    CHECK_THROWS_AS(ConvEngine({1, 4, 4, 4, 4, 3, 3, 1, 0, true, 1, 3}, 1), InvalidArgument);
    CHECK_THROWS_AS(ConvEngine({1, 4, 4, 4, 4, 3, 3, 1, 0, true, 1, 0}, 1), InvalidArgument);
    CHECK_THROWS_AS(DepthwiseConv(Isa::avx2, {1, 4, 4, 4, 8, 3, 3, 1, 0, true, 1, 4}), InvalidArgument);
    CHECK_THROWS_AS(WinogradConv(Isa::generic, {1, 16, 8, 8, 16, 1}), InvalidArgument);
    CHECK_THROWS_AS(WinogradConv(Isa::avx2, {1, 12, 8, 8, 16, 1}), InvalidArgument);
    CHECK_FALSE(WinogradConv::supported(Isa::avx2, {1, 16, 8, 8, 16, 3}));
    CHECK_THROWS_AS(FirstLayerGradient({1, 5, 8, 8, 16, 3, 1, 0}), InvalidArgument);
}

TEST_CASE("the environment limits instruction sets", "[conv]") {
    const char* before = std::getenv("LOCKSTEP_CPU_ISA");
    const std::string kept = before != nullptr ? before : "";
    setenv("LOCKSTEP_CPU_ISA", "generic", 1);
    CHECK(allowed_isa() == Isa::generic);
    setenv("LOCKSTEP_CPU_ISA", "avx512", 1);
    CHECK(allowed_isa() == machine_isa());
    setenv("LOCKSTEP_CPU_ISA", "sse9", 1);
    CHECK_THROWS_AS(allowed_isa(), InvalidArgument);
    if (before != nullptr)
        setenv("LOCKSTEP_CPU_ISA", kept.c_str(), 1);
    else
        unsetenv("LOCKSTEP_CPU_ISA");
}

TEST_CASE("reference kernels are recognised by name and rejected", "[conv]") {
    CHECK(onednn::is_reference("ref:any"));
    CHECK(onednn::is_reference("gemm:ref"));
    CHECK_FALSE(onednn::is_reference("jit:avx512_core"));
    CHECK_FALSE(onednn::is_reference("brgconv:avx512_core"));
    using Forward = dnnl::convolution_forward::primitive_desc;
    const auto unimplemented = []() -> Forward { throw dnnl::error(dnnl_unimplemented, "could not create"); };
    // oneDNN has no fast kernel that reads one plain layout and writes the other.
    const auto slow = [] {
        const auto f32 = dnnl::memory::data_type::f32;
        return onednn::convolution_forward(
            {{2, 8, 6, 6}, f32, dnnl::memory::format_tag::nchw}, {{8, 8, 3, 3}, f32, dnnl::memory::format_tag::oihw},
            {}, {{2, 8, 4, 4}, f32, dnnl::memory::format_tag::nhwc}, {{1, 1}, {0, 0}, {0, 0}});
    };
    REQUIRE(onednn::is_reference(slow().impl_info_str()));
    CHECK_THROWS_AS(onednn::first_fast<Forward>("the forward pass of a test", {slow, unimplemented}), DeviceError);
    CHECK(onednn::first_fast<Forward>("a test", {unimplemented, slow}, onednn::Reference::accept));
    CHECK_THROWS_AS(onednn::first_fast<Forward>("the forward pass of a test", {unimplemented}), DeviceError);
}
