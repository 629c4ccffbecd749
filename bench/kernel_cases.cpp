#include "lockstep/bench/kernel_cases.h"

#include <fmt/format.h>

#include "lockstep/ops/adam.h"
#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/ops/loss.h"
#include "lockstep/ops/sgd.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"

namespace kernels {

namespace {

using namespace lockstep;

const Device gpu = Device::cuda(0);
constexpr std::int64_t one_step = std::int64_t{1} << 20;

/// Elements of most operands: `one_step`, or a multiple of it. Rows and images are multiplied, not their sizes.
std::int64_t operand_size = one_step;
std::int64_t times(std::int64_t rows) { return operand_size / one_step * rows; }

/// The values of the first `one_step` elements, again and again: drawing them all on the host takes seconds.
Tensor drawn(const Shape& shape, DType dtype) {
    const NoGrad no_grad;
    const auto once = [&](const Shape& part) { return Tensor::randn(part).to(dtype).to(gpu); };
    if (shape.numel() <= 2 * one_step) return once(shape);
    const std::int64_t copies = operand_size / one_step;
    Shape part = shape;
    part[0] /= copies;
    return cat(std::vector<Tensor>(static_cast<std::size_t>(copies), once(part)), 0);
}

Tensor random(const Shape& shape, DType dtype) { return drawn(shape, dtype).detach().requires_grad_(); }

/// Images, optionally with adjacent channels.
Tensor images(const Shape& shape, DType dtype, bool last) {
    if (!last) return random(shape, dtype);
    const NoGrad no_grad;
    const Tensor x = drawn({shape[0], shape[2], shape[3], shape[1]}, dtype);
    return permute(x, {0, 3, 1, 2}).detach().requires_grad_();
}

/// A gradient in the layout of `y`.
Tensor gradient_of(const Tensor& y) {
    const bool last = y.dims() == 4 && !y.is_contiguous();
    return y.dims() == 4 ? images(y.shape(), y.dtype(), last).detach() : random(y.shape(), y.dtype()).detach();
}

Tensor classes(const Shape& shape, std::int64_t count) {
    std::vector<std::int64_t> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(i * 7 % count);
    return Tensor::from(values, shape).to(gpu);
}

using Inputs = std::vector<Tensor>;
const std::vector<DType> floats{DType::f32, DType::bf16};

struct Operation {
    std::string name;
    std::int64_t elements;  ///< size of the largest tensor
    double forward;         ///< traffic that the operation needs, in tensors of that size; 0: no case
    double backward;
    std::function<Inputs(DType)> inputs;
    std::function<Tensor(const Inputs&)> run;
};

void add(std::vector<Case>& cases, const Operation& op, const std::vector<DType>& dtypes = floats) {
    for (const DType dtype : dtypes) {
        const double size = static_cast<double>(size_of(dtype)) * static_cast<double>(op.elements);
        const auto forward = [op, dtype] {
            return [op, in = op.inputs(dtype)] {
                const NoGrad no_grad;
                (void)op.run(in);
            };
        };
        const auto backward = [op, dtype] {
            const Tensor y = op.run(op.inputs(dtype));
            return [y, dy = gradient_of(y)] {
                run_backward({y}, {dy}, true, [](const Tensor&, const Tensor&) {});  // no copy into the leaves
            };
        };
        if (op.forward > 0) cases.push_back({op.name, dtype, op.elements, op.forward * size, forward});
        if (op.backward > 0) cases.push_back({op.name + " backward", dtype, op.elements, op.backward * size, backward});
    }
}

void add_elementwise(std::vector<Case>& cases) {
    const auto one = [](DType dtype) { return Inputs{random({operand_size}, dtype)}; };
    const auto two = [](DType dtype) { return Inputs{random({operand_size}, dtype), random({operand_size}, dtype)}; };
    add(cases, {"relu", operand_size, 2, 3, one, [](const Inputs& in) { return relu(in[0]); }});
    add(cases, {"gelu", operand_size, 2, 3, one, [](const Inputs& in) { return gelu(in[0]); }});
    add(cases, {"sigmoid", operand_size, 2, 3, one, [](const Inputs& in) { return sigmoid(in[0]); }});
    add(cases, {"x * 2", operand_size, 2, 2, one, [](const Inputs& in) { return in[0] * 2.0; }});
    add(cases, {"a + b", operand_size, 3, 0, two, [](const Inputs& in) { return in[0] + in[1]; }});
    add(cases, {"a * b", operand_size, 3, 5, two, [](const Inputs& in) { return in[0] * in[1]; }});
    add(cases, {"a / b", operand_size, 3, 0, two, [](const Inputs& in) { return in[0] / in[1]; }});
    add(cases, {"a + row", operand_size, 2, 0,
                [](DType dtype) {
                    return Inputs{random({times(4096), 256}, dtype), random({256}, dtype)};
                },
                [](const Inputs& in) { return in[0] + in[1]; }});
    add(cases, {"a + column", operand_size, 2, 0,
                [](DType dtype) {
                    return Inputs{random({times(4096), 256}, dtype), random({times(4096), 1}, dtype)};
                },
                [](const Inputs& in) { return in[0] + in[1]; }});
    add(cases,
        {"a (NHWC) + b (NCHW)", operand_size, 3, 0,
         [](DType dtype) {
             return Inputs{images({times(8), 32, 64, 64}, dtype, true), images({times(8), 32, 64, 64}, dtype, false)};
         },
         [](const Inputs& in) { return in[0] + in[1]; }});
    add(cases, {"relu of every second column", operand_size, 2, 0,
                [](DType dtype) {
                    return Inputs{random({times(1024), 2048}, dtype)};
                },
                [](const Inputs& in) { return relu(in[0].slice(1, 0, 2048, 2)); }});
    add(cases, {"dropout", operand_size, 2, 2, one, [](const Inputs& in) { return dropout(in[0], 0.1); }});
    add(cases, {"fill", operand_size, 1, 0, one, [](const Inputs& in) { return in[0].fill_(3); }});
    const auto convert = [&](DType from, DType to) {
        const double bytes = static_cast<double>(size_of(from) + size_of(to)) / static_cast<double>(size_of(from));
        add(cases,
            {fmt::format("convert to {}", name_of(to)), operand_size, bytes, 0, one,
             [to](const Inputs& in) { return in[0].to(to); }},
            {from});
    };
    convert(DType::f32, DType::bf16);
    convert(DType::bf16, DType::f32);
}

void add_layouts(std::vector<Case>& cases) {
    const auto maps = [](bool last) {
        return [last](DType dtype) { return Inputs{images({times(8), 32, 64, 64}, dtype, last)}; };
    };
    add(cases, {"NCHW to NHWC", operand_size, 2, 0, maps(false), [](const Inputs& in) {
                    return permute(in[0], {0, 2, 3, 1}).contiguous();
                }});
    add(cases, {"NHWC to NCHW", operand_size, 2, 0, maps(true), [](const Inputs& in) { return in[0].contiguous(); }});
    const auto matrix = [](DType dtype) { return Inputs{random({times(1024), 1024}, dtype)}; };
    add(cases,
        {"transpose", operand_size, 2, 0, matrix, [](const Inputs& in) { return in[0].transpose(0, 1).contiguous(); }});
    for (const bool last : {false, true}) {
        const auto pair = [last](DType dtype) {
            return Inputs{images({times(8), 32, 64, 64}, dtype, last), images({times(8), 32, 64, 64}, dtype, last)};
        };
        add(cases, {fmt::format("cat of channels, {}", last ? "NHWC" : "NCHW"), 2 * operand_size, 2, 0, pair,
                    [](const Inputs& in) {
                        return cat({in[0], in[1]}, 1);
                    }});
    }
}

void add_layers(std::vector<Case>& cases) {
    for (const bool last : {false, true}) {
        const std::string layout = last ? ", NHWC" : ", NCHW";
        add(cases, {"batch_norm" + layout, 2 * operand_size, 3, 5,
                    [last](DType dtype) {
                        return Inputs{images({times(8), 64, 64, 64}, dtype, last), random({64}, DType::f32),
                                      random({64}, DType::f32)};
                    },
                    [](const Inputs& in) { return batch_norm(in[0], Tensor(), Tensor(), in[1], in[2]); }});
        const auto maps = [last](DType dtype) { return Inputs{images({times(8), 32, 64, 64}, dtype, last)}; };
        add(cases, {"max_pool2d of 2 x 2" + layout, operand_size, 1.25, 1.5, maps,
                    [](const Inputs& in) { return max_pool2d(in[0], 2); }});
        add(cases, {"max_pool2d of 3 x 3, stride 2" + layout, operand_size, 1.25, 1.5, maps,
                    [](const Inputs& in) { return max_pool2d(in[0], 3, Pair(2), 1); }});
        const auto halved = [last](DType dtype) { return Inputs{images({times(8), 32, 32, 32}, dtype, last)}; };
        for (const auto mode : {InterpolateMode::nearest, InterpolateMode::bilinear})
            add(cases, {(mode == InterpolateMode::nearest ? "nearest" : "bilinear") + (", twice the size" + layout),
                        operand_size, 1.25, 1.25, halved, [mode](const Inputs& in) {
                            return interpolate(in[0], {.scale_factor = ScaleFactor(2), .mode = mode});
                        }});
    }
    add(cases, {"layer_norm of rows of 768", times(2048) * 768, 2, 3,
                [](DType dtype) {
                    return Inputs{random({times(2048), 768}, dtype), random({768}, dtype), random({768}, dtype)};
                },
                [](const Inputs& in) { return layer_norm(in[0], {768}, in[1], in[2]); }});
    const auto rows = [](DType dtype) { return Inputs{random({times(1024), 1024}, dtype)}; };
    add(cases, {"softmax", operand_size, 2, 3, rows, [](const Inputs& in) { return softmax(in[0], 1); }});
    add(cases, {"log_softmax", operand_size, 2, 3, rows, [](const Inputs& in) { return log_softmax(in[0], 1); }});
    add(cases, {"softmax of columns", operand_size, 2, 3, rows, [](const Inputs& in) { return softmax(in[0], 0); }});
    const auto maps = [](DType dtype) { return Inputs{random({times(8), 4, 128, 256}, dtype)}; };
    add(cases, {"softmax of classes", operand_size, 2, 3, maps, [](const Inputs& in) { return softmax(in[0], 1); }});
}

void add_reductions(std::vector<Case>& cases) {
    const auto rows = [](DType dtype) { return Inputs{random({times(1024), 1024}, dtype)}; };
    const auto maps = [](bool last) {
        return [last](DType dtype) { return Inputs{images({times(8), 32, 64, 64}, dtype, last)}; };
    };
    add(cases, {"sum", operand_size, 1, 1, rows, [](const Inputs& in) { return sum(in[0]); }});
    add(cases, {"sum of rows", operand_size, 1, 0, rows, [](const Inputs& in) { return sum(in[0], 1); }});
    add(cases, {"sum of columns", operand_size, 1, 0, rows, [](const Inputs& in) { return sum(in[0], 0); }});
    add(cases, {"sum of channels, NCHW", operand_size, 1, 0, maps(false), [](const Inputs& in) {
                    return sum(in[0], {0, 2, 3});
                }});
    add(cases, {"sum of channels, NHWC", operand_size, 1, 0, maps(true), [](const Inputs& in) {
                    return sum(in[0], {0, 2, 3});
                }});
    add(cases, {"argmax of rows", operand_size, 1, 0, rows, [](const Inputs& in) { return argmax(in[0], 1); }});
    const auto pair = [](DType dtype) { return Inputs{random({operand_size}, dtype), random({operand_size}, dtype)}; };
    add(cases,
        {"mse_loss", operand_size, 2, 3, pair, [](const Inputs& in) { return mse_loss(in[0], in[1].detach()); }});
    const auto targets = [](DType dtype) {
        return Inputs{random({times(1024), 1024}, dtype), classes({times(1024)}, 1000)};
    };
    add(cases, {"nll_loss of 1024 classes", operand_size, 0, 1, targets,
                [](const Inputs& in) { return nll_loss(in[0], in[1]); }});
    const auto masks = [](DType dtype) {
        return Inputs{random({times(4), 4, 256, 256}, dtype), classes({times(4), 256, 256}, 4)};
    };
    // The targets, of 8 bytes, are as much as half of the input, all of whose sectors are read.
    add(cases,
        {"nll_loss of images, 4 classes", operand_size, 1.5, 1.5, masks,
         [](const Inputs& in) { return nll_loss(in[0], in[1]); }},
        {DType::f32});
}

/// As many parameters in an arena as a U-Net has: their rows are searched for every element.
constexpr int parameters = 64;
ArenaRange whole() { return {0, operand_size, 0, parameters}; }

template <class Options>
test::OnDevice<RowWith<Options>> rows_of(const Options& options) {
    std::vector<RowWith<Options>> rows(parameters);
    for (std::size_t i = 0; i < rows.size(); ++i) {
        rows[i].row.begin = static_cast<std::int64_t>(i) * (operand_size / parameters);
        rows[i].row.end = rows[i].row.begin + operand_size / parameters;
        rows[i].row.updates = 1;
        rows[i].options = options;
    }
    return test::OnDevice<RowWith<Options>>(rows);
}

std::vector<test::OnDevice<float>> arenas(int count) {
    std::vector<test::OnDevice<float>> all;
    const std::vector<float> values = Tensor::rand({operand_size}).to_vector<float>();
    for (int i = 0; i < count; ++i) all.emplace_back(values);
    return all;
}

/// `states`: number of the optimizer's states.
template <class Rule, class Options>
void add_update(std::vector<Case>& cases, const std::string& name, int states, const Options& options) {
    const double bytes = (3 + 2 * states) * 4 * static_cast<double>(operand_size);
    cases.push_back(
        {name, DType::f32, operand_size, bytes, [states, options] {
             const auto rows = rows_of(options);
             const auto memory = arenas(2 + states);  // gradients, parameters, states
             const test::OnDevice<StatusWord> good({StatusWord{}});
             test::Call call;
             call.in_metas = {test::floats(operand_size), test::bytes(parameters * sizeof(RowWith<Options>))};
             call.in = {memory[0].data(), rows.data()};
             for (std::size_t i = 1; i < memory.size(); ++i) {
                 call.out_metas.push_back(test::floats(operand_size));
                 call.out.push_back(memory[i].data());
             }
             call.agreed = good.data();
             return [enqueue = call.made(FusedUpdate<Rule>{whole(), (1u << states) - 1}), rows, memory, good] {
                 enqueue();
             };
         }});
}

/// An operation on gradients. `scales`: it has a factor as its first operand_size.
template <class Op>
void add_gradients(std::vector<Case>& cases, const std::string& name, double bytes, const Op& op, const TensorMeta& out,
                   bool scales) {
    cases.push_back({name, DType::f32, operand_size, bytes * static_cast<double>(operand_size), [op, out, scales] {
                         const auto rows = rows_of(SgdOptions{});
                         const auto memory = arenas(1);
                         const test::OnDevice<double> numbers(std::vector<double>(
                             static_cast<std::size_t>(MeasureGradients::grains(operand_size)), 0.5));
                         const TensorMeta of_rows = test::bytes(parameters * sizeof(RowWith<SgdOptions>));
                         test::Call call;
                         call.out_metas = {out};
                         if (scales) {
                             call.in_metas = {TensorMeta::contiguous(DType::f64, {})};
                             call.in = {numbers.data()};
                         }
                         const bool in_place = out.dtype == DType::f32;
                         if (!in_place) {
                             call.in_metas = {test::floats(operand_size)};
                             call.in = {memory[0].data()};
                         }
                         call.in_metas.push_back(of_rows);
                         call.in.push_back(rows.data());
                         call.out = {in_place ? static_cast<void*>(memory[0].data()) : numbers.data()};
                         return [enqueue = call.made(op), rows, memory, numbers] { enqueue(); };
                     }});
}

void add_updates(std::vector<Case>& cases) {
    add_update<SgdRule>(cases, "SGD", 0, SgdOptions{.lr = 0.1});
    add_update<SgdRule>(cases, "SGD with momentum", 1, SgdOptions{.lr = 0.1, .momentum = 0.9});
    add_update<AdamRule>(cases, "Adam", 2, AdamOptions{});
    add_update<AdamWRule>(cases, "AdamW", 2, AdamWOptions{});
    const GradientRange all{whole(), sizeof(RowWith<SgdOptions>), GradientRange::all_groups};
    const TensorMeta measures = TensorMeta::contiguous(DType::f64, {MeasureGradients::grains(operand_size)});
    add_gradients(cases, "norm of gradients", 4, MeasureGradients{all, 2}, measures, false);
    add_gradients(cases, "gradients scaled", 8, ScaleGradients{all}, test::floats(operand_size), true);
    add_gradients(cases, "gradients clamped", 8, ClampGradients{all, 0.3}, test::floats(operand_size), false);
}

void add_shards(std::vector<Case>& cases) {
    for (const int shards : {2, 4, 8})
        cases.push_back({fmt::format("sum over {} shards", shards), DType::f32, operand_size,
                         (shards + 1) * 4 * static_cast<double>(operand_size), [shards] {
                             test::Call call;
                             std::vector<test::OnDevice<float>> memory;
                             for (int i = 0; i <= shards; ++i)
                                 memory.emplace_back(std::vector<float>(static_cast<std::size_t>(operand_size), 1.5f));
                             for (int i = 0; i < shards; ++i)
                                 call.in.push_back(memory[static_cast<std::size_t>(i)].data());
                             call.in_metas = call.out_metas = {test::floats(operand_size)};
                             call.out = {memory.back().data()};
                             call.shards = shards;
                             return [enqueue = call.made(SumOverShards{}), memory = std::move(memory)] { enqueue(); };
                         }});
}

}  // namespace

std::vector<Case> all_cases(std::int64_t scale) {
    operand_size = scale * one_step;
    std::vector<Case> cases;
    add_elementwise(cases);
    add_layouts(cases);
    add_layers(cases);
    add_reductions(cases);
    add_updates(cases);
    add_shards(cases);
    return cases;
}

}  // namespace kernels
