// Functions whose results have sizes that depend on values, and comparisons of whole tensors.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/layers.h"
#include "lockstep/parallel/data_parallel.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/eight_devices.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/ops/value_lists.h"

using namespace lockstep;

namespace {

using test::infinite;
using test::list_of;
using test::undefined;
using test::whole_list;
using test::WholeNumbers;

/// A model whose forward calls a function.
struct CallsFunction {
    Linear fc{4, 4};
    LOCKSTEP_MEMBERS(fc)
    Tensor (*function)(const Tensor&) = nullptr;
    Tensor forward(const Tensor& x) { return fc(x) + function(x); }
    void describe(Signature& signature) const { signature.add(function != nullptr); }
};

Tensor twice_selected(const Tensor& x) { return masked_select(x, x > 0).reshape({1, -1}); }
Tensor first_values(const Tensor& x) { return unique(x).values; }
Tensor values_of_runs(const Tensor& x) { return unique_consecutive(x).values; }
Tensor positions_in(const Tensor& x) { return nonzero(x); }
Tensor counted(const Tensor& x) { return bincount(x.to(DType::i64).flatten()); }
Tensor compared(const Tensor& x) { return allclose(x, x) ? x : x * 2; }
Tensor same_as_itself(const Tensor& x) { return lockstep::equal(x, x) ? x : x * 2; }

}  // namespace

TEST_CASE("nonzero and masked_select") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const Tensor x = list_of({0, 2, 0, -1, 3, 0}, device).reshape({2, 3});
        const Tensor at = nonzero(x);
        CHECK(at.shape() == Shape{3, 2});
        CHECK(at.device() == device);
        CHECK(at.to_vector<std::int64_t>() == WholeNumbers{0, 1, 1, 0, 1, 1});
        CHECK(nonzero(x.transpose(0, 1)).to_vector<std::int64_t>() == WholeNumbers{0, 1, 1, 0, 1, 1});
        CHECK(nonzero(Tensor::zeros({2, 3}, DType::f32, device)).shape() == Shape{0, 2});
        CHECK(nonzero(Tensor::full({}, 7, DType::i32, device)).shape() == Shape{1, 0});
        CHECK(nonzero(x > 1).to_vector<std::int64_t>() == WholeNumbers{0, 1, 1, 1});

        const Tensor leaf = x.clone().detach().requires_grad_();
        const Tensor chosen = masked_select(leaf, leaf > 0);
        CHECK(chosen.to_vector<float>() == std::vector<float>{2, 3});
        sum(chosen * chosen).backward();
        CHECK(leaf.grad().to_vector<float>() == std::vector<float>{0, 4, 0, 0, 6, 0});
        const Tensor columns = list_of({1, 0, 1}, device) > 0;
        CHECK(masked_select(x, columns).to_vector<float>() == std::vector<float>{0, 0, -1, 0});
        CHECK(masked_select(list_of({5, 6, 7}, device), x > 0).to_vector<float>() == std::vector<float>{6, 6});
    }
    CHECK(test::message_of<InvalidArgument>([&] { (void)masked_select(Tensor::zeros({3}), Tensor::zeros({3})); }) ==
          "masked_select: mask has dtype f32; expected bool");
}

TEST_CASE("unique returns ascending values, their positions and their numbers") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const UniqueResult of = unique(whole_list(WholeNumbers{3, 1, 2, 3, 1, 3}, device).reshape({2, 3}));
        CHECK(of.values.to_vector<std::int64_t>() == WholeNumbers{1, 2, 3});
        CHECK(of.inverse.to_vector<std::int64_t>() == WholeNumbers{2, 0, 1, 2, 0, 2});
        CHECK(of.inverse.shape() == Shape{2, 3});
        CHECK(of.counts.to_vector<std::int64_t>() == WholeNumbers{2, 1, 3});
        const std::vector<float> found =
            unique(list_of({2, undefined, -infinite, 2, undefined}, device)).values.to_vector<float>();
        REQUIRE(found.size() == 4);
        CHECK(found[0] == -infinite);
        CHECK(found[1] == 2);
        CHECK(std::isnan(found[2]));
        CHECK(std::isnan(found[3]));
    }
    const UniqueResult none = unique(Tensor::zeros({0, 2}));
    CHECK(none.values.numel() == 0);
    CHECK(none.inverse.shape() == Shape{0, 2});
}

TEST_CASE("unique_consecutive returns the values of runs, their positions and their lengths") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const UniqueResult of =
            unique_consecutive(whole_list(WholeNumbers{1, 1, 2, 2, 3, 1, 1, 2}, device).reshape({2, 4}));
        CHECK(of.values.to_vector<std::int64_t>() == WholeNumbers{1, 2, 3, 1, 2});
        CHECK(of.inverse.to_vector<std::int64_t>() == WholeNumbers{0, 0, 1, 1, 2, 3, 3, 4});
        CHECK(of.inverse.shape() == Shape{2, 4});
        CHECK(of.counts.to_vector<std::int64_t>() == WholeNumbers{2, 2, 1, 2, 1});
        const UniqueResult special = unique_consecutive(list_of({undefined, undefined, 0, -0.0f, infinite}, device));
        CHECK(special.counts.to_vector<std::int64_t>() == WholeNumbers{1, 1, 2, 1});
        CHECK(unique_consecutive(Tensor::full({}, 7, DType::i32, device)).values.to_vector<std::int32_t>() ==
              std::vector<std::int32_t>{7});
    }
    const UniqueResult none = unique_consecutive(Tensor::zeros({0, 2}));
    CHECK(none.values.numel() == 0);
    CHECK(none.inverse.shape() == Shape{0, 2});
}

TEST_CASE("bincount") {
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        const Tensor x = whole_list(WholeNumbers{1, 4, 1, 0}, device);
        CHECK(bincount(x).to_vector<std::int64_t>() == WholeNumbers{1, 2, 0, 0, 1});
        CHECK(bincount(x, {}, 7).to_vector<std::int64_t>() == WholeNumbers{1, 2, 0, 0, 1, 0, 0});
        CHECK(bincount(x, list_of({0.5f, 2, 1, 3}, device)).to_vector<float>() == std::vector<float>{3, 1.5f, 0, 0, 2});
        CHECK(bincount(x.slice(0, 0, 0), {}, 2).to_vector<std::int64_t>() == WholeNumbers{0, 0});
    }
    CHECK(test::message_of<InvalidArgument>([&] {
              (void)bincount(whole_list(WholeNumbers{1, -2}));
          }) == "bincount: a number is negative (-2); expected 0 or more");
    CHECK_THROWS_AS(bincount(Tensor::zeros({2})), InvalidArgument);
    CHECK_THROWS_AS(bincount(whole_list(WholeNumbers{1, 2}), Tensor::zeros({3})), InvalidArgument);
    CHECK_THROWS_AS(bincount(whole_list(WholeNumbers{1, 2}), {}, -1), InvalidArgument);
}

TEST_CASE("allclose, isclose and equal") {
    const Tensor a = list_of({1, infinite, -infinite, undefined, 0}),
                 b = list_of({1.000005f, infinite, infinite, undefined, 1e-9f});
    using Answers = std::vector<bool>;
    CHECK(isclose(a, b).to_vector<bool>() == Answers{true, true, false, false, true});
    CHECK(isclose(a, b, 1e-5, 1e-8, true).to_vector<bool>() == Answers{true, true, false, true, true});
    CHECK_FALSE(allclose(a, b));
    CHECK(allclose(a.slice(0, 0, 2), b.slice(0, 0, 2)));
    const Tensor large = whole_list(WholeNumbers{(std::int64_t{1} << 53) + 1, 5}),
                 other = whole_list(WholeNumbers{std::int64_t{1} << 53, 5});
    CHECK(isclose(large, other, 0, 0).to_vector<bool>() == Answers{false, true});
    CHECK(lockstep::equal(large, large));
    CHECK_FALSE(lockstep::equal(large, other));
    CHECK_FALSE(lockstep::equal(a, a));  // NaN
    CHECK_FALSE(lockstep::equal(a, a.unsqueeze(0)));
    CHECK_THROWS_AS(lockstep::equal(a, large), InvalidArgument);
    CHECK_THROWS_AS(isclose(a, b, -1), InvalidArgument);
}

TEST_CASE("functions that need values are refused while forward is traced") {
    const struct {
        const char* name;
        Tensor (*function)(const Tensor&);
    } all[] = {{"masked_select", twice_selected}, {"unique", first_values}, {"unique_consecutive", values_of_runs},
               {"nonzero", positions_in},         {"bincount", counted},    {"allclose", compared},
               {"equal", same_as_itself}};
    for (const auto& [name, function] : all) {
        INFO(name);
        CallsFunction net;
        net.function = function;
        DataParallel<CallsFunction> model(net, test::cpu_devices(2));
        CHECK(test::contains(test::message_of<InvalidArgument>([&] {
                                 (void)model.forward(Tensor::ones({4, 4}));
                             }),
                             name + std::string(": the result depends on values that a traced forward does not have")));
    }
}
