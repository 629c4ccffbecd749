// Autograd: gradients through views against a list of positions, sums, hooks, and rejected calls.
#include "lockstep/runtime/autograd.h"

#include <functional>
#include <numeric>
#include <optional>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/error.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::message_of;

namespace {

template <class F>
std::string refusal(F call) {
    return message_of<InvalidArgument>(call);
}

using Floats = std::vector<float>;

Tensor leaf(const Floats& values, const Shape& shape, Device device = {}) {
    return Tensor::from(values, shape, device).requires_grad_();
}

/// Small integers, so that sums are exact in any order.
Floats weights(std::int64_t count) {
    Floats values(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i * 13) % 17) - 8;
    return values;
}

/// Whether Tensor::register_hook takes such a hook.
template <class Hook>
concept RegistersHook = requires(const Tensor& x, Hook hook) {
    x.register_hook(hook);
};

}  // namespace

TEST_CASE("gradients through views and copies reach the elements of the view") {
    using View = std::function<Tensor(const Tensor&)>;
    const std::vector<std::pair<const char*, View>> views = {
        {"reshape",
         [](const Tensor& x) {
             return x.reshape({4, -1});
         }},
        {"reshape that copies",
         [](const Tensor& x) {
             return x.transpose(0, 2).reshape({8, 3});
         }},
        {"transpose", [](const Tensor& x) { return x.transpose(0, 2); }},
        {"slice", [](const Tensor& x) { return x.slice(2, 1, 4, 2); }},
        {"empty slice", [](const Tensor& x) { return x.slice(1, 1, 1); }},
        {"select", [](const Tensor& x) { return x.select(1, 2); }},
        {"expand",
         [](const Tensor& x) {
             return x.slice(1, 0, 1).expand({5, 2, 3, 4});
         }},
        {"expand to its own shape",
         [](const Tensor& x) {
             return x.expand({2, 3, 4});
         }},
        {"flatten", [](const Tensor& x) { return x.flatten(1); }},
        {"squeeze", [](const Tensor& x) { return x.slice(0, 1, 2).squeeze(0).unsqueeze(1); }},
        {"contiguous", [](const Tensor& x) { return x.transpose(1, 2).contiguous(); }},
        {"clone", [](const Tensor& x) { return x.slice(2, 0, 2).clone(); }},
        {"tag", [](const Tensor& x) { return x.tag_batch().select(2, 1).tag_batch(false); }},
        {"a chain",
         [](const Tensor& x) {
             return x.transpose(0, 1).slice(0, 0, 3, 2).reshape({2, 8}).select(0, 1);
         }},
    };
    for (const Device device : {Device::host(), Device::cpu(1)})
        for (const auto& [name, view] : views) {
            INFO(name << " on " << device.str());
            const std::vector<std::int64_t> places =
                view(Tensor::arange(24, DType::i64).reshape({2, 3, 4})).to_vector<std::int64_t>();
            const Floats w = weights(static_cast<std::int64_t>(places.size()));
            Floats expected(24, 0);
            for (std::size_t i = 0; i < places.size(); ++i) expected[static_cast<std::size_t>(places[i])] += w[i];

            const Tensor x = leaf(Floats(24, 1), {2, 3, 4}, device);
            const Tensor y = view(x);
            CHECK(y.requires_grad());
            CHECK_FALSE(y.is_leaf());
            y.backward(Tensor::from(w, y.shape(), device));
            REQUIRE(x.grad().defined());
            CHECK(x.grad().shape() == x.shape());
            CHECK(x.grad().to_vector<float>() == expected);
            CHECK(x.grad().is_contiguous());
            CHECK_FALSE(y.grad().defined());
        }
}

TEST_CASE("gradients cross devices and floating dtypes") {
    const Tensor x = leaf({1, 2, 3}, {3});
    const Tensor y = x.to(Device::cpu(0)).to(DType::f64).to(Device::cpu(1));
    y.backward(Tensor::from(std::vector<double>{4, 5, 6}, {3}, Device::cpu(1)));
    CHECK(x.grad().device().is_host());
    CHECK(x.grad().dtype() == DType::f32);
    CHECK(x.grad().to_vector<float>() == Floats{4, 5, 6});
    CHECK_FALSE(x.to(DType::i32).requires_grad());
}

TEST_CASE("gradients of a tensor used twice are added, and so are those of several backwards") {
    const Tensor x = leaf({1, 2, 3}, {3});
    sum(x * x + x).backward();
    CHECK(x.grad().to_vector<float>() == Floats{3, 5, 7});
    sum(x * 2.0).backward();
    CHECK(x.grad().to_vector<float>() == Floats{5, 7, 9});
    x.set_grad({});
    CHECK_FALSE(x.grad().defined());
    x.backward(Tensor::from(Floats{1, 1, 1}, {3}));
    CHECK(x.grad().to_vector<float>() == Floats{1, 1, 1});
    CHECK(contains(refusal([&] { x.set_grad(Tensor::zeros({4})); }), "(4,)"));
}

TEST_CASE("gradients are added in reverse order of the operations") {
    // In f32, 1e8 + 1 is 1e8: the order is visible in the result.
    for (int run = 0; run < 20; ++run) {
        const Tensor x = leaf({1}, {1});
        const Tensor a = x * 1e8, b = x * 1.0, c = x * -1e8;
        sum(b + c + a).backward();
        CHECK(x.grad().item() == 0);  // (-1e8 + 1) + 1e8
        const Tensor z = leaf({1}, {1});
        const Tensor d = z * 1.0, e = z * 1e8, f = z * -1e8;
        sum(e + d + f).backward();
        CHECK(z.grad().item() == 1);  // (-1e8 + 1e8) + 1
    }
}

TEST_CASE("a stored gradient has its own storage") {
    const Tensor x = leaf({1, 2, 3}, {3}), y = leaf({4, 5, 6}, {3});
    const Tensor gradient = Tensor::from(Floats{7, 8, 9}, {3});
    (x + y).backward(gradient);
    x.grad().zero_();
    gradient.fill_(-1);
    CHECK(y.grad().to_vector<float>() == Floats{7, 8, 9});
    sum(x).backward();  // an expanded gradient: one number, three times
    CHECK(x.grad().to_vector<float>() == Floats{1, 1, 1});
    const Tensor z = leaf({1, 2, 3}, {3});
    sum(z).backward();
    CHECK(z.grad().is_contiguous());
    CHECK(z.grad().impl()->storage->buffer->bytes() == 12);
    const Tensor direct = leaf({1, 2}, {2});
    const Tensor given = Tensor::from(Floats{3, 4}, {2});
    direct.backward(given);
    given.zero_();
    CHECK(direct.grad().to_vector<float>() == Floats{3, 4});
}

TEST_CASE("nothing is recorded in a no-grad scope or for tensors without a gradient") {
    const Tensor x = leaf({1, 2}, {2});
    CHECK(grad_enabled());
    {
        const NoGrad outer;
        {
            const NoGrad inner;
            CHECK_FALSE(grad_enabled());
        }
        CHECK_FALSE(grad_enabled());
        CHECK_FALSE((x * x).requires_grad());
        CHECK_FALSE(x.reshape({2, 1}).requires_grad());
    }
    CHECK(grad_enabled());
    CHECK((x * x).requires_grad());
    CHECK_FALSE(x.detach().requires_grad());
    CHECK(x.detach().impl()->storage == x.impl()->storage);
    const Tensor constant = Tensor::from(Floats{3, 4}, {2});
    CHECK_FALSE((constant * constant).requires_grad());
    sum(x * constant * x.detach()).backward();
    CHECK(x.grad().to_vector<float>() == Floats{3, 8});
    CHECK_FALSE(constant.grad().defined());
}

TEST_CASE("hooks receive the complete gradient once, and a leaf's hook runs right before it is stored") {
    const Tensor x = leaf({1, 2}, {2});
    const Tensor y = x * 3.0;
    std::vector<std::pair<char, Floats>> calls;
    y.register_hook([&](const Tensor& gradient) { calls.emplace_back('y', gradient.to_vector<float>()); });
    x.register_hook([&](const Tensor& gradient) {
        CHECK_FALSE(x.grad().defined());
        calls.emplace_back('x', gradient.to_vector<float>());
    });
    x.register_hook([&](const Tensor& gradient) { calls.emplace_back('X', gradient.to_vector<float>()); });
    sum(y + y * y).backward();
    const std::vector<std::pair<char, Floats>> expected = {{'y', {7, 13}}, {'x', {21, 39}}, {'X', {21, 39}}};
    CHECK(calls == expected);
    CHECK(x.grad().to_vector<float>() == Floats{21, 39});
    CHECK(contains(refusal([&] { x.detach().register_hook([](const Tensor&) {}); }), "does not require"));
    CHECK(contains(refusal([&] { x.register_hook({}); }), "no function"));
}

TEST_CASE("hooks that return a gradient, which would be ignored, do not compile") {
    const auto replaces = [](const Tensor& gradient) { return gradient * 2; };
    const auto may_replace = [](const auto& gradient) { return std::optional<Tensor>(gradient); };
    const auto by_value = [](Tensor gradient) { return gradient; };
    const auto observes = [](const Tensor&) {};
    const auto observes_anything = [](const auto&) {};
    STATIC_REQUIRE_FALSE(RegistersHook<decltype(replaces)>);
    STATIC_REQUIRE_FALSE(RegistersHook<decltype(may_replace)>);
    STATIC_REQUIRE_FALSE(RegistersHook<decltype(by_value)>);
    STATIC_REQUIRE_FALSE(RegistersHook<std::function<Tensor(const Tensor&)>>);
    STATIC_REQUIRE_FALSE(RegistersHook<Tensor (*)(const Tensor&)>);
    STATIC_REQUIRE(RegistersHook<decltype(observes)>);
    STATIC_REQUIRE(RegistersHook<decltype(observes_anything)>);
    STATIC_REQUIRE(RegistersHook<std::function<void(const Tensor&)>>);
    STATIC_REQUIRE(RegistersHook<void (*)(Tensor)>);
}

TEST_CASE("a sink receives the gradients of leaves as they are completed") {
    const Tensor first = leaf({1}, {1}), last = leaf({2}, {1}), unused = leaf({3}, {1});
    const Tensor out = (first * 2.0) * last + (unused.detach() * first);
    std::vector<double> seen;
    run_backward({out}, {Tensor::from(Floats{1}, {1})}, false, [&](const Tensor& of, const Tensor& gradient) {
        CHECK((of.impl() == first.impl() || of.impl() == last.impl()));
        seen.push_back(of.impl() == first.impl() ? 1 : 2);
        seen.push_back(gradient.item());
    });
    CHECK(seen == std::vector<double>{2, 2, 1, 7});
    CHECK_FALSE(first.grad().defined());
}

TEST_CASE("a second backward through a freed graph is an error, and a retained graph works") {
    const Tensor x = leaf({1, 2}, {2});
    const Tensor y = sum(x * x);
    y.backward({}, true);
    CHECK(x.grad().to_vector<float>() == Floats{2, 4});
    y.backward();
    CHECK(x.grad().to_vector<float>() == Floats{4, 8});
    const std::string text = refusal([&] { y.backward(); });
    CHECK(contains(text, "freed by an earlier backward"));
    CHECK(contains(text, "retain_graph"));
    CHECK(x.grad().to_vector<float>() == Floats{4, 8});
    const Tensor shared = x * x;
    sum(shared).backward();
    CHECK(contains(refusal([&] { sum(shared * 2.0).backward(); }), "mul"));
}

TEST_CASE("in-place writes to saved values after forward are an error") {
    const auto check = [](const std::function<void(const Tensor&)>& write, Device device) {
        const Tensor x = leaf({1, 2, 3, 4}, {2, 2}, device);
        const Tensor w = Tensor::from(Floats{5, 6, 7, 8}, {2, 2}, device);
        const Tensor y = sum(x * w);
        write(w);
        const std::string text = refusal([&] { y.backward(); });
        CHECK(contains(text, "modified in place"));
        CHECK(contains(text, "mul"));
        CHECK(contains(text, "(2, 2)"));
        CHECK(contains(text, "clone"));
        CHECK_FALSE(x.grad().defined());
    };
    for (const Device device : {Device::host(), Device::cpu(0)}) {
        check([](const Tensor& w) { w.fill_(0); }, device);
        check([](const Tensor& w) { w.copy_(Tensor::scalar(1)); }, device);
        check([](const Tensor& w) { w.select(0, 1).zero_(); }, device);
        check([](const Tensor& w) { w.detach().transpose(0, 1).zero_(); }, device);
    }
    check([](const Tensor& w) { w.data<float>()[0] = 3; }, Device::host());

    const Tensor x = leaf({1, 2}, {2});
    const Tensor w = Tensor::from(Floats{3, 4}, {2});
    const Tensor y = sum(x + w);  // does not save values
    w.zero_();
    CHECK(w.data<const float>()[0] == 0);
    CHECK_NOTHROW(y.backward());
    const SavedTensor saved(w, "test");
    CHECK(saved.get().to_vector<float>() == Floats{0, 0});
    CHECK_FALSE(SavedTensor(Tensor(), "test").get().defined());
}

TEST_CASE("tensors with a gradient can be written only inside a no-grad scope") {
    const Tensor x = leaf({1, 2}, {2});
    for (const Tensor& target : {x, x * 2.0, x.reshape({2, 1})}) {
        CHECK(contains(refusal([&] { target.zero_(); }), "NoGrad"));
        CHECK(contains(refusal([&] { target.copy_(Tensor::scalar(1)); }), "NoGrad"));
    }
    CHECK(x.to_vector<float>() == Floats{1, 2});
    {
        const NoGrad scope;
        x.copy_(Tensor::from(Floats{5, 6}, {2}));
    }
    CHECK(x.requires_grad());
    CHECK(x.to_vector<float>() == Floats{5, 6});
    const Tensor target = Tensor::zeros({2});
    target.copy_(x);  // not recorded
    CHECK_FALSE(target.requires_grad());
}

TEST_CASE("dtypes, tensors and gradients that backward cannot use are rejected") {
    for (const DType dtype : {DType::i32, DType::i64, DType::u8, DType::boolean})
        CHECK(contains(refusal([&] { Tensor::zeros({2}, dtype).requires_grad_(); }), std::string(name_of(dtype))));
    const Tensor x = leaf({1, 2}, {2});
    CHECK(contains(refusal([&] { (x * 2.0).requires_grad_(false); }), "not a leaf"));
    CHECK(contains(refusal([&] { (x * 2.0).backward(); }), "expected an explicit gradient"));
    CHECK(contains(refusal([&] { (x * 2.0).backward(Tensor::zeros({3})); }), "(3,)"));
    CHECK(contains(refusal([&] { (x * 2.0).backward(Tensor::zeros({2}, DType::f64)); }), "f64"));
    CHECK(contains(refusal([&] { (x * 2.0).backward(Tensor::zeros({2}, DType::f32, Device::cpu(0))); }), "cpu:0"));
    CHECK(contains(refusal([] { Tensor::scalar(1).backward(); }), "does not require a gradient"));
    CHECK_FALSE(x.requires_grad_(false).requires_grad());
}

TEST_CASE("a graph may be deeper than the call stack") {
    const Tensor x = leaf({2}, {1});
    {
        Tensor y = x;
        for (int i = 0; i < 100000; ++i) y = y.reshape(i % 2 ? Shape{1} : Shape{1, 1});
        y.backward();
        CHECK(x.grad().item() == 1);
    }
    Tensor unused = x;  // graph without a backward pass
    for (int i = 0; i < 100000; ++i) unused = unused.reshape(i % 2 ? Shape{1} : Shape{1, 1});
    unused = Tensor();
    CHECK(x.grad().item() == 1);
}
