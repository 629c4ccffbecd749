// Kernels as nvcc compiled them that no function of the op table reaches with all dtypes, sizes and orders of memory:
// they are called one by one, in two schedules.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/ops/cuda/channel_sums.h"
#include "lockstep/ops/cuda/filter.h"
#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/ops/internal/optimizer_operations.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"
#include "lockstep/tests/ops/op_table.h"
#include "lockstep/tests/ptx/emulate.h"
#include "lockstep/tests/ptx/sweep.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

struct ChannelMemory final : cuda::Declaration {
    ChannelMemory(const Tensor& from, const Tensor& to, void* scratch_begin, std::size_t scratch_bytes)
        : x(touched(from, false)), sums(touched(to, true)), scratch{scratch_begin, scratch_bytes, true} {}
    static cuda::Touched touched(const Tensor& tensor, bool written) {
        return {tensor.impl()->storage->buffer->data(),
                static_cast<std::size_t>(tensor.numel()) * size_of(tensor.dtype()), written};
    }
    void list(std::vector<cuda::Touched>& all) const override { all.insert(all.end(), {x, sums, scratch}); }
    cuda::Touched x, sums, scratch;
};

/// Weights that are exact in 16 bits, in the order of the arena and in cuDNN's.
std::pair<std::vector<float>, std::vector<float>> both_orders(const cuda::FilterShape& shape) {
    const std::int64_t count = shape.filters * shape.channels * shape.taps;
    std::vector<float> rows(static_cast<std::size_t>(count)), last(rows.size());
    for (std::int64_t i = 0; i < count; ++i) {
        const auto value = static_cast<float>(i % 251) - 100;
        const std::int64_t filter = i / (shape.channels * shape.taps), tap = i % shape.taps;
        const std::int64_t channel = i / shape.taps % shape.channels;
        rows[static_cast<std::size_t>(i)] = value;
        last[static_cast<std::size_t>((filter * shape.taps + tap) * shape.channels + channel)] = value;
    }
    return {std::move(rows), std::move(last)};
}

}  // namespace

TEST_CASE("sums of integers, and norms of many measures") {
    const NoMistakes end;
    const Restored restored;
    const auto sums = [](const auto& values, DType dtype, std::int64_t rows, std::uint32_t dims) {
        using Values = std::decay_t<decltype(values)>;
        const auto size = static_cast<std::int64_t>(values.size()), columns = size / rows;
        const OnDevice<typename Values::value_type> x(values), y(Values(dims == 1 ? columns : rows));
        Call call;
        call.in_metas = {TensorMeta::contiguous(dtype, {rows, columns})};
        call.out_metas = {TensorMeta::contiguous(dtype, dims == 1 ? Shape{1, columns} : Shape{rows, 1})};
        call.in = {x.data()};
        call.out = {y.data()};
        call.run(Sum{dims});
        return y.fetch();
    };
    const auto check_sums = [&]<class T>(T, DType dtype) {
        const std::pair<std::int64_t, std::int64_t> shapes[] = {{3, 20}, {3, 300}, {2, 2049}, {2, 9000}, {2000, 3}};
        for (const auto& [rows, columns] : shapes)
            for (const std::uint32_t dims : {1u, 2u}) {
                std::vector<T> values(static_cast<std::size_t>(rows * columns));
                for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i * 37 % 1009) - 500;
                std::vector<T> expected(static_cast<std::size_t>(dims == 1 ? columns : rows));
                for (std::size_t i = 0; i < values.size(); ++i)
                    expected[dims == 1 ? i % static_cast<std::size_t>(columns)
                                       : i / static_cast<std::size_t>(columns)] += values[i];
                CHECK(sums(values, dtype, rows, dims) == expected);
            }
    };
    const auto norm = [](const std::vector<double>& measures) {
        const OnDevice<double> x(measures), y(std::vector<double>(1));
        Call call;
        call.in_metas = {TensorMeta::contiguous(DType::f64, {static_cast<std::int64_t>(measures.size())})};
        call.out_metas = {TensorMeta::contiguous(DType::f64, {})};
        call.in = {x.data()};
        call.out = {y.data()};
        call.run(CombineMeasures{2});
        return y.fetch()[0];
    };
    for (const ptx::Emulation& how : {ptx::Emulation{}, ptx::Emulation{ptx::schedules[3], 2}}) {
        ptx::emulation() = how;
        check_sums(std::int32_t{}, DType::i32);
        check_sums(std::int64_t{}, DType::i64);
        for (const std::size_t count : {1, 32, 300, 2000, 2049, 9000})
            CHECK(norm(std::vector<double>(count, 0.25)) == Approx(std::sqrt(0.25 * static_cast<double>(count))));
    }
}

TEST_CASE("sums of channels in every dtype and order of memory") {
    const NoMistakes end;
    const Restored restored;
    for (const ptx::Emulation& how : {ptx::Emulation{}, ptx::Emulation{ptx::schedules[3], 2}})
        for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
            for (const cuda::ChannelLayout& layout :
                 {cuda::ChannelLayout{1, 3, 20}, {2, 3, 300}, {2, 2, 9000}, {500, 3, 1}}) {
                ptx::emulation() = how;
                const std::int64_t count = layout.outer * layout.channels * layout.inner;
                const Input of_x{{count}};
                const Array values = to_array(to_tensor(make_values(of_x, 1), of_x, dtype, Device::host()));
                Array expected(Sizes{layout.channels});
                for (std::ptrdiff_t k = 0; k < count; ++k) expected[k / layout.inner % layout.channels] += values[k];
                const Tensor x = to_tensor(values, of_x, dtype, gpu);
                const Tensor sums = Tensor::zeros({layout.channels}, dtype, gpu);
                const OnDevice<char> scratch(std::vector<char>(cuda::channel_sums_scratch(layout) + 1));
                const ChannelMemory memory(x, sums, scratch.data(), cuda::channel_sums_scratch(layout));
                Stream& stream = Stream::of(gpu);
                stream.run("channel_sums", {}, [&](const ExecContext& context) {
                    const cuda::Queue queue{static_cast<cudaStream_t>(context.native), &memory};
                    cuda::channel_sums(queue, dtype, layout, memory.x.address, const_cast<void*>(memory.sums.address),
                                       scratch.data());
                });
                const double bound = dtype == DType::f64 ? 1e-12 : dtype == DType::f32 ? 1e-6 : 0x1p-8;
                CHECK(error(to_array(sums), expected) <= bound);
            }
}

TEST_CASE("weights of convolutions are converted to cuDNN's order and back") {
    const NoMistakes end;
    const Restored restored;
    for (const ptx::Emulation& how : {ptx::Emulation{}, ptx::Emulation{ptx::schedules[3], 2}})
        for (const DType dtype : {DType::f32, DType::bf16})
            for (const cuda::FilterShape& shape :
                 {cuda::FilterShape{3, 16, 9}, {5, 8, 4}, {40, 24, 9}, {3, 5, 9}, {2, 16, 25}, {7, 1, 4}}) {
                ptx::emulation() = how;
                const auto [rows, last] = both_orders(shape);
                const std::int64_t count = std::ssize(rows);
                for (const bool to_last : {true, false}) {
                    const Tensor from = Tensor::from(to_last ? rows : last, {count}).to(dtype).to(gpu);
                    const Tensor to = Tensor::zeros({count}, dtype, gpu);
                    const ChannelMemory memory(from, to, nullptr, 0);
                    Stream::of(gpu).run("filters", {}, [&](const ExecContext& context) {
                        const cuda::Queue queue{static_cast<cudaStream_t>(context.native), &memory};
                        cuda::convert_filters(queue, dtype, shape, to_last, const_cast<void*>(memory.sums.address),
                                              memory.x.address);
                    });
                    CHECK(to.to(DType::f32).to_vector<float>() == (to_last ? last : rows));
                }
            }
}

TEST_CASE("gradients of weights in 16 bits are converted to f32, from either order") {
    const NoMistakes end;
    const Restored restored;
    for (const ptx::Emulation& how : {ptx::Emulation{}, ptx::Emulation{ptx::schedules[3], 2}})
        for (const DType dtype : {DType::f16, DType::bf16})
            for (const cuda::FilterShape& shape :
                 {cuda::FilterShape{3, 16, 9}, {5, 8, 4}, {40, 24, 9}, {3, 5, 9}, {2, 16, 25}, {7, 1, 4}, {1, 1, 1}}) {
                ptx::emulation() = how;
                const auto [rows, last] = both_orders(shape);
                const std::int64_t count = std::ssize(rows);
                for (const bool from_last : {true, false}) {
                    const Tensor from = Tensor::from(from_last ? last : rows, {count}).to(dtype).to(gpu);
                    const Tensor to = Tensor::zeros({count}, DType::f32, gpu);
                    const ChannelMemory memory(from, to, nullptr, 0);
                    Stream::of(gpu).run("filters", {}, [&](const ExecContext& context) {
                        const cuda::Queue queue{static_cast<cudaStream_t>(context.native), &memory};
                        cuda::widen_filters(queue, dtype, shape, from_last,
                                            static_cast<float*>(const_cast<void*>(memory.sums.address)),
                                            memory.x.address);
                    });
                    CHECK(to.to_vector<float>() == rows);
                }
            }
}

TEST_CASE("losses are checked, and partial sums added, in f64 too") {
    const NoMistakes end;
    const auto check_all = []<class T>(T, DType dtype) {
        const auto run = [dtype](const auto& operation, const OnDevice<T>& in, const OnDevice<T>& out,
                                 StatusWord* status) {
            const OnDevice<StepCounters> step({StepCounters{}});
            Call call;
            call.in_metas = call.out_metas = {TensorMeta::contiguous(dtype, {})};
            call.in = {in.data()};
            call.out = {out.data()};
            call.status = status;
            call.step = step.data();
            call.run(operation);
        };
        const OnDevice<T> good({T{2}}), bad_loss({T{NAN}}), out({T{0}});
        const OnDevice<StatusWord> status({StatusWord{}});
        run(CheckFinite{}, good, out, status.data());
        CHECK(status.fetch()[0].code == 0);
        CHECK(out.fetch()[0] == 2);
        run(CheckFinite{}, bad_loss, out, status.data());
        CHECK(status.fetch()[0].code == static_cast<std::int32_t>(StatusCode::loss_not_finite));
        run(TreeSum{{{0, 1}}, false}, good, out, nullptr);
        run(TreeSum{{{0, 1}}, true}, good, out, nullptr);
        CHECK(out.fetch()[0] == 4);
    };
    check_all(float{}, DType::f32);
    check_all(double{}, DType::f64);
}
