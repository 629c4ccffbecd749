// Sequences of small operations: one block performs them, because each has little work and needs the results of those
// before it.
#include <algorithm>
#include <vector>

#include "lockstep/ops/cuda/index.h"
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/cuda/running_sum.h"
#include "lockstep/ops/internal/sequence.h"

namespace lockstep::cuda {

namespace {

// The arguments of a launch must fit into 4 KB.
constexpr int max_steps = 16;

/// Up to four dimensions, the outermost one first; those that are missing have size 1.
struct SmallSizes {
    int of[max_step_dims] = {1, 1, 1, 1};

    explicit SmallSizes(const Shape& shape) { copy(shape, of); }
    SmallSizes() = default;
    static void copy(const Shape& shape, int (&to)[max_step_dims]) {
        for (int d = 0; d < shape.dims(); ++d) to[max_step_dims - shape.dims() + d] = static_cast<int>(shape[d]);
    }
};
struct SmallStrides {
    int of[max_step_dims] = {};

    explicit SmallStrides(const Shape& strides) { SmallSizes::copy(strides, of); }
    SmallStrides() = default;
    /// Offset of element `i`.
    LOCKSTEP_HD_INLINE int at(int i, const SmallSizes& sizes) const {
        int offset = 0;
        LOCKSTEP_UNROLL
        for (int d = max_step_dims - 1; d > 0; --d) {
            offset += i % sizes.of[d] * of[d];
            i /= sizes.of[d];
        }
        return offset + i * of[0];
    }
};

template <class T>
struct Step {
    int function = 0;
    int count = 0;  ///< elements of y
    int terms = 1;  ///< terms of a sum
    T scale = 1, shift = 0;
    const T* a = nullptr;
    const T* b = nullptr;
    T* y = nullptr;
    SmallSizes sizes, reduced;
    SmallStrides of_a, of_b, of_y, of_terms;

    LOCKSTEP_HD_INLINE void operator()(int i) const {
        T* const to = y + of_y.at(i, sizes);
        if (function == SequenceFunction::fill) {
            *to = shift;
            return;
        }
        const T* const first = a + of_a.at(i, sizes);
        if (function == SequenceFunction::sum) {
            SumOf<T> sum{};
            LOCKSTEP_NO_UNROLL
            for (int k = 0; k < terms; ++k) sum.add(first[of_terms.at(k, reduced)]);
            *to = sum.value();
        } else if (function == SequenceFunction::affine) {
            *to = element::affine(*first, scale, shift);
        } else {
            const T second = b != nullptr ? b[of_b.at(i, sizes)] : *first;
            *to = value(*first, second);
        }
    }

private:
    LOCKSTEP_HD_INLINE T value(T first, T second) const {
        if (function < SequenceFunction::unary) return binary(list_of<BinaryFunctions>, first, second);
        if (function < SequenceFunction::gradient) return unary(list_of<UnaryFunctions>, first);
        return gradient(list_of<UnaryFunctions>, first, second);
    }
    template <class... F>
    LOCKSTEP_HD_INLINE T binary(const std::tuple<F...>*, T first, T second) const {
        T result{};
        int number = SequenceFunction::binary;
        static_cast<void>(((function == number++ ? (result = F().value(first, second), true) : false) || ...));
        return result;
    }
    template <class... F>
    LOCKSTEP_HD_INLINE T unary(const std::tuple<F...>*, T x) const {
        T result{};
        int number = SequenceFunction::unary;
        const auto apply = [&](auto of_one) {
            if constexpr (is_step<decltype(of_one)>) result = of_one.value(x);
            return true;
        };
        static_cast<void>(((function == number++ && apply(F())) || ...));
        return result;
    }
    template <class... F>
    LOCKSTEP_HD_INLINE T gradient(const std::tuple<F...>*, T dy, T saved) const {
        T result{};
        int number = SequenceFunction::gradient;
        const auto apply = [&](auto of_one) {
            if constexpr (is_step<decltype(of_one)>) result = of_one.gradient(dy, saved);
            return true;
        };
        static_cast<void>(((function == number++ && apply(F())) || ...));
        return result;
    }
};

template <class T>
struct Steps {
    int count = 0;
    Step<T> of[max_steps];
};

#if defined(__CUDACC__)
template <class T>
__global__ void __launch_bounds__(block_threads) run_steps(Steps<T> steps) {
    for (int s = 0; s < steps.count; ++s) {
        const Step<T>& step = steps.of[s];
        for (int i = static_cast<int>(threadIdx.x); i < step.count; i += block_threads) step(i);
        __syncthreads();  // the next step may read the results
    }
}
#endif

template <class T>
void enqueue(const Queue& queue, const Steps<T>& steps) {
#if defined(__CUDACC__)
    launch_blocks(queue, Sequence::name, 1, run_steps<T>, Steps<T>(steps));
#else
    const auto loop = [steps] {
        for (int s = 0; s < steps.count; ++s)
            for (int i = 0; i < steps.of[s].count; ++i) steps.of[s](i);
    };
    check(enqueue_host_twin(queue, Sequence::name, loop), Sequence::name);
#endif
}

/// A step without addresses.
template <class T>
Step<T> elementwise_step(const TensorMeta* in, int inputs, const TensorMeta& y) {
    const TensorMeta &a = inputs > 0 ? in[0] : y, &b = inputs > 1 ? in[1] : a;
    const Shape strides[] = {y.strides, broadcast_strides(a, y.shape), broadcast_strides(b, y.shape)};
    const Walk walk = make_walk(y.shape, strides, Order::memory);
    Step<T> step;
    step.sizes = SmallSizes(walk.sizes);
    step.of_y = SmallStrides(walk.strides[0]);
    step.of_a = SmallStrides(walk.strides[1]);
    step.of_b = SmallStrides(walk.strides[2]);
    return step;
}

template <class T>
Step<T> sum_step(const TensorMeta& x, std::uint32_t dims, const TensorMeta& y) {
    Shape kept, kept_x, kept_y, reduced, reduced_x;
    for (int d = 0; d < x.shape.dims(); ++d) {
        if ((dims >> d & 1u) != 0) {
            reduced.push_back(x.shape[d]);
            reduced_x.push_back(x.strides[d]);
        } else {
            kept.push_back(x.shape[d]);
            kept_x.push_back(x.strides[d]);
            kept_y.push_back(y.strides[d]);
        }
    }
    const Walk outputs = make_walk(kept, {kept_x, kept_y}, Order::memory);
    const Walk terms = make_walk(reduced, {reduced_x}, Order::memory);
    Step<T> step;
    step.sizes = SmallSizes(outputs.sizes);
    step.of_a = SmallStrides(outputs.strides[0]);
    step.of_y = SmallStrides(outputs.strides[1]);
    step.terms = static_cast<int>(terms.sizes.numel());
    step.reduced = SmallSizes(terms.sizes);
    step.of_terms = SmallStrides(terms.strides[0]);
    return step;
}

template <class T>
KernelPtr make_steps(const Sequence& op, const KernelRequest& request) {
    std::vector<Step<T>> all;
    std::vector<int> inputs;
    std::size_t first = 0;
    for (std::size_t s = 0; s < op.steps.size(); ++s) {
        const SequenceStep& given = op.steps[s];
        const TensorMeta& y = request.out[s];
        Step<T> step = given.function == SequenceFunction::sum
                           ? sum_step<T>(request.in[first], given.dims, y)
                           : elementwise_step<T>(request.in.data() + first, given.inputs, y);
        step.function = given.function;
        step.count = static_cast<int>(y.numel());
        step.scale = static_cast<T>(given.scale);
        step.shift = static_cast<T>(given.shift);
        all.push_back(step);
        inputs.push_back(given.inputs);
        first += static_cast<std::size_t>(given.inputs);
    }
    return make_cuda_kernel(request, [all, inputs](const Queue& queue, const KernelArgs& v) {
        int in = 0;
        for (std::size_t begin = 0; begin < all.size(); begin += max_steps) {
            Steps<T> steps;
            for (std::size_t s = begin; s < std::min(begin + max_steps, all.size()); ++s) {
                Step<T>& step = steps.of[steps.count++];
                step = all[s];
                if (inputs[s] > 0) step.a = v.input<T>(in);
                if (inputs[s] > 1) step.b = v.input<T>(in + 1);
                step.y = v.output<T>(static_cast<int>(s));
                in += inputs[s];
            }
            enqueue(queue, steps);
        }
    });
}

KernelPtr make_sequence(const Sequence& op, KernelRequest& request) {
    return visit_float(op.name, request.out[0].dtype,
                       [&](auto zero) { return make_steps<decltype(zero)>(op, request); });
}

}  // namespace

void add_sequence_kernels(KernelTable& table) { table.add<Sequence, make_sequence>(); }

}  // namespace lockstep::cuda
