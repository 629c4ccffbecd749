// GLU, and steps of recurrent layers. Rows are computed in blocks that stay in the first-level cache, by the loops of
// the functions of which they consist.
#include <algorithm>
#include <array>

#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/lines.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/internal/arithmetic.h"
#include "lockstep/ops/internal/gate_operations.h"

namespace lockstep::cpu {
namespace {

constexpr std::int64_t columns_of_cells = 256;

/// Distance between the rows of an operand, whose elements will be adjacent.
std::int64_t row_step(KernelRequest& request, std::size_t input) {
    const TensorMeta& meta = request.in[input];
    if (!request.has_in(input)) return 0;
    if (meta.opaque != nullptr || (meta.shape[1] > 1 && meta.strides[1] != 1)) request.want_contiguous(input);
    return request.in[input].strides[0];
}

/// The functions of whole blocks; z may be x or y.
template <class T>
struct BlockLoops {
    std::int64_t n;

    template <class F>
    void combine(const T* x, const T* y, T* z) const {
        binary_loops<T, F>()[0](x, y, z, n);
    }
    void add(const T* x, const T* y, T* z) const { combine<functor::Add>(x, y, z); }
    void subtract(const T* x, const T* y, T* z) const { combine<functor::Sub>(x, y, z); }
    void multiply(const T* x, const T* y, T* z) const { combine<functor::Mul>(x, y, z); }
    template <class F>
    void apply(T* x) const {
        run_unary(F(), x, x, n);
    }
    template <class F>
    void differentiate(T* dy, const T* y) const {
        run_unary_backward(F(), dy, y, dy, n);
    }
};

/// Calls work(row, first column, loops of a block) for all blocks of (rows, columns), in parallel.
template <class T, class Work>
void for_cells(int threads, std::int64_t rows, std::int64_t columns, const Work& work) {
    constexpr std::int64_t functions = 8;  // simple elements in the time of one
    for_parts(worthwhile_threads(threads, functions * rows * columns), rows, 1,
              [&](std::int64_t begin, std::int64_t end) {
                  for (std::int64_t row = begin; row < end; ++row)
                      for (std::int64_t first = 0; first < columns; first += columns_of_cells)
                          work(row, first, BlockLoops<T>{std::min(columns_of_cells, columns - first)});
              });
}

template <class T>
using Block = std::array<T, columns_of_cells>;

template <class Op>
void require_dense_outputs(const Op& operation, const KernelRequest& request) {
    for (std::size_t i = 0; i < request.out.size(); ++i)
        if (request.has_out(i)) require_contiguous_output(operation, request, i);
}

/// Calls work(first element in a tensor of halves, in the whole one, elements of a half in a run, loops of a block) for
/// all blocks of a row-major tensor.
template <class T, class Work>
void for_halves(int threads, const Lines& whole, const Work& work) {
    const std::int64_t half = whole.size / 2 * whole.inner;
    for_cells<T>(threads, whole.outer, half, [&](std::int64_t row, std::int64_t first, const BlockLoops<T>& block) {
        work(row * half + first, 2 * row * half + first, half, block);
    });
}

std::unique_ptr<Kernel> make_glu(const Glu& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_dense_outputs(operation, request);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [lines = Lines(request.in[0].shape, operation.dim), threads = request.threads](const KernelArgs& call) {
                for_halves<T>(threads, lines,
                              [&](std::int64_t at, std::int64_t from, std::int64_t half, const auto& block) {
                                  T* const y = call.output<T>(0) + at;
                                  const T* const x = call.input<T>(0) + from;
                                  run_unary(functor::Sigmoid(), x + half, y, block.n);
                                  block.multiply(x, y, y);
                              });
            });
    });
}

std::unique_ptr<Kernel> make_glu_backward(const GluBackward& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_dense_outputs(operation, request);
    return for_floating(operation, request.in[1].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [lines = Lines(request.in[1].shape, operation.dim), threads = request.threads](const KernelArgs& call) {
                for_halves<T>(threads, lines,
                              [&](std::int64_t at, std::int64_t from, std::int64_t half, const auto& block) {
                                  const T *const dy = call.input<T>(0) + at, *const x = call.input<T>(1) + from;
                                  T* const dx = call.output<T>(0) + from;
                                  Block<T> gate;
                                  run_unary(functor::Sigmoid(), x + half, gate.data(), block.n);
                                  block.multiply(dy, gate.data(), dx);
                                  block.multiply(dy, x, dx + half);
                                  block.template differentiate<functor::Sigmoid>(dx + half, gate.data());
                              });
            });
    });
}

std::unique_ptr<Kernel> make_lstm_cell(const LstmCell& operation, KernelRequest& request) {
    require_dense_outputs(operation, request);
    const std::int64_t rows = request.in[2].shape[0], size = request.in[2].shape[1];
    const std::array<std::int64_t, 3> steps{row_step(request, 0), row_step(request, 1), row_step(request, 2)};
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([=, threads = request.threads](const KernelArgs& call) {
            for_cells<T>(threads, rows, size, [&](std::int64_t row, std::int64_t first, const BlockLoops<T>& block) {
                std::array<Block<T>, 4> rooms;
                std::array<T*, 4> gate;
                for (std::int64_t i = 0; i < 4; ++i) {
                    const auto at = static_cast<std::size_t>(i);
                    T* const kept = call.output<T>(2);
                    gate[at] = kept ? kept + (4 * row + i) * size + first : rooms[at].data();
                    block.add(call.input<T>(0) + row * steps[0] + i * size + first,
                              call.input<T>(1) + row * steps[1] + i * size + first, gate[at]);
                }
                for (const std::size_t i : {0U, 1U, 3U}) block.template apply<functor::Sigmoid>(gate[i]);
                block.template apply<functor::Tanh>(gate[2]);
                T *const hidden = call.output<T>(0) + row * size + first, *const cell =
                                                                              call.output<T>(1) + row * size + first;
                Block<T> added;
                block.multiply(gate[0], gate[2], added.data());
                block.multiply(gate[1], call.input<T>(2) + row * steps[2] + first, cell);
                block.add(cell, added.data(), cell);
                run_unary(functor::Tanh(), cell, hidden, block.n);
                block.multiply(gate[3], hidden, hidden);
            });
        });
    });
}

std::unique_ptr<Kernel> make_lstm_cell_backward(const LstmCellBackward& operation, KernelRequest& request) {
    require_dense_outputs(operation, request);
    const std::int64_t rows = request.in[1].shape[0], size = request.in[1].shape[1];
    std::array<std::int64_t, 5> steps{};
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = row_step(request, i);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([=, threads = request.threads](const KernelArgs& call) {
            for_cells<T>(threads, rows, size, [&](std::int64_t row, std::int64_t first, const BlockLoops<T>& block) {
                const auto in = [&](std::size_t i) {
                    const T* const all = call.input<T>(static_cast<int>(i));
                    return all == nullptr ? all : all + row * steps[i] + first;
                };
                const T *const gates = in(0), *const before = in(1), *const dhidden = in(3), *const dcell = in(4);
                T *const dgates = call.output<T>(0) + 4 * row * size + first, *const dbefore = call.output<T>(1) +
                                                                                               row * size + first;
                T* const of_output = dgates + 3 * size;
                Block<T> all;  // gradient of the cell after the step
                if (dhidden != nullptr) {
                    Block<T> shown;
                    run_unary(functor::Tanh(), in(2), shown.data(), block.n);
                    block.multiply(dhidden, gates + 3 * size, all.data());
                    block.template differentiate<functor::Tanh>(all.data(), shown.data());
                    if (dcell != nullptr) block.add(dcell, all.data(), all.data());
                    block.multiply(dhidden, shown.data(), of_output);
                    block.template differentiate<functor::Sigmoid>(of_output, gates + 3 * size);
                } else {
                    std::copy_n(dcell, block.n, all.data());
                    std::fill_n(of_output, block.n, T(0));
                }
                block.multiply(all.data(), gates + 2 * size, dgates);
                block.template differentiate<functor::Sigmoid>(dgates, gates);
                block.multiply(all.data(), before, dgates + size);
                block.template differentiate<functor::Sigmoid>(dgates + size, gates + size);
                block.multiply(all.data(), gates, dgates + 2 * size);
                block.template differentiate<functor::Tanh>(dgates + 2 * size, gates + 2 * size);
                block.multiply(all.data(), gates + size, dbefore);
            });
        });
    });
}

std::unique_ptr<Kernel> make_gru_cell(const GruCell& operation, KernelRequest& request) {
    require_dense_outputs(operation, request);
    const std::int64_t rows = request.in[2].shape[0], size = request.in[2].shape[1];
    const std::array<std::int64_t, 3> steps{row_step(request, 0), row_step(request, 1), row_step(request, 2)};
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([=, threads = request.threads](const KernelArgs& call) {
            for_cells<T>(threads, rows, size, [&](std::int64_t row, std::int64_t first, const BlockLoops<T>& block) {
                std::array<Block<T>, 3> rooms;
                T* const kept = call.output<T>(1);
                const auto room = [&](std::int64_t i) {
                    return kept ? kept + (3 * row + i) * size + first : rooms[static_cast<std::size_t>(i)].data();
                };
                T *const reset = room(0), *const update = room(1), *const next = room(2);
                const T *const from_x = call.input<T>(0) + row * steps[0] + first, *const from_state =
                                                                                       call.input<T>(1) +
                                                                                       row * steps[1] + first;
                block.add(from_x, from_state, reset);
                block.add(from_x + size, from_state + size, update);
                block.template apply<functor::Sigmoid>(reset);
                block.template apply<functor::Sigmoid>(update);
                block.multiply(reset, from_state + 2 * size, next);
                block.add(from_x + 2 * size, next, next);
                block.template apply<functor::Tanh>(next);
                T* const hidden = call.output<T>(0) + row * size + first;
                block.subtract(call.input<T>(2) + row * steps[2] + first, next, hidden);
                block.multiply(update, hidden, hidden);
                block.add(next, hidden, hidden);
            });
        });
    });
}

std::unique_ptr<Kernel> make_gru_cell_backward(const GruCellBackward& operation, KernelRequest& request) {
    require_dense_outputs(operation, request);
    const std::int64_t rows = request.in[2].shape[0], size = request.in[2].shape[1];
    std::array<std::int64_t, 4> steps{};
    for (std::size_t i = 0; i < steps.size(); ++i) steps[i] = row_step(request, i);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([=, threads = request.threads](const KernelArgs& call) {
            for_cells<T>(threads, rows, size, [&](std::int64_t row, std::int64_t first, const BlockLoops<T>& block) {
                const auto in = [&](std::size_t i) {
                    return call.input<T>(static_cast<int>(i)) + row * steps[i] + first;
                };
                const T *const reset = in(0), *const update = reset + size, *const next = reset + 2 * size;
                const T *const from_state = in(1), *const before = in(2), *const dhidden = in(3);
                T *const of_x = call.output<T>(0) + 3 * row * size + first, *const of_state = call.output<T>(1) +
                                                                                              3 * row * size + first;
                T *const dnext = of_x + 2 * size, *const dupdate = of_x + size,
                         *const dbefore = call.output<T>(2) + row * size + first;
                block.multiply(dhidden, update, dbefore);
                block.subtract(dhidden, dbefore, dnext);
                block.template differentiate<functor::Tanh>(dnext, next);
                block.subtract(before, next, dupdate);
                block.multiply(dhidden, dupdate, dupdate);
                block.template differentiate<functor::Sigmoid>(dupdate, update);
                block.multiply(dnext, from_state + 2 * size, of_x);
                block.template differentiate<functor::Sigmoid>(of_x, reset);
                std::copy_n(of_x, block.n, of_state);
                std::copy_n(dupdate, block.n, of_state + size);
                block.multiply(dnext, reset, of_state + 2 * size);
            });
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

}  // namespace lockstep::cpu
