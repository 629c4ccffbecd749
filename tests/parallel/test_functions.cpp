// scatter, gather, replicate, parallel_apply, broadcast and reduce_add against values worked out by hand.
#include <map>
#include <optional>
#include <tuple>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/parallel/functions.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;

namespace {

using test::cpu_devices;
using Floats = std::vector<float>;

/// 0, 1, 2, ... in `shape`.
Tensor counted(const Shape& shape, Device device = {}) {
    Floats values;
    for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(static_cast<float>(i));
    return Tensor::from(values, shape, device);
}

/// Message of the InvalidArgument that `call` throws.
template <class Call>
std::string refusal(Call call) {
    try {
        call();
    } catch (const InvalidArgument& error) {
        return error.what();
    }
    return "(nothing was thrown)";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("scatter cuts like torch.chunk", "[functions]") {
    struct Cut {
        std::int64_t rows;
        int devices;
        std::vector<std::int64_t> parts;
    };
    for (const Cut& cut : std::vector<Cut>{{32, 4, {8, 8, 8, 8}},
                                           {10, 4, {3, 3, 3, 1}},
                                           {9, 4, {3, 3, 3}},
                                           {5, 4, {2, 2, 1}},
                                           {3, 4, {1, 1, 1}},
                                           {3, 1, {3}}}) {
        const auto parts = scatter(counted({cut.rows, 2}), cpu_devices(cut.devices));
        REQUIRE(parts.size() == cut.parts.size());
        float next = 0;
        for (std::size_t i = 0; i < parts.size(); ++i) {
            CHECK(parts[i].device() == Device::cpu(static_cast<int>(i)));
            REQUIRE(parts[i].shape() == Shape{cut.parts[i], 2});
            for (const float value : parts[i].to_vector<float>()) CHECK(value == next++);
        }
    }
}

TEST_CASE("scatter along another dimension, with given sizes, as views", "[functions]") {
    const auto columns = scatter(counted({2, 3}), cpu_devices(2), -1);
    CHECK(columns[0].to_vector<float>() == Floats{0, 1, 3, 4});
    CHECK(columns[1].to_vector<float>() == Floats{2, 5});

    const auto sized = scatter(counted({4}), cpu_devices(2), 0, {1, 3});
    CHECK(sized[0].to_vector<float>() == Floats{0});
    CHECK(sized[1].to_vector<float>() == Floats{1, 2, 3});

    const Tensor there = counted({4}, Device::cpu(0));
    const auto views = scatter(there, cpu_devices(2));
    views[0].fill_(7);
    views[1].fill_(8);
    CHECK(there.to_vector<float>() == Floats{7, 7, 2, 3});

    const auto labels = scatter(Tensor::arange(3, DType::i64), cpu_devices(2));
    CHECK(labels[1].to_vector<std::int64_t>() == std::vector<std::int64_t>{2});
}

TEST_CASE("scatter and gather of nested containers", "[functions]") {
    using Value = std::tuple<Tensor, std::map<std::string, std::vector<Tensor>>, std::optional<Tensor>, int, Tensor>;
    const Value value{counted({3, 2}), {{"a", {Tensor::arange(3, DType::i64)}}}, counted({3}), 5, Tensor()};
    const auto parts = scatter(value, cpu_devices(2));
    REQUIRE(parts.size() == 2);
    CHECK(std::get<0>(parts[1]).to_vector<float>() == Floats{4, 5});
    CHECK(std::get<1>(parts[0]).at("a")[0].to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1});
    CHECK(std::get<2>(parts[1])->to_vector<float>() == Floats{2});
    CHECK(std::get<3>(parts[1]) == 5);
    CHECK_FALSE(std::get<4>(parts[1]).defined());

    const Value whole = gather(parts, Device::cpu(1));
    CHECK(std::get<0>(whole).device() == Device::cpu(1));
    CHECK(std::get<0>(whole).to_vector<float>() == Floats{0, 1, 2, 3, 4, 5});
    CHECK(std::get<1>(whole).at("a")[0].to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 1, 2});
    CHECK(std::get<2>(whole)->to_vector<float>() == Floats{0, 1, 2});
    CHECK(std::get<3>(whole) == 5);

    // Nothing to cut: one copy per device.
    CHECK(scatter(std::make_tuple(1, std::string("x")), cpu_devices(3)).size() == 3);
}

TEST_CASE("gather along a dimension, of scalars, on the host", "[functions]") {
    const std::vector<Tensor> parts{counted({2, 1}, Device::cpu(0)), counted({2, 2}, Device::cpu(1))};
    const Tensor wide = gather(parts, Device::host(), 1);
    CHECK(wide.device().is_host());
    CHECK(wide.shape() == Shape{2, 3});
    CHECK(wide.to_vector<float>() == Floats{0, 0, 1, 1, 2, 3});

    const std::vector<Tensor> losses{Tensor::scalar(2, DType::f32, Device::cpu(0)),
                                     Tensor::scalar(3, DType::f32, Device::cpu(1))};
    CHECK(gather(losses, Device::cpu(0)).shape() == Shape{2});
    CHECK(gather(losses, Device::cpu(0)).to_vector<float>() == Floats{2, 3});

    const std::vector<Tensor> one{counted({2}, Device::cpu(1))};
    gather(one, Device::cpu(1)).fill_(9);
    CHECK(one[0].to_vector<float>() == Floats{0, 1});
}

TEST_CASE("gradients flow through scatter and gather", "[functions]") {
    const Tensor x = counted({5, 2});
    x.requires_grad_();
    auto parts = scatter(x, cpu_devices(3));
    for (std::size_t i = 0; i < parts.size(); ++i) parts[i] = parts[i] * static_cast<double>(i + 1);
    const Tensor y = gather(parts, Device::cpu(2));
    sum(y * y).backward();
    // d/dx (k x)^2 = 2 k^2 x, with k the number of the part
    Floats expected;
    const int part_of_row[] = {1, 1, 2, 2, 3};
    for (int i = 0; i < 10; ++i) {
        const int k = part_of_row[i / 2];
        expected.push_back(static_cast<float>(2 * k * k * i));
    }
    CHECK(x.grad().device().is_host());
    CHECK(x.grad().to_vector<float>() == expected);
}

TEST_CASE("broadcast, and the sum of its gradients", "[functions]") {
    const Tensor x = counted({3}, Device::cpu(1));
    x.requires_grad_();
    const auto copies = broadcast(x, cpu_devices(4));
    REQUIRE(copies.size() == 4);
    for (int i = 0; i < 4; ++i) {
        CHECK(copies[static_cast<std::size_t>(i)].device() == Device::cpu(i));
        CHECK(copies[static_cast<std::size_t>(i)].to_vector<float>() == Floats{0, 1, 2});
    }
    // 1 + 4 times the rest: copies 0 and 3 are used, the others have no gradient.
    (sum(copies[0]).to(Device::cpu(0)) + sum(copies[3] * 4.0).to(Device::cpu(0))).backward();
    CHECK(x.grad().to_vector<float>() == Floats{5, 5, 5});

    const NoGrad no_grad;
    CHECK_FALSE(broadcast(x, cpu_devices(2))[0].requires_grad());
}

TEST_CASE("reduce_add follows the tree", "[functions]") {
    // (1 + 1e8) + (-1e8) is 0 in f32, 1 + (1e8 - 1e8) is 1: three summands split after the second, five after the
    // fourth.
    const auto at = [](double value, int device) { return Tensor::full({2}, value, DType::f32, Device::cpu(device)); };
    CHECK(reduce_add({at(1, 0), at(1e8, 1), at(-1e8, 2)}).to_vector<float>() == Floats{0, 0});
    CHECK(reduce_add({at(1, 0), at(2, 1), at(1e8, 2), at(-1e8, 3)}).to_vector<float>() == Floats{3, 3});
    CHECK(reduce_add({at(3, 0), at(1e8, 1), at(-1e8, 2), at(1, 3), at(5, 0)}).to_vector<float>() == Floats{5, 5});

    const Tensor sum = reduce_add({at(1, 0), at(2, 1)}, Device::cpu(1));
    CHECK(sum.device() == Device::cpu(1));
    CHECK(sum.to_vector<float>() == Floats{3, 3});

    const Tensor alone = at(1, 0);
    reduce_add({alone}).fill_(4);
    CHECK(alone.to_vector<float>() == Floats{1, 1});
}

namespace {

struct Net {
    Linear first{2, 2}, second{2, 2, false};
    BatchNorm2d norm{1};
    LOCKSTEP_MEMBERS(first, second, norm)
    Net() { tie(first.weight, second.weight); }
    Tensor forward(Tensor x) { return second(first(x)); }
};

struct Scaled {
    Tensor forward(Tensor x, double factor) { return x * factor; }
    template <class Visit>
    void lockstep_members(Visit&&) {}
};

}  // namespace

TEST_CASE("replicate and parallel_apply give the outputs and summed gradients of the whole batch", "[functions]") {
    for (const int devices : {1, 2, 3, 4}) {
        for (const Device home : {Device::host(), Device::cpu(0)}) {
            Net net;
            {
                const NoGrad no_grad;
                for (const NamedTensor& named : named_tensors(net)) {
                    Tensor moved = named.member->tensor().detach().to(home);
                    if (named.is_parameter) moved.requires_grad_();
                    named.member->rebind(moved);
                }
                net.first.weight->copy_(Tensor::from(Floats{1, 2, 0, 1}, {2, 2}));  // x W^T + b: (x0 + 2 x1 + b0, x1)
                net.first.bias.value()->copy_(Tensor::from(Floats{3, 0}, {2}));
            }
            const auto inputs = scatter(counted({4, 2}), cpu_devices(devices));
            auto nets = replicate(net, cpu_devices(static_cast<int>(inputs.size())));
            REQUIRE(nets.size() == inputs.size());
            CHECK(nets[0].first.weight.identity() == nets[0].second.weight.identity());
            const Tensor y = gather(parallel_apply(nets, inputs), Device::cpu(0));
            // h = (x0 + 2 x1 + 3, x1); y = (h0 + 2 h1, h1)
            CHECK(y.to_vector<float>() == Floats{7, 1, 17, 3, 27, 5, 37, 7});
            sum(y).backward();
            // dy/dh = (1, 3) for each row; bias: 4 rows. Weight: dh^T x of the first use plus 1^T h of the second,
            // column sums of x are (12, 16), those of h (12 + 32 + 12, 16).
            CHECK(net.first.bias.value()->grad().to_vector<float>() == Floats{4, 12});
            CHECK(net.first.weight->grad().to_vector<float>() == Floats{12 + 56, 16 + 16, 36 + 56, 48 + 16});
            CHECK(net.first.weight->grad().device() == home);
        }
    }
}

TEST_CASE("a replica on the model's device shares its memory, and the others do not", "[functions]") {
    Net net;
    for (const NamedTensor& named : named_tensors(net))
        named.member->rebind(named.member->tensor().detach().to(Device::cpu(0)));
    auto nets = replicate(net, cpu_devices(2));
    nets[0].norm.running_mean.value()->fill_(1);
    nets[1].norm.running_mean.value()->fill_(2);
    CHECK(net.norm.running_mean.value()->to_vector<float>() == Floats{1});
    nets[1].first.weight->fill_(5);
    CHECK(net.first.weight->to_vector<float>() != Floats{5, 5, 5, 5});
    set_training(net, false);
    CHECK(training_modes(replicate(net, cpu_devices(2))[1]) == training_modes(net));
}

TEST_CASE("the elements of a tuple become forward's arguments", "[functions]") {
    std::vector<Scaled> models(2);
    const auto outputs = parallel_apply(models, scatter(std::make_tuple(counted({4}), 3.0), cpu_devices(2)));
    CHECK(gather(outputs, Device::host()).to_vector<float>() == Floats{0, 3, 6, 9});
}

TEST_CASE("the functions reject calls that would lose data", "[functions]") {
    const auto says = [](const std::string& text, const std::string& a, const std::string& b = "") {
        INFO(text);
        CHECK(contains(text, a));
        CHECK(contains(text, b));
    };
    const Tensor x = counted({4, 2});
    says(refusal([&] { scatter(x, std::vector<Device>{}); }), "device");
    says(refusal([&] { scatter(x, {Device::cpu(1), Device::cpu(1)}); }), "cpu:1");
    says(refusal([&] { broadcast(x, {Device::cpu(0), Device::cpu(9)}); }), "cpu:9");
    says(refusal([&] { scatter(Tensor::scalar(1), cpu_devices(2)); }), "scalar");
    says(refusal([&] { scatter(Tensor(), cpu_devices(2)); }), "undefined");
    says(refusal([&] { scatter(Tensor::empty({0, 2}), cpu_devices(2)); }), "(0, 2)", "empty");
    says(refusal([&] { scatter(x, cpu_devices(2), 2); }), "scatter");
    says(refusal([&] { scatter(x, cpu_devices(2), 0, {4}); }), "1 chunk sizes for 2 devices");
    says(refusal([&] { scatter(x, cpu_devices(2), 0, {1, 2}); }), "sum of the chunk sizes is 3", "has 4");
    says(refusal([&] { scatter(x, cpu_devices(2), 0, {1, 4}); }), "larger than the 4");
    says(refusal([&] { scatter(x, cpu_devices(2), 0, {4, 0}); }), "positive");
    says(refusal([&] { scatter(std::make_tuple(x, counted({3})), cpu_devices(2)); }), "(4, 2)", "(3,)");

    says(refusal([&] { gather(std::vector<Tensor>{}, Device::host()); }), "empty list");
    says(refusal([&] { gather(std::vector<Tensor>{x, counted({4, 3})}, Device::host()); }), "(4, 3)", "(4, 2)");
    says(refusal([&] { gather(std::vector<Tensor>{x, counted({4})}, Device::host()); }), "(4,)", "(4, 2)");
    says(refusal([&] { gather(std::vector<Tensor>{x, x.to(DType::f64)}, Device::host()); }), "f64", "f32");
    says(refusal([&] { gather(std::vector<Tensor>{x}, Device::cpu(9)); }), "cpu:9");
    using Map = std::map<std::string, Tensor>;
    says(refusal([&] { gather(std::vector<Map>{{{"a", x}}, {{"b", x}}}, Device::host()); }), "output 1", "\"a\"");
    says(refusal([&] { gather(std::vector<Map>{{}, {{"b", x}}}, Device::host()); }), "output 1", "\"b\"");
    using List = std::vector<Tensor>;
    says(refusal([&] { gather(std::vector<List>{{x}, {x, x}}, Device::host()); }), "a list of 2");
    says(refusal([&] { gather(std::vector<std::optional<Tensor>>{x, {}}, Device::host()); }), "no value");
    says(refusal([&] {
             gather(std::vector<std::pair<Tensor, int>>{{x, 1}, {x, 2}}, Device::host());
         }),
         "output 1", "not a tensor");
    says(refusal([&] { gather(std::vector<List>{{x}, {Tensor()}}, Device::host()); }), "undefined");

    says(refusal([&] { reduce_add({}); }), "empty list");
    says(refusal([&] { reduce_add({x, counted({2, 4})}); }), "(2, 4)", "(4, 2)");
    says(refusal([&] { reduce_add({x, x.to(DType::i64)}); }), "i64");
    says(refusal([&] { reduce_add({x, x}, Device::cpu(1)); }), "destination cpu:1");

    Net net;
    net.second.weight.rebind(net.second.weight->to(Device::cpu(0)));
    says(refusal([&] { replicate(net, cpu_devices(2)); }), "host", "cpu:0");
    Net whole;
    auto nets = replicate(whole, cpu_devices(2));
    says(refusal([&] { parallel_apply(nets, std::vector<Tensor>{x}); }), "2 models and 1 inputs");
    says(
        refusal([&] {
            parallel_apply(nets, std::vector<Tensor>{counted({1, 2}, Device::cpu(0)), counted({1, 3}, Device::cpu(1))});
        }),
        "replica 1 on cpu:1: ");
}
