// Records: kernels are created once, and during a trace operations are recorded instead of executed.
#include "lockstep/runtime/record.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/runtime/trace.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/fixtures/messages.h"
#include "lockstep/tests/fixtures/waiting.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::message_of;

namespace {

using Floats = std::vector<float>;

template <class F>
std::string refusal(F call) {
    return message_of<InvalidArgument>(call);
}

Tensor numbers(Device device = Device::cpu(0)) { return Tensor::from(Floats{1, 2, 3, 4, 5, 6}, {2, 3}, device); }

TensorMeta plain(const Shape& shape) { return TensorMeta::contiguous(DType::f32, shape); }

std::vector<std::string> names(const std::vector<Record>& records) {
    std::vector<std::string> result;
    for (const Record& record : records) result.emplace_back(record.operation->name());
    return result;
}

struct Unknown {
    static constexpr const char* name = "unknown";
};

/// Has an attribute of every kind.
struct Various {
    static constexpr const char* name = "various";
    struct Inner {
        int first = 1;
        double second = 2;
    };
    Inner inner;
    std::vector<std::pair<int, int>> ranges = {{0, 2}, {2, 3}};
    std::vector<int> numbers = {1, 2};
    std::string text = "text";
    OperationScope where = OperationScope::shard;
    bool flag = false;
    std::int64_t last = 7;
};
std::string described(const Various& various) {
    Signature signature;
    make_operation(various)->describe(signature);
    return signature.bytes();
}

KernelRequest fill_request(const Shape& shape, int threads = 1) {
    KernelRequest request;
    request.threads = threads;
    request.out = {plain(shape)};
    return request;
}

}  // namespace

TEST_CASE("an operation without a kernel is named") {
    const std::string text = message_of<DeviceError>([] { apply_one(Unknown{}, {numbers()}, plain({2, 3})); });
    CHECK(contains(text, "unknown"));
    CHECK(contains(text, "cpu"));
}

TEST_CASE("operations with any different attribute are different") {
    const Various one;
    CHECK(described(one) == described(Various{}));
    std::set<std::string> all{described(one)};
    const auto differs = [&](const auto& change) {
        Various other;
        change(other);
        CHECK(all.insert(described(other)).second);
    };
    differs([](Various& v) { v.inner.first = 2; });
    differs([](Various& v) { v.inner.second = -2; });
    differs([](Various& v) { v.ranges[1].second = 4; });
    differs([](Various& v) { v.ranges.pop_back(); });
    differs([](Various& v) { v.numbers = {1}; });
    differs([](Various& v) { v.numbers = {1, 2, 3}; });
    differs([](Various& v) { v.text = "texts"; });
    differs([](Various& v) { v.where = OperationScope::all_shards; });
    differs([](Various& v) { v.flag = true; });
    differs([](Various& v) { v.last = 8; });
}

TEST_CASE("a kernel is created once for its operation, attributes, layouts and threads") {
    KernelTable& table = KernelTable::of(DeviceKind::cpu);
    const auto make = [&](double value, KernelRequest request) {
        return table.make(*make_operation(Fill{value}), request);
    };
    const auto first = make(1.5, fill_request({3, 4}));
    CHECK(make(1.5, fill_request({3, 4})) == first);
    CHECK(make(2.5, fill_request({3, 4})) != first);
    CHECK(make(1.5, fill_request({4, 3})) != first);
    CHECK(make(1.5, fill_request({3, 4}, 2)) != first);
    CHECK(make(1.5, fill_request({3, 4}, 2))->threads == 2);
    KernelRequest turned = fill_request({3, 4});
    turned.out[0].strides = {1, 3};
    CHECK(make(1.5, turned) != first);
    KernelRequest wide = fill_request({3, 4});
    wide.out[0].dtype = DType::f64;
    CHECK(make(1.5, wide) != first);
    KernelRequest elsewhere = fill_request({3, 4});
    elsewhere.out[0].offset = 100;  // not part of the kernel, which gets addresses
    CHECK(make(1.5, elsewhere) == first);
    CHECK(elsewhere.out[0].offset == 100);
}

TEST_CASE("tensors on different devices are rejected by name") {
    const std::string text = refusal([] { add(numbers(Device::cpu(0)), numbers(Device::cpu(1))); });
    CHECK(contains(text, "cpu:0"));
    CHECK(contains(text, "cpu:1"));
    CHECK(contains(text, ".to(device)"));
}

TEST_CASE("a trace collects records instead of executing them") {
    const Tensor weight = numbers(Device::cpu(1));
    Trace trace({Device::cpu(0), 1, true, 4});
    CHECK(Trace::current() == nullptr);
    Tensor out;
    {
        const TraceScope scope(trace);
        CHECK(Trace::current() == &trace);
        const Tensor x = trace.input(TensorMeta::contiguous(DType::f32, {2, 3}, true));
        CHECK(x.is_symbolic());
        CHECK(x.is_batch());
        CHECK(x.device() == Device::cpu(0));
        CHECK(x.shape() == Shape{2, 3});
        CHECK(trace.records().empty());
        out = relu(x * weight).transpose(0, 1).slice(0, 1, 2);
        CHECK(out.is_symbolic());
        CHECK(out.shape() == Shape{1, 2});
        CHECK(contains(out.str(), "traced"));
    }
    CHECK(Trace::current() == nullptr);
    REQUIRE(trace.records().size() == 2);  // views create none
    CHECK(names(trace.records())[1] == "relu");
    CHECK(trace.commits().empty());

    const Record& product = trace.records()[0];
    REQUIRE(product.in.size() == 2);
    CHECK(product.in[0].buffer->belongs_to(trace));
    CHECK(product.in[0].storage == nullptr);
    CHECK(product.in[1].storage == weight.impl()->storage);  // a constant, which the program copies per device
    CHECK_FALSE(product.in[1].buffer->is_symbolic());
    CHECK(product.out[0].buffer == trace.records()[1].in[0].buffer);
    CHECK(product.out[0].meta.batch);
    CHECK(product.kernel != nullptr);
    CHECK(product.kernel->threads == 1);
    CHECK(trace.buffers() == 3);
}

TEST_CASE("reading a value inside a trace is an error that explains it") {
    const Tensor outside = numbers();
    const Tensor host = numbers(Device::host());
    Trace trace({Device::cpu(0), 1, false, 1});
    Tensor x;
    {
        const TraceScope scope(trace);
        x = trace.input(plain({1}));
        for (const auto& read : std::vector<std::function<void()>>{
                 [&] { x.item(); }, [&] { x.to_vector<float>(); }, [&] { outside.to_vector<float>(); },
                 [&] { host.data<const float>(); }, [&] { x.data<float>(); }, [&] { outside.str(); }}) {
            const std::string text = refusal(read);
            CHECK(contains(text, "inside forward"));
            CHECK(contains(text, "return the tensor"));
        }
        CHECK(contains(refusal([&] { x.to(Device::cpu(1)); }), "shard's device"));
        CHECK(host.to(Device::cpu(0)).impl() == host.impl());
    }
    CHECK(
        contains(refusal([&] { x.to_vector<float>(); }), "to_vector: a tensor of shape (1,) is from inside a forward"));
    CHECK(outside.to_vector<float>() == Floats{1, 2, 3, 4, 5, 6});
}

TEST_CASE("writes to tensors outside the trace are commits, and those inside are records") {
    const Tensor outside = numbers();
    Trace trace({Device::cpu(0), 1, false, 1});
    {
        const TraceScope scope(trace);
        outside.zero_();
        outside.select(0, 1).copy_(Tensor::full({3}, 1));
        REQUIRE(trace.commits().size() == 2);
        for (const Record& commit : trace.commits()) CHECK(std::string(commit.operation->name()) == "commit_if_ok");
        CHECK(contains(refusal([&] { outside.select(1, 0).zero_(); }), "not contiguous"));
        const std::size_t before = trace.records().size();
        const Tensor inside = Tensor::zeros({4}, DType::f32, Device::cpu(0));
        CHECK(inside.is_symbolic());
        inside.slice(0, 1, 2).fill_(3);
        CHECK(trace.records().size() == before + 2);
        CHECK(inside.version() > 0);
    }
    CHECK(outside.to_vector<float>() == Floats{1, 2, 3, 4, 5, 6});
}

TEST_CASE("a tensor kept from one forward cannot be used in the next") {
    Tensor kept;
    for (int run = 0; run < 2; ++run) {
        Trace trace({Device::cpu(1), 1, false, 1});  // may have the same address as the first one
        const TraceScope scope(trace);
        const Tensor x = trace.input(plain({2, 3}));
        if (run == 0)
            kept = relu(x);
        else
            CHECK(contains(refusal([&] { add(x, kept); }), "earlier forward"));
    }
    CHECK(kept.device() == Device::cpu(1));
    CHECK(kept.shape() == Shape{2, 3});
    CHECK(contains(refusal([&] { relu(kept); }), "relu: a tensor of shape (2, 3) is from inside a forward"));
}

TEST_CASE("a view of a captured tensor in an opaque layout leaves its values outside the trace") {
    const Tensor image = conv2d(Tensor::full({1, 16, 5, 5}, 1, DType::f32, Device::cpu(0)),
                                Tensor::full({32, 16, 1, 1}, 0.5, DType::f32, Device::cpu(0)));
    Trace trace({Device::cpu(0), 1, false, 1});
    {
        const TraceScope scope(trace);
        const Tensor row = image.select(1, 3);
        CHECK_FALSE(row.is_symbolic());
        CHECK(trace.records().empty());
        CHECK(add(row, trace.input(plain({1, 5, 5}))).is_symbolic());
    }
    CHECK(image.to_vector<float>() == Floats(32 * 25, 8));
}

TEST_CASE("autograd appends backward's records, and random operations get ordinals") {
    Trace trace({Device::cpu(0), 1, true, 1});
    std::vector<int> sunk;
    {
        const TraceScope scope(trace);
        const Tensor w = trace.input(plain({3}), true);
        const Tensor out = sum(dropout(dropout(trace.input(plain({4, 3}))) * w));
        const std::size_t forward = trace.records().size();
        run_backward({out}, {Tensor::full({}, 1)}, false, [&](const Tensor& of, const Tensor& gradient) {
            CHECK(of.impl() == w.impl());
            CHECK(gradient.is_symbolic());
            CHECK(gradient.shape() == Shape{3});
            sunk.push_back(1);
        });
        CHECK(trace.records().size() > forward);
    }
    CHECK(sunk.size() == 1);
    std::vector<std::uint32_t> ordinals;
    for (const Record& record : trace.records())
        if (record.operation->is_random()) ordinals.push_back(record.ordinal);
    CHECK(ordinals.size() >= 2);
    CHECK(std::is_sorted(ordinals.begin(), ordinals.end()));
    CHECK(std::adjacent_find(ordinals.begin(), ordinals.end()) == ordinals.end());
}

TEST_CASE("commit records are separate, and may write outside") {
    const Tensor mean = Tensor::zeros({2}, DType::f32, Device::cpu(0));
    const Tensor var = Tensor::full({2}, 1, DType::f32, Device::cpu(0));
    Trace trace({Device::cpu(0), 1, true, 1});
    {
        const TraceScope scope(trace);
        BatchNormOptions options;
        options.training = true;
        batch_norm(trace.input(TensorMeta::contiguous(DType::f32, {4, 2, 3, 3}, true)), mean, var, {}, {}, options);
    }
    CHECK_FALSE(trace.commits().empty());
    for (const Record& record : trace.commits()) CHECK(record.operation->commits());
    for (const Record& record : trace.records()) CHECK_FALSE(record.operation->commits());
    CHECK(mean.to_vector<float>() == Floats{0, 0});
}

TEST_CASE("compute scopes nest") {
    const int before = ComputeScope::threads_for(Device::cpu(0));
    CHECK(before == device_info(Device::cpu(0)).units);
    {
        const ComputeScope outer({.threads = 3, .deterministic = true, .allow_tf32 = true});
        CHECK(ComputeScope::threads_for(Device::cpu(0)) == 3);
        CHECK(ComputeScope::deterministic());
        CHECK(ComputeScope::allow_tf32());
        {
            const ComputeScope inner({.threads = 1});
            CHECK(ComputeScope::threads_for(Device::cpu(1)) == 1);
            CHECK_FALSE(ComputeScope::deterministic());
            CHECK_FALSE(ComputeScope::allow_tf32());
        }
        CHECK(ComputeScope::threads_for(Device::cpu(0)) == 3);
        CHECK(ComputeScope::allow_tf32());
    }
    CHECK(ComputeScope::threads_for(Device::cpu(0)) == before);
    CHECK_FALSE(ComputeScope::deterministic());
    CHECK_FALSE(ComputeScope::allow_tf32());
}

namespace {

/// Kernels whose factories are blocked by tests, identified by `number`.
struct Held {
    static constexpr const char* name = "held";
    int number = 0;
};
test::Gate first_has_begun, second_is_made;
std::atomic<int> made{0}, failures_left{0};

std::shared_ptr<const Kernel> held_kernel(int number) {
    KernelRequest request;
    request.in = request.out = {plain({1})};
    return KernelTable::of(DeviceKind::cpu).make(*make_operation(Held{number}), request);
}

std::unique_ptr<Kernel> make_held(const Held& held, KernelRequest&) {
    if (held.number == 1) {
        first_has_begun.open();
        second_is_made.pass();
    }
    if (held.number == 3) held_kernel(4);
    if (held.number == 5 && failures_left-- > 0) throw InvalidArgument("held: planted failure");
    ++made;
    return make_kernel([](const KernelArgs&) {});
}

bool with_held_kernels() {
    static const bool there = [] {
        KernelTable::of(DeviceKind::cpu).add<Held, make_held>();
        return true;
    }();
    return there;
}

}  // namespace

namespace {

/// A layout whose comparisons are counted, and may be held up by a test.
struct Compared final : OpaqueLayout {
    explicit Compared(int k) : kind(k) {}
    std::size_t bytes() const override { return sizeof(float); }
    bool equals(const OpaqueLayout& other) const override {
        ++comparisons;
        if (hold_up) hold_up();
        const auto* const same = dynamic_cast<const Compared*>(&other);
        return same && same->kind == kind;
    }
    std::string str() const override { return "compared"; }

    int kind;
    static inline std::atomic<int> comparisons{0};
    static inline std::function<void()> hold_up;
};

std::shared_ptr<const OpaqueLayout> compared(int kind) { return std::make_shared<const Compared>(kind); }

/// The part of a kernel's key that describes an operand of this layout.
std::string key_of(const std::shared_ptr<const OpaqueLayout>& layout) {
    TensorMeta meta = plain({1});
    meta.opaque = layout;
    return Signature().add(meta).bytes();
}

}  // namespace

TEST_CASE("layouts are compared when they are new, and never again") {
    std::vector<std::shared_ptr<const OpaqueLayout>> layouts;
    for (int kind = 0; kind < 50; ++kind) layouts.push_back(compared(kind));
    std::set<std::string> keys;
    for (const auto& layout : layouts) keys.insert(key_of(layout));
    CHECK(keys.size() == layouts.size());
    CHECK(key_of(compared(7)) == key_of(layouts[7]));
    const int before = Compared::comparisons;
    for (int call = 0; call < 1000; ++call) keys.insert(key_of(layouts[static_cast<std::size_t>(call) % 50]));
    CHECK(keys.size() == layouts.size());
    CHECK(Compared::comparisons == before);
}

TEST_CASE("calls do not wait while another thread compares a new layout") {
    const auto first = compared(1);
    const std::string key = key_of(first);
    relu(numbers()).to_vector<float>();
    test::Gate comparing, done;
    Compared::hold_up = [&] {
        comparing.open();
        done.pass();
    };
    const auto second = compared(1);
    std::string found;
    std::thread other([&] {
        try {
            found = key_of(second);
        } catch (const std::exception&) {  // the gate stayed closed, as the checks below report
        }
    });
    comparing.pass();
    std::atomic<bool> called{false};
    std::string again;
    std::thread caller([&] {
        relu(numbers()).to_vector<float>();
        again = key_of(first);
        called = true;
    });
    const bool in_time = test::comes_true([&] { return called.load(); });
    done.open();
    caller.join();
    other.join();
    Compared::hold_up = nullptr;
    CHECK(in_time);
    CHECK(again == key);
    CHECK(found == key);
}

TEST_CASE("two threads that number equal layouts at once get the same number") {
    std::vector<std::shared_ptr<const OpaqueLayout>> layouts;
    for (int i = 0; i < 8; ++i) layouts.push_back(compared(1000));
    std::vector<std::string> keys(layouts.size());
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < layouts.size(); ++i) threads.emplace_back([&, i] { keys[i] = key_of(layouts[i]); });
    for (std::thread& thread : threads) thread.join();
    CHECK(std::set<std::string>(keys.begin(), keys.end()).size() == 1);
}

TEST_CASE("a kernel is created while another thread's factory waits for it") {
    REQUIRE(with_held_kernels());
    std::thread first([] { held_kernel(1); });
    first_has_begun.pass();
    held_kernel(2);  // with a lock around factories, this would wait for the first one and vice versa
    second_is_made.open();
    first.join();
    CHECK(made == 2);
    held_kernel(1);
    held_kernel(2);
    CHECK(made == 2);
}

TEST_CASE("a factory may create kernels, and one that throws is called again") {
    REQUIRE(with_held_kernels());
    const int before = made;
    const auto outer = held_kernel(3);
    CHECK(made == before + 2);
    CHECK(held_kernel(3) == outer);
    held_kernel(4);
    CHECK(made == before + 2);
    failures_left = 1;
    CHECK_THROWS_AS(held_kernel(5), InvalidArgument);
    CHECK(held_kernel(5) == held_kernel(5));
    CHECK(made == before + 3);
}

TEST_CASE("threads that request one kernel at once get the same one") {
    REQUIRE(with_held_kernels());
    const int before = made;
    std::vector<std::shared_ptr<const Kernel>> found(8);
    std::vector<std::thread> threads;
    for (auto& place : found) threads.emplace_back([&place] { place = held_kernel(100000); });
    for (std::thread& thread : threads) thread.join();
    CHECK(made == before + 1);
    for (const auto& kernel : found) CHECK(kernel == found.front());
}

TEST_CASE("the number of unused kernels is bounded, those in use stay, and the least recently used is evicted") {
    REQUIRE(with_held_kernels());
    const auto in_use = held_kernel(1000);
    const std::weak_ptr<const Kernel> oldest = held_kernel(1001), often = held_kernel(1002);
    std::vector<std::weak_ptr<const Kernel>> all;
    for (int i = 0; i < 4000; ++i) {
        all.emplace_back(held_kernel(2000 + i));
        held_kernel(1002);
    }
    CHECK(held_kernel(1000) == in_use);
    CHECK(oldest.expired());
    CHECK_FALSE(often.expired());
    const auto kept = std::count_if(all.begin(), all.end(), [](const auto& kernel) { return !kernel.expired(); });
    CHECK(kept >= 1000);
    CHECK(kept <= 1024 + 128);
    CHECK_FALSE(all.back().expired());
}
