// CUDA kernels that select and add by indices, in every dtype, on the stand-in and on GPUs.
#include <cstdint>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/indexing_operations.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

using Numbers = std::vector<double>;
using Indices = std::vector<std::int64_t>;

/// Small integers, which every dtype has and whose sums every dtype has.
Tensor few_numbers(const Shape& shape, DType dtype) {
    std::vector<float> values(static_cast<std::size_t>(shape.numel()));
    for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>((i * i + 3 * i) % (dtype == DType::boolean ? 2 : 5));
    return Tensor::from(values, shape).to(dtype).to(gpu);
}

/// Indices below `size`, some of them several times.
Indices some_indices(std::int64_t count, std::int64_t size) {
    Indices all;
    for (std::int64_t i = 0; i < count; ++i) all.push_back((i * i * 7 + i) % size);
    return all;
}

Tensor on_gpu(const Indices& values, const Shape& shape) { return Tensor::from(values, shape).to(gpu); }
Numbers values_of(const Tensor& x) { return x.to(Device::host()).to(DType::f64).to_vector<double>(); }

}  // namespace

TEST_CASE("rows and columns are selected in every dtype, aligned or not") {
    const NoMistakes end;
    for (const DType dtype :
         {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::boolean})
        for (const std::int64_t inner : {1, 3, 16, 64})
            for (const std::int64_t begin : {0, 1}) {
                INFO(name_of(dtype) << ", rows of " << inner << " from row " << begin);
                const Tensor x = few_numbers({7 + begin, inner}, dtype).slice(0, begin, 7 + begin);
                const Indices index = some_indices(33, 7), columns = some_indices(5, inner);
                const Numbers from = values_of(x.contiguous());
                Numbers rows, cells;
                for (const std::int64_t j : index)
                    for (std::int64_t k = 0; k < inner; ++k)
                        rows.push_back(from[static_cast<std::size_t>(j * inner + k)]);
                for (std::int64_t r = 0; r < 7; ++r)
                    for (const std::int64_t k : columns) cells.push_back(from[static_cast<std::size_t>(r * inner + k)]);
                CHECK(values_of(index_select(x, 0, on_gpu(index, {33}))) == rows);
                CHECK(values_of(index_select(x, 1, on_gpu(columns, {5}))) == cells);
                CHECK(values_of(take_along_dim(x, on_gpu(columns, {1, 5}), 1)) == cells);
            }
}

TEST_CASE("elements with equal indices are added in every dtype") {
    const NoMistakes end;
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8}) {
        INFO(name_of(dtype));
        const Shape shape{5, 9};
        const Indices index = some_indices(45, 11);
        const Tensor source = few_numbers(shape, dtype), x = few_numbers({6, 11}, dtype);
        const Numbers from = values_of(source);
        Numbers sums = values_of(x);
        for (std::size_t i = 0; i < 45; ++i) sums[i / 9 * 11 + static_cast<std::size_t>(index[i])] += from[i];
        CHECK(values_of(scatter_add(x, 1, on_gpu(index, shape), source)) == sums);
    }
    for (const DType dtype : {DType::f32, DType::f64, DType::f16, DType::bf16})
        for (const std::int64_t features : {1, 5, 64}) {
            INFO(name_of(dtype) << ", " << features << " features");
            const Indices index = some_indices(40, 9);
            const Tensor weight = few_numbers({9, features}, dtype).requires_grad_();
            const Tensor dy = few_numbers({8, 5, features}, dtype);
            embedding(on_gpu(index, {8, 5}), weight, 2).backward(dy);
            const Numbers from = values_of(dy);
            Numbers sums(static_cast<std::size_t>(9 * features), 0);
            for (std::size_t i = 0; i < 40; ++i)
                for (std::size_t k = 0; k < static_cast<std::size_t>(features); ++k)
                    if (index[i] != 2)
                        sums[static_cast<std::size_t>(index[i] * features) + k] +=
                            from[i * static_cast<std::size_t>(features) + k];
            CHECK(values_of(weight.grad()) == sums);
        }
}

TEST_CASE("an index out of range is reported with its row, and selects and adds nothing") {
    const NoMistakes end;
    const OnDevice<StepCounters> step({{0, 11, 0}});
    const OnDevice<float> x({1, 2, 3, 4, 5, 6});
    const auto reported = [&](auto operation, const TensorMeta& index, const Indices& indices, const TensorMeta& y,
                              const std::vector<float>& expected) {
        const OnDevice<StatusWord> status({StatusWord{}});
        const OnDevice<std::int64_t> at(indices);
        const OnDevice<float> out(std::vector<float>(expected.size(), -1));
        Call call;
        call.in_metas = {TensorMeta::contiguous(DType::f32, {3, 2}), index};
        call.out_metas = {y};
        call.in = {x.data(), at.data()};
        call.out = {out.data()};
        call.step = step.data();
        call.status = status.data();
        call.shard = 2;
        call.first_row = 100;
        call.run(operation);
        CHECK(out.fetch() == expected);
        const StatusWord found = status.fetch()[0];
        CHECK(found.code == static_cast<std::int32_t>(StatusCode::index_out_of_range));
        CHECK(found.shard == 2);
        CHECK(found.step == 11);
        return std::pair(found.row, found.value);
    };
    using Found = std::pair<std::int64_t, std::int64_t>;
    const auto floats_of = [](const Shape& shape) { return TensorMeta::contiguous(DType::f32, shape); };
    const auto indices_of = [](const Shape& shape) { return TensorMeta::contiguous(DType::i64, shape); };
    CHECK(reported(IndexSelect{0, 2, true}, indices_of({4}), {0, 2, 3, -1}, floats_of({4, 2}),
                   {1, 2, 5, 6, 0, 0, 0, 0}) == Found{101, 3});
    CHECK(reported(IndexSelect{0, 1, false}, indices_of({2}), {1, -1}, floats_of({2, 2}), {3, 4, 0, 0}) ==
          Found{1, -1});
    CHECK(reported(Gather{1, 2, true}, indices_of({3, 2}), {1, 0, 0, 1, 2, 0}, floats_of({3, 2}), {2, 1, 3, 4, 0, 5}) ==
          Found{102, 2});
    CHECK(reported(ScatterSum{1, 2, true}, indices_of({3, 2}), {1, 1, 0, 5, 0, 1}, floats_of({3, 2}),
                   {0, 3, 3, 0, 5, 6}) == Found{101, 5});
}
