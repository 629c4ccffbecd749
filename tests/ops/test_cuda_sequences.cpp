// The CUDA kernel of sequences, on the stand-in and on GPUs: every step has the bits of the operation that it stands
// for.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "lockstep/ops/functional.h"
#include "lockstep/ops/internal/sequence.h"
#include "lockstep/ops/internal/tensor_operations.h"
#include "lockstep/runtime/internal/core_operations.h"
#include "lockstep/tests/catch.h"
#include "lockstep/tests/ops/cuda_kernel_call.h"

using namespace lockstep;
using namespace lockstep::test;

namespace {

template <class T>
Tensor values(const Shape& shape, int seed) {
    std::vector<T> numbers;
    for (std::int64_t i = 0; i < shape.numel(); ++i)
        numbers.push_back(static_cast<T>(0.25 + 0.125 * static_cast<double>((i * 7 + seed * 5) % 11)));
    return Tensor::from(numbers, shape).to(gpu);
}

/// A sequence, and its steps as separate operations.
class Steps {
public:
    explicit Steps(DType dtype) : dtype_(dtype) {}
    /// Adds a step on `in`. Returns its result as a separate operation; as an operand of later steps it stands for the
    /// result of the step.
    Tensor add(const SequenceStep& step, std::shared_ptr<const Operation> alone, const std::vector<Tensor>& in,
               const Shape& shape) {
        const TensorMeta meta = TensorMeta::contiguous(dtype_, shape);
        const Tensor expected = apply_one(std::move(alone), in, meta);
        const Tensor made = Tensor::zeros(shape, dtype_, gpu);
        for (const Tensor& x : in) {
            given_.push_back(x);
            call_.in_metas.push_back(x.impl()->meta);
            Tensor from = x;
            for (const auto& [separate, in_sequence] : results_)
                if (separate.impl()->storage == x.impl()->storage) from = in_sequence;
            call_.in.push_back(static_cast<char*>(from.impl()->storage->buffer->data()) +
                               static_cast<std::size_t>(x.impl()->meta.offset) * size_of(x.dtype()));
        }
        call_.out_metas.push_back(meta);
        call_.out.push_back(made.impl()->storage->buffer->data());
        sequence_.steps.push_back(step);
        results_.emplace_back(expected, made);
        return expected;
    }
    template <class T>
    void check() const {
        call_.run(sequence_);
        for (std::size_t i = 0; i < results_.size(); ++i) {
            INFO("step " << i << ", function " << sequence_.steps[i].function);
            const auto [expected, found] = results_[i];
            const auto a = expected.to(Device::host()).template to_vector<T>();
            const auto b = found.to(Device::host()).template to_vector<T>();
            REQUIRE(a.size() == b.size());
            CHECK(std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
        }
    }

private:
    DType dtype_;
    Call call_;
    std::vector<Tensor> given_;  // alive until the sequence has run
    Sequence sequence_;
    std::vector<std::pair<Tensor, Tensor>> results_;  // separate operation, sequence
};

template <class T, class... F>
void add_binaries(Steps& steps, const std::tuple<F...>*) {
    int number = SequenceFunction::binary;
    const auto add = [&](auto function) {
        using Function = decltype(function);
        const Tensor a = values<T>({2, 3, 4}, number), b = values<T>({3, 1}, number + 1);
        const Tensor y = steps.add({number, 2}, make_operation(Binary<Function>{}), {a, b}, {2, 3, 4});
        // Operands in another order of memory, and one element for all.
        const Tensor turned = permute(values<T>({4, 2, 3}, number), {1, 2, 0});
        steps.add({number, 2}, make_operation(Binary<Function>{}), {turned, y}, {2, 3, 4});
        steps.add({number, 2}, make_operation(Binary<Function>{}), {y, values<T>({}, 3)}, {2, 3, 4});
        ++number;
    };
    (add(F()), ...);
}

template <class T, class... F>
void add_unaries(Steps& steps, const std::tuple<F...>*) {
    int number = 0;
    const auto add = [&]<class Function>(Function function) {
        if (is_step<Function>) {
            const Tensor x = values<T>({5, 7}, number), dy = values<T>({5, 7}, number + 1);
            const Tensor y = steps.add({SequenceFunction::unary + number, 1}, make_operation(Unary<Function>{function}),
                                       {x}, {5, 7});
            std::vector<Tensor> in{dy};
            if (Function::saves != Saves::nothing) in.push_back(Function::saves == Saves::input ? x : y);
            steps.add({SequenceFunction::gradient + number, static_cast<int>(in.size())},
                      make_operation(UnaryBackward<Function>{function}), in, {5, 7});
        }
        ++number;
    };
    (add(F()), ...);
}

template <class T>
void check_all() {
    Steps steps(dtype_of<T>);
    add_binaries<T>(steps, list_of<BinaryFunctions>);
    add_unaries<T>(steps, list_of<UnaryFunctions>);
    const Tensor x = values<T>({2, 4, 3}, 1);
    for (const std::uint32_t dims : {1u, 2u, 4u, 5u, 6u}) {
        Shape shape = x.shape();
        for (int d = 0; d < 3; ++d)
            if ((dims >> d & 1u) != 0) shape[d] = 1;
        const Tensor sum = steps.add({SequenceFunction::sum, 1, 1, 0, dims}, make_operation(Sum{dims}), {x}, shape);
        const Tensor y =
            steps.add({SequenceFunction::affine, 1, 0.7, 0.3}, make_operation(Affine{0.7, 0.3}), {sum}, shape);
        steps.add({SequenceFunction::affine, 1, -1, no_shift}, make_operation(Affine{-1, no_shift}), {y}, shape);
    }
    const Tensor constant = steps.add({SequenceFunction::fill, 0, 1, 2.5}, make_operation(Fill{2.5}), {}, {3});
    steps.add({SequenceFunction::affine, 1, 2, 1}, make_operation(Affine{2, 1}), {constant}, {3});
    const Tensor many = values<T>({2048}, 2);
    steps.add({SequenceFunction::affine, 1, 3, 1}, make_operation(Affine{3, 1}), {many}, {2048});
    steps.check<T>();
}

}  // namespace

TEST_CASE("a sequence has the bits of its operations") {
    const NoMistakes end;
    check_all<float>();
    check_all<double>();
}
