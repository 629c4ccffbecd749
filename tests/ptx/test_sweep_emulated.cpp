// Kernels as nvcc compiled them, beyond what the op table does with them: sizes around the edges of warps, blocks and
// parts of reductions, f64, integers, in every schedule and with few blocks, which take turns. All must have the same
// bits, and values near those of CPU devices in f64.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "lockstep/ops/adadelta.h"
#include "lockstep/ops/adagrad.h"
#include "lockstep/ops/adam.h"
#include "lockstep/ops/adamax.h"
#include "lockstep/ops/asgd.h"
#include "lockstep/ops/clip_grad.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/histogram.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/shard_rows.h"
#include "lockstep/ops/internal/unary_functions.h"
#include "lockstep/ops/lamb.h"
#include "lockstep/ops/lars.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/nadam.h"
#include "lockstep/ops/radam.h"
#include "lockstep/ops/rmsprop.h"
#include "lockstep/ops/rprop.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/random.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/gpu/machine.h"
#include "lockstep/tests/ops/op_table.h"
#include "lockstep/tests/ptx/emulate.h"
#include "lockstep/tests/ptx/sweep.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Function = std::function<Tensor(const std::vector<Tensor>&)>;

struct Case {
    std::string name;
    std::vector<Input> inputs;
    Function run;
};

/// Result and gradients.
std::vector<Array> results(const Case& each, DType dtype, Device device) {
    std::vector<Tensor> in;
    for (std::size_t i = 0; i < each.inputs.size(); ++i) {
        in.push_back(
            to_tensor(make_values(each.inputs[i], static_cast<std::uint32_t>(i)), each.inputs[i], dtype, device));
        if (each.inputs[i].gradient && is_floating(dtype) && each.inputs[i].values != Values::classes)
            in.back().requires_grad_();
    }
    manual_seed(seed);
    const Tensor y = each.run(in);
    std::vector<Array> all{to_array(y)};
    if (!y.requires_grad()) return all;
    const Input like{all[0].shape};
    y.backward(to_tensor(make_values(like, 77), like, y.dtype(), device));
    for (const Tensor& x : in)
        if (x.grad().defined()) all.push_back(to_array(x.grad()));
    return all;
}

/// The first combination of a schedule and a limit, and two of the seven others in turn. The turn shifts by one after
/// seven calls, so that cases at multiples of seven do not always get the same two.
std::vector<ptx::Emulation> ways_in_turn() {
    constexpr unsigned few = 3;
    static std::size_t calls = 0;
    std::vector<ptx::Emulation> others{{ptx::schedules[0], few}};
    for (std::size_t i = 1; i < std::size(ptx::schedules); ++i)
        for (const unsigned most_blocks : {~0u, few}) others.push_back({ptx::schedules[i], most_blocks});
    const std::size_t next = 2 * calls + calls / others.size();
    ++calls;
    return {{ptx::schedules[0], ~0u}, others[next % others.size()], others[(next + 1) % others.size()]};
}

void check(const Case& each, DType dtype, double bound) {
    const Restored restored;
    const auto expected = results(each, is_floating(dtype) ? DType::f64 : dtype, Device::cpu(0));
    std::vector<Array> first;
    for (const ptx::Emulation& way : ways_in_turn()) {
        INFO(each.name << ", " << lockstep::name_of(dtype) << ", " << way.schedule.name << ", at most "
                       << way.most_blocks << " blocks");
        ptx::emulation() = way;
        const auto found = results(each, dtype, Device::cuda(0));
        REQUIRE(found.size() == expected.size());
        if (first.empty()) first = found;
        for (std::size_t i = 0; i < found.size(); ++i) {
            CHECK(error(found[i], expected[i]) <= bound);
            CHECK(found[i].v == first[i].v);
        }
    }
    check_no_mistakes();
}

struct Net {
    explicit Net(const Tensor& values) : x(values) {}
    Parameter x;
    LOCKSTEP_MEMBERS(x)
};

/// Three updates by an optimizer, with clipped gradients.
template <class Make>
Case updated(const std::string& name, std::int64_t count, Make make) {
    const Input values{{count}, Values::any, false};
    return {name, {values, values}, [make](const std::vector<Tensor>& in) {
                Net net(in[0].detach().clone());
                auto optimizer = make(net);
                for (int step = 0; step < 3; ++step) {
                    net.x->set_grad(in[1].detach().clone());
                    clip_grad_norm_(net, {.max_norm = 5});
                    clip_grad_value_(net, {.clip_value = 0.3});
                    optimizer.step();
                }
                return net.x->detach();
            }};
}

/// dx and dweight, as numbers one after the other, of relu(batch_norm(x)); on GPUs ReLU's gradient is part of the
/// kernels.
Tensor gradient_through_relu(const Tensor& x, const Tensor& dy, const Tensor& weight, const Tensor& bias) {
    const double eps = 1e-5;
    const auto vector_of = [&](std::int64_t size) { return Output(TensorMeta::contiguous(x.dtype(), {size})); };
    const Output like_x = TensorMeta::contiguous(x.dtype(), x.shape()), missing;
    const std::int64_t channels = x.size(1);
    const Tensor stats = apply_one(BatchNormStats{}, {x}, vector_of(2 * channels + 1));
    std::vector<Tensor> sums;
    Tensor dx;
    if (x.device().kind() == DeviceKind::cuda) {
        sums = apply(make_operation(BatchNormBackwardSums{eps, Activation::relu}), {x, dy, stats, weight, bias},
                     {vector_of(2 * channels), missing, vector_of(channels)});
        dx = apply_one(BatchNormBackwardData{eps, Activation::relu}, {x, dy, stats, weight, sums[0], bias}, like_x);
    } else {
        const Tensor y = apply_one(BatchNormNormalize{eps, Activation::relu}, {x, stats, weight, bias}, like_x);
        const Tensor through = apply_one(UnaryBackward<functor::Relu>{}, {dy, y}, like_x);
        sums = apply(make_operation(BatchNormBackwardSums{eps}), {x, through, stats},
                     {vector_of(2 * channels), missing, vector_of(channels)});
        dx = apply_one(BatchNormBackwardData{eps}, {x, through, stats, weight, sums[0]}, like_x);
    }
    return cat({dx.contiguous().reshape({x.numel()}), sums[2]});
}

std::vector<Case> reductions(std::int64_t rows, std::int64_t columns) {
    const std::string shape = fmt::format(" of {} x {}", rows, columns);
    const Input x{{rows, columns}};
    std::vector<Case> cases;
    const auto add = [&](const std::string& name, std::vector<Input> inputs, Function run) {
        cases.push_back({name + shape, std::move(inputs), std::move(run)});
    };
    add("sum of rows", {x}, [](const auto& in) { return sum(in[0], 1); });
    add("sum of columns", {x}, [](const auto& in) { return sum(in[0], 0); });
    add("mean", {x}, [](const auto& in) { return mean(in[0]); });
    add("argmax", {x}, [](const auto& in) { return argmax(in[0], 1); });
    add("amax of rows", {x}, [](const auto& in) { return amax(in[0], 1); });
    add("amin of columns", {x}, [](const auto& in) { return amin(in[0], 0); });
    add("softmax", {x}, [](const auto& in) { return softmax(in[0], 1); });
    add("softmax of columns", {x}, [](const auto& in) { return softmax(in[0], 0); });
    // Columns of 32 elements are reduced by one thread in two parts; the others share code with softmax.
    if (rows == 32) add("log_softmax of columns", {x}, [](const auto& in) { return log_softmax(in[0], 0); });
    add("log_softmax", {x}, [](const auto& in) { return log_softmax(in[0], 1); });
    add("layer_norm", {x, {{columns}, Values::positive}, {{columns}}},
        [columns](const auto& in) { return layer_norm(in[0], {columns}, in[1], in[2]); });
    add("mse_loss", {x, x}, [](const auto& in) { return mse_loss(in[0], in[1]); });
    add("cross_entropy", {x, {{rows}, Values::classes, false, static_cast<int>(columns)}},
        [](const auto& in) { return cross_entropy(in[0], in[1]); });
    return cases;
}

}  // namespace

TEST_CASE("reductions by threads, warps and blocks, in parts") {
    // Rows of whole packs and others.
    const std::pair<std::int64_t, std::int64_t> shapes[] = {{1, 1},    {3, 33},   {130, 40}, {20, 257}, {2, 2049},
                                                            {1, 9000}, {2100, 3}, {1, 16},   {40, 8},   {300, 128},
                                                            {20, 256}, {2, 2052}, {32, 40}};
    for (const auto& [rows, columns] : shapes)
        for (const Case& each : reductions(rows, columns)) {
            check(each, DType::f32, 4e-6);
            check(each, DType::f64, 1e-12);
        }
}

TEST_CASE("statistics and gradients of channels") {
    for (const Sizes& shape : {Sizes{2, 3, 4, 5}, Sizes{4, 2, 30, 37}, Sizes{2, 1, 90, 100}}) {
        const Input channels{{shape[1]}, Values::positive};
        const Case normalized{"batch_norm", {{shape}, channels, {{shape[1]}}}, [](const auto& in) {
                                  return batch_norm(in[0], Tensor(), Tensor(), in[1], in[2], {.training = true});
                              }};
        check(normalized, DType::f32, 1e-5);
        check(normalized, DType::f64, 1e-11);
        const Case last{"batch_norm, NHWC", normalized.inputs, [](const auto& in) {
                            const Tensor x = permute(permute(in[0], {0, 2, 3, 1}).contiguous(), {0, 3, 1, 2});
                            return batch_norm(x, Tensor(), Tensor(), in[1], in[2], {.training = true});
                        }};
        check(last, DType::f32, 1e-5);
        check(last, DType::f64, 1e-11);
        const auto activated = [&](bool channels_last) {
            const Input fixed{shape, Values::any, false}, of_channels{{shape[1]}, Values::any, false};
            return Case{fmt::format("batch_norm with relu, {}", channels_last ? "NHWC" : "NCHW"),
                        {fixed, fixed, of_channels, of_channels},
                        [=](const std::vector<Tensor>& in) {
                            const auto ordered = [&](const Tensor& image) {
                                if (!channels_last) return image;
                                return permute(permute(image, {0, 2, 3, 1}).contiguous(), {0, 3, 1, 2});
                            };
                            return gradient_through_relu(ordered(in[0]), ordered(in[1]), in[2], in[3]);
                        }};
        };
        for (const bool channels_last : {false, true}) {
            check(activated(channels_last), DType::f32, 1e-5);
            check(activated(channels_last), DType::f64, 1e-11);
        }
        const Case running{"running statistics", {{shape, Values::any, false}}, [&](const auto& in) {
                               const Tensor mean = Tensor::full({shape[1]}, 1, in[0].dtype(), in[0].device());
                               const Tensor variance = Tensor::full({shape[1]}, 2, in[0].dtype(), in[0].device());
                               batch_norm(in[0], mean, variance, Tensor(), Tensor(), {.training = true});
                               return cat({mean, variance});
                           }};
        check(running, DType::f32, 1e-5);
        check(running, DType::f64, 1e-11);
        const Case pooled{"max_pool2d", {{shape}}, [](const auto& in) { return max_pool2d(in[0], 3, Pair(2), 1); }};
        check(pooled, DType::f32, 1e-6);
        check(pooled, DType::f64, 1e-14);
    }
}

TEST_CASE("biases of convolutions") {
    for (const Sizes& shape : {Sizes{2, 3, 4, 5}, Sizes{2, 3, 40, 41}}) {
        const Case convolved{
            "conv2d", {{shape}, {{4, 3, 1, 1}}, {{4}}}, [](const auto& in) { return conv2d(in[0], in[1], in[2]); }};
        check(convolved, DType::f32, 1e-5);
        check(convolved, DType::bf16, 0.05);
        check(convolved, DType::f16, 0.01);
    }
}

TEST_CASE("updates of parameters") {
    for (const std::int64_t count : {1, 300, 5000})
        for (const DType dtype : {DType::f32, DType::f64}) {
            const double bound = dtype == DType::f32 ? 1e-6 : 1e-14;
            check(updated("SGD", count, [](Net& net) { return SGD(net, {.lr = 0.01, .momentum = 0.9}); }), dtype,
                  bound);
            check(updated("Adam", count, [](Net& net) { return Adam(net, {.lr = 0.02, .amsgrad = true}); }), dtype,
                  bound);
            check(updated("AdamW", count, [](Net& net) { return AdamW(net, {.lr = 0.02}); }), dtype, bound);
            check(updated("RMSprop", count, [](Net& net) { return RMSprop(net, {.lr = 0.01}); }), dtype, bound);
            check(updated("Adadelta", count, [](Net& net) { return Adadelta(net, {.lr = 0.5}); }), dtype, bound);
            check(updated("Adamax", count, [](Net& net) { return Adamax(net, {.lr = 0.01}); }), dtype, bound);
            check(updated("RAdam", count, [](Net& net) { return RAdam(net, {.lr = 0.01}); }), dtype, bound);
            check(updated("NAdam", count, [](Net& net) { return NAdam(net, {.lr = 0.01}); }), dtype, bound);
            check(updated("Rprop", count, [](Net& net) { return Rprop(net, {.lr = 0.01}); }), dtype, bound);
            check(updated("ASGD", count, [](Net& net) { return ASGD(net, {.lr = 0.1, .t0 = 1}); }), dtype, bound);
            const LarsOptions lars{.momentum = 0.9, .weight_decay = 0.1, .trust_coefficient = 0.1};
            check(updated("LARS", count, [&](Net& net) { return LARS(net, lars); }), dtype, bound);
            check(updated("LAMB", count, [](Net& net) { return LAMB(net, {.lr = 0.02}); }), dtype, bound);
            check(updated("Adagrad", count, [](Net& net) { return Adagrad(net, {.lr = 0.1}); }), dtype, bound);
        }
}

TEST_CASE("classes, signs and distributions of many values") {
    const Input classes{{9000}, Values::classes, false, 3}, x{{9000}};
    check({"one_hot", {classes}, [](const auto& in) { return one_hot(in[0], 3); }}, DType::f32, 0);
    check({"cross_entropy", {{{9000, 3}}, classes}, [](const auto& in) { return cross_entropy(in[0], in[1]); }},
          DType::f32, 1e-6);
    for (const DType dtype : {DType::f32, DType::f64}) {
        check({"sign", {x}, [](const auto& in) { return sign(in[0]); }}, dtype, 0);
        check({"isfinite", {x}, [](const auto& in) { return isfinite(in[0].detach() / 0.0).to(DType::f32); }}, dtype,
              0);
        const auto edges = [](const Tensor& like) {
            return Tensor::from(std::vector<double>{-1, -0.5, 0, 0.25, 1}, {5}, like.device());
        };
        check({"histogram", {x}, [=](const auto& in) { return histogram(in[0].detach(), edges(in[0])).counts; }}, dtype,
              1e-3);
        for (const std::int64_t count : {20, 300, 9000})
            check({"summary",
                   {{{count}}},
                   [=](const auto& in) { return histogram(in[0].detach(), edges(in[0])).summary; }},
                  dtype, 1e-6);
    }
}

TEST_CASE("integers are added, compared and converted") {
    for (const std::int64_t count : {1, 100, 5000})
        for (const DType dtype : {DType::i32, DType::i64}) {
            const Input x{{2, count}, Values::classes, false, 1000};
            const auto as = [dtype](const Tensor& tensor) { return tensor.to(dtype); };
            check(
                {"add and sub", {x, x}, [=](const auto& in) { return as(in[0]) + as(in[1]) * as(in[1]) - as(in[0]); }},
                dtype, 0);
            check({"u8",
                   {x},
                   [=](const auto& in) {
                       const Tensor bytes = as(in[0]).to(DType::u8),
                                    three = Tensor::full({1}, 3, DType::u8, in[0].device());
                       return bytes * three + bytes - three;
                   }},
                  dtype, 0);
            check({"bool", {x}, [=](const auto& in) { return as(in[0]).to(DType::boolean).to(DType::f32).to(dtype); }},
                  dtype, 0);
            check({"pad", {x}, [=](const auto& in) { return pad(as(in[0]), {1, 2}, 7); }}, dtype, 0);
        }
}

TEST_CASE("the largest of integers, by threads, warps and blocks, in parts") {
    for (const Sizes& shape :
         {Sizes{3, 20}, Sizes{3, 300}, Sizes{3, 301}, Sizes{2, 2049}, Sizes{2, 9000}, Sizes{2, 9001}, Sizes{2000, 3}})
        for (const int dim : {0, 1}) {
            const Input x{shape, Values::classes, false, 1000};
            check({"argmax", {x}, [dim](const auto& in) { return argmax(in[0], dim); }}, DType::i64, 0);
            check({"amax", {x}, [dim](const auto& in) { return amax(in[0], dim); }}, DType::i64, 0);
        }
}

TEST_CASE("powers of tensors in other orders of memory") {
    for (const DType dtype : {DType::f32, DType::f64}) {
        const Input x{{6, 5}, Values::positive, false}, y{{5, 6}, Values::any, false};
        check({"pow", {x, y}, [](const auto& in) { return pow(in[0].transpose(0, 1), in[1]); }}, dtype, f32_bound * 10);
        check({"lerp", {x, y}, [](const auto& in) { return lerp(in[0].transpose(0, 1), in[1], 0.3); }}, dtype,
              f32_bound);
    }
}

TEST_CASE("special functions and quotients of integers in every order of memory") {
    // Dense, one element for a row, and columns before rows.
    for (const std::int64_t columns : {5, 64}) {
        for (const DType dtype : {DType::f32, DType::f64}) {
            const Input x{{7, columns}, Values::positive, false};
            check({"digamma", {x}, [](const auto& in) { return digamma(in[0]); }}, dtype, f32_bound * 10);
            check({"lgamma of columns", {x}, [](const auto& in) { return lgamma(in[0].slice(1, 1)); }}, dtype,
                  f32_bound * 10);
            check({"lerp of a row",
                   {x, {{columns}, Values::any, false}},
                   [](const auto& in) { return lerp(in[0], in[1], 0.3); }},
                  dtype, f32_bound);
            check({"erfinv of a row",
                   {x},
                   [](const auto& in) {
                       return erfinv(in[0].slice(0, 0, 1).expand({3, -1}) / 3);
                   }},
                  dtype, f32_bound * 10);
        }
        const Input a{{7, columns}, Values::classes, false, 1000}, b{{columns, 7}, Values::classes, false, 9};
        check(
            {"quotients", {a, b}, [](const auto& in) { return floor_divide(in[0] - 500, in[1].transpose(0, 1) + 1); }},
            DType::i64, 0);
        check({"remainders", {a, a}, [](const auto& in) { return remainder(in[0] - 500, fmod(in[1], 7) + 1); }},
              DType::i64, 0);
        check({"powers", {a, b}, [](const auto& in) { return pow(in[0], in[1].slice(1, 0, 1).transpose(0, 1)); }},
              DType::i64, 0);
    }
}

TEST_CASE("every dtype is copied, filled, padded, concatenated and converted to every other") {
    constexpr DType all[] = {DType::f32, DType::f64, DType::f16, DType::bf16,
                             DType::i32, DType::i64, DType::u8,  DType::boolean};
    for (const DType dtype : all)
        for (const std::int64_t columns : {1, 40, 300}) {
            const Input x{{7, columns}, Values::classes, false, 2};
            const auto as = [dtype](const Tensor& tensor) { return tensor.to(dtype); };
            const auto add = [&](const std::string& what, Function run) {
                check({fmt::format("{} {}", lockstep::name_of(dtype), what), {x}, std::move(run)}, DType::i64, 0);
            };
            for (const DType to : all) {
                add("to another dtype", [=](const auto& in) { return as(in[0]).to(to); });
                add("to another dtype, transposed",
                    [=](const auto& in) { return as(in[0]).transpose(0, 1).to(to).contiguous(); });
            }
            add("copied", [=](const auto& in) { return as(in[0]).clone(); });
            add("transposed", [=](const auto& in) { return as(in[0]).transpose(0, 1).contiguous(); });
            add("padded", [=](const auto& in) { return pad(as(in[0]), {1, 2}, 1); });
            if (is_floating(dtype)) add("concatenated", [=](const auto& in) { return cat({as(in[0]), as(in[0])}, 1); });
            add("filled", [=](const auto& in) {
                const Tensor y = Tensor::full({7, columns}, 1, dtype, in[0].device());
                y.slice(0, 0, 7, 2).fill_(0);
                return y;
            });
        }
}

TEST_CASE("rows of a shard among those of the batch") {
    for (const DType dtype : {DType::f16, DType::f32, DType::f64})
        for (const std::int64_t columns : {1, 300}) {
            const Input own{{3, columns}, Values::any, false}, all{{7, columns}, Values::any, false};
            check({"place_shard_rows",
                   {own},
                   [&](const auto& in) {
                       return apply_one(PlaceShardRows{}, {in[0]}, TensorMeta::contiguous(in[0].dtype(), {7, columns}));
                   }},
                  dtype, dtype == DType::f16 ? 0x1p-10 : 1e-7);
            check({"take_shard_rows",
                   {all},
                   [&](const auto& in) {
                       return apply_one(TakeShardRows{}, {in[0]}, TensorMeta::contiguous(in[0].dtype(), {3, columns}));
                   }},
                  dtype, dtype == DType::f16 ? 0x1p-10 : 1e-7);
        }
}

TEST_CASE("arithmetic of f16 and bf16") {
    const Input x{{9, 70}}, row{{70}}, column{{9, 1}, Values::positive};
    for (const DType dtype : {DType::f16, DType::bf16}) {
        const double bound = dtype == DType::f16 ? 0x1p-9 : 0x1p-6;
        for (const Input& second : {x, row, column}) {
            check({"add", {x, second}, [](const auto& in) { return in[0] + in[1]; }}, dtype, bound);
            check({"sub", {x, second}, [](const auto& in) { return in[0] - in[1]; }}, dtype, bound);
            check({"mul", {x, second}, [](const auto& in) { return in[0] * in[1]; }}, dtype, bound);
        }
        check({"div", {x, column}, [](const auto& in) { return in[0] / in[1]; }}, dtype, 4 * bound);
    }
}

TEST_CASE("every entry of the op table computes f32 and f64, except convolutions in f64") {
    const Restored restored;
    bool in_f64_shuffled = false;  // test_ops_emulated runs all entries in f32, in order
    for (const auto& op : make_table()) {
        if (op->is_special()) continue;
        const Case each{op->name(), op->inputs(), [&](const std::vector<Tensor>& in) { return op->run(in); }};
        const auto expected = results(each, DType::f64, Device::cpu(0));
        const ptx::Emulation in_order, shuffled{ptx::schedules[3], 2};
        in_f64_shuffled = !in_f64_shuffled;
        for (const DType dtype : {DType::f32, DType::f64}) {
            if (dtype == DType::f64 && op->name().find("conv") != std::string::npos) continue;
            const ptx::Emulation& how = dtype == DType::f32 || in_f64_shuffled ? shuffled : in_order;
            ptx::emulation() = how;
            INFO(each.name << ", " << lockstep::name_of(dtype) << ", " << how.schedule.name);
            const auto found = results(each, dtype, Device::cuda(0));
            REQUIRE(found.size() == expected.size());
            for (std::size_t i = 0; i < found.size(); ++i)
                CHECK(error(found[i], expected[i]) <= (dtype == DType::f64 ? 1e-11 : 10 * op->bound()));
        }
    }
    check_no_mistakes();
}

TEST_CASE("every kernel of the library has run, or is listed") {
    // A kernel without a test belongs into the op table or into a case above. Exceptions are words of mangled names;
    // some kernels with these words do run.
    const struct {
        std::vector<std::string> words;
        const char* reason;
    } exceptions[] = {
        {{"5Write"}, "writes to an invalid address"},
        {{"4HalfE"}, "16 bits: test_ops_emulated runs the op table in them"},
        {{"8BFloat16E"}, "16 bits: test_ops_emulated runs the op table in them"},
        {{"BackwardSumsId"}, "f64: the form for f32 runs"},
        {{"ChannelStatsId"}, "f64: the form for f32 runs"},
        {{"SumTensorsId"}, "f64: the form for f32 runs"},
        {{"TreeSumElementId"}, "f64: the form for f32 runs"},
        {{"_pooling_cu", "IdLi"}, "f64: the form for f32 runs"},
        {{"_interpolate_cu", "IdLi2"}, "f64: the form for f32 runs"},
        {{"_interpolate_cu", "IdLb"}, "f64: the form for f32 runs"},
        {{"6BiasOf"}, "convolutions refuse f64, and their biases have one form of memory in the table"},
        {{"functor4SignE"}, "the form for dense tensors runs"},
        {{"8Pairwise", "IhhLi3"}, "integers: not every operation in every form"},
        {{"8Pairwise", "IiiLi3"}, "integers: not every operation in every form"},
        {{"8Pairwise", "IllLi3"}, "integers: not every operation in every form"},
        {{"7MapRowsIhhLi2ENS0_8Identity"}, "bytes: the form for dense tensors runs"},
        {{"SumSquaredErrorIdLi1"}, "f64: the form for f32 runs"},
        {{"10RowMomentsIf"}, "shorter rows are held in registers"},
        {{"12RowGradientsIf"}, "shorter rows are held in registers"},
        {{"15SumExponentialsIf"}, "shorter rows are held in registers"},
        {{"7SumRowsIf"}, "shorter rows are held in registers"},
    };
    for (const auto& [kernel, launches] : ptx::launches_by_kernel()) {
        const auto has = [&name = kernel](const std::string& word) { return name.find(word) != std::string::npos; };
        const bool excepted = std::any_of(std::begin(exceptions), std::end(exceptions), [&](const auto& each) {
            return std::all_of(each.words.begin(), each.words.end(), has);
        });
        INFO(kernel);
        CHECK((launches > 0 || excepted));
    }
}
