// GLU, and steps of recurrent layers. A thread computes one element of the result, or of the state.
#include "lockstep/ops/cuda/kernel.h"
#include "lockstep/ops/cuda/kernels.h"
#include "lockstep/ops/internal/gate_operations.h"

namespace lockstep::cuda {

namespace {

/// A matrix whose rows are `row` and whose columns are `column` apart; `data` is null if it is missing.
template <class T>
struct Rows {
    const T* data;
    std::int64_t row, column;

    LOCKSTEP_HD_INLINE T at(std::int64_t i, std::int64_t j) const { return data[i * row + j * column]; }
    LOCKSTEP_HD_INLINE T or_zero(std::int64_t i, std::int64_t j) const { return data != nullptr ? at(i, j) : T(0); }
};

struct RowStrides {
    std::int64_t row = 0, column = 0;

    static RowStrides of(const KernelRequest& request, std::size_t input) {
        if (!request.has_in(input)) return {};
        return {request.in[input].strides[0], request.in[input].strides[1]};
    }
    template <class T>
    Rows<T> bind(const KernelArgs& args, int input) const {
        return {args.input<T>(input), row, column};
    }
};

template <class T>
struct LstmStep {
    std::int64_t size;
    Rows<T> from_x, from_state, before;
    T *hidden, *cell, *kept;  // kept: null, or the values of the gates

    LOCKSTEP_HD_INLINE T argument(std::int64_t i, std::int64_t j) const {
        return from_x.at(i, j) + from_state.at(i, j);
    }
    LOCKSTEP_HD_INLINE void operator()(std::int64_t e) const {
        const std::int64_t i = e / size, j = e % size;
        const element::LstmGates<T> gates = element::lstm_gates(argument(i, j), argument(i, size + j),
                                                                argument(i, 2 * size + j), argument(i, 3 * size + j));
        const T after = gates.forget * before.at(i, j) + gates.input * gates.cell;
        cell[e] = after;
        hidden[e] = gates.output * functor::Tanh().value(after);
        if (kept == nullptr) return;
        T* const to = kept + 4 * i * size + j;
        to[0] = gates.input;
        to[size] = gates.forget;
        to[2 * size] = gates.cell;
        to[3 * size] = gates.output;
    }
};

template <class T>
struct LstmStepBackward {
    std::int64_t size;
    Rows<T> gates, before, after, dhidden, dcell;
    T *of_gates, *of_cell;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t e) const {
        const std::int64_t i = e / size, j = e % size;
        const element::LstmGates<T> values{gates.at(i, j), gates.at(i, size + j), gates.at(i, 2 * size + j),
                                           gates.at(i, 3 * size + j)};
        T gradient = dcell.or_zero(i, j);
        const element::LstmGates<T> made =
            element::lstm_gradient(values, before.at(i, j), after.at(i, j), dhidden.or_zero(i, j), gradient);
        of_cell[e] = gradient;
        T* const to = of_gates + 4 * i * size + j;
        to[0] = made.input;
        to[size] = made.forget;
        to[2 * size] = made.cell;
        to[3 * size] = made.output;
    }
};

template <class T>
struct GruStep {
    std::int64_t size;
    Rows<T> from_x, from_state, before;
    T *hidden, *kept;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t e) const {
        const std::int64_t i = e / size, j = e % size;
        const functor::Sigmoid sigmoid;
        const T reset = sigmoid.value(from_x.at(i, j) + from_state.at(i, j));
        const T update = sigmoid.value(from_x.at(i, size + j) + from_state.at(i, size + j));
        const T next = functor::Tanh().value(from_x.at(i, 2 * size + j) + reset * from_state.at(i, 2 * size + j));
        hidden[e] = next + update * (before.at(i, j) - next);
        if (kept == nullptr) return;
        T* const to = kept + 3 * i * size + j;
        to[0] = reset;
        to[size] = update;
        to[2 * size] = next;
    }
};

template <class T>
struct GruStepBackward {
    std::int64_t size;
    Rows<T> gates, from_state, before, dhidden;
    T *of_x, *of_state, *of_hidden;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t e) const {
        const std::int64_t i = e / size, j = e % size;
        const functor::Sigmoid sigmoid;
        const T reset = gates.at(i, j), update = gates.at(i, size + j), next = gates.at(i, 2 * size + j);
        const T dy = dhidden.at(i, j), kept = dy * update;
        const T dnext = functor::Tanh().gradient(dy - kept, next);
        const T dupdate = sigmoid.gradient(dy * (before.at(i, j) - next), update);
        const T dreset = sigmoid.gradient(dnext * from_state.at(i, 2 * size + j), reset);
        of_hidden[e] = kept;
        const std::int64_t at = 3 * i * size + j;
        of_x[at] = of_state[at] = dreset;
        of_x[at + size] = of_state[at + size] = dupdate;
        of_x[at + 2 * size] = dnext;
        of_state[at + 2 * size] = dnext * reset;
    }
};

/// A row-major tensor in halves: runs of `half` elements each.
template <class T>
struct GluElement {
    std::int64_t half;
    const T* x;
    T* y;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const T* const from = x + i / half * half + i;
        y[i] = from[0] * functor::Sigmoid().value(from[half]);
    }
};

template <class T>
struct GluBackwardElement {
    std::int64_t half;
    const T *dy, *x;
    T* dx;

    LOCKSTEP_HD_INLINE void operator()(std::int64_t i) const {
        const std::int64_t at = i / half * half + i;
        const T gate = functor::Sigmoid().value(x[at + half]);
        dx[at] = dy[i] * gate;
        dx[at + half] = functor::Sigmoid().gradient(dy[i] * x[at], gate);
    }
};

/// Adjacent elements of one half of `shape`.
std::int64_t half_run(const Shape& shape, int dim) {
    std::int64_t run = shape[dim] / 2;
    for (int d = dim + 1; d < shape.dims(); ++d) run *= shape[d];
    return run;
}

KernelPtr make_glu(const Glu& op, KernelRequest& request) {
    request.want_all_contiguous();
    const std::int64_t half = half_run(request.in[0].shape, op.dim), count = request.out[0].numel();
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [half, count](const Queue& queue, const KernelArgs& v) {
            launch(queue, Glu::name, count, GluElement<T>{half, v.input<T>(0), v.output<T>(0)});
        });
    });
}

KernelPtr make_glu_backward(const GluBackward& op, KernelRequest& request) {
    request.want_all_contiguous();
    const std::int64_t half = half_run(request.in[1].shape, op.dim), count = request.in[0].numel();
    return visit_float(op.name, request.in[1].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [half, count](const Queue& queue, const KernelArgs& v) {
            launch(queue, GluBackward::name, count,
                   GluBackwardElement<T>{half, v.input<T>(0), v.input<T>(1), v.output<T>(0)});
        });
    });
}

KernelPtr make_lstm_cell(const LstmCell& op, KernelRequest& request) {
    const std::int64_t size = request.out[0].shape[1], count = request.out[0].numel();
    const RowStrides x = RowStrides::of(request, 0), state = RowStrides::of(request, 1),
                     cell = RowStrides::of(request, 2);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [=](const Queue& queue, const KernelArgs& v) {
            launch(queue, LstmCell::name, count,
                   LstmStep<T>{size, x.bind<T>(v, 0), state.bind<T>(v, 1), cell.bind<T>(v, 2), v.output<T>(0),
                               v.output<T>(1), v.output<T>(2)});
        });
    });
}

KernelPtr make_lstm_cell_backward(const LstmCellBackward& op, KernelRequest& request) {
    const std::int64_t size = request.out[1].shape[1], count = request.out[1].numel();
    const RowStrides gates = RowStrides::of(request, 0), before = RowStrides::of(request, 1),
                     after = RowStrides::of(request, 2), dhidden = RowStrides::of(request, 3),
                     dcell = RowStrides::of(request, 4);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [=](const Queue& queue, const KernelArgs& v) {
            launch(queue, LstmCellBackward::name, count,
                   LstmStepBackward<T>{size, gates.bind<T>(v, 0), before.bind<T>(v, 1), after.bind<T>(v, 2),
                                       dhidden.bind<T>(v, 3), dcell.bind<T>(v, 4), v.output<T>(0), v.output<T>(1)});
        });
    });
}

KernelPtr make_gru_cell(const GruCell& op, KernelRequest& request) {
    const std::int64_t size = request.out[0].shape[1], count = request.out[0].numel();
    const RowStrides x = RowStrides::of(request, 0), state = RowStrides::of(request, 1),
                     hidden = RowStrides::of(request, 2);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [=](const Queue& queue, const KernelArgs& v) {
            launch(queue, GruCell::name, count,
                   GruStep<T>{size, x.bind<T>(v, 0), state.bind<T>(v, 1), hidden.bind<T>(v, 2), v.output<T>(0),
                              v.output<T>(1)});
        });
    });
}

KernelPtr make_gru_cell_backward(const GruCellBackward& op, KernelRequest& request) {
    const std::int64_t size = request.out[2].shape[1], count = request.out[2].numel();
    const RowStrides gates = RowStrides::of(request, 0), state = RowStrides::of(request, 1),
                     before = RowStrides::of(request, 2), dhidden = RowStrides::of(request, 3);
    return visit_float(op.name, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_cuda_kernel(request, [=](const Queue& queue, const KernelArgs& v) {
            launch(queue, GruCellBackward::name, count,
                   GruStepBackward<T>{size, gates.bind<T>(v, 0), state.bind<T>(v, 1), before.bind<T>(v, 2),
                                      dhidden.bind<T>(v, 3), v.output<T>(0), v.output<T>(1), v.output<T>(2)});
        });
    });
}

}  // namespace

void add_gate_kernels(KernelTable& table) {
    table.add<Glu, make_glu>();
    table.add<GluBackward, make_glu_backward>();
    table.add<LstmCell, make_lstm_cell>();
    table.add<LstmCellBackward, make_lstm_cell_backward>();
    table.add<GruCell, make_gru_cell>();
    table.add<GruCellBackward, make_gru_cell_backward>();
}

}  // namespace lockstep::cuda
