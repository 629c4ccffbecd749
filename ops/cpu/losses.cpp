// Losses, which are summed in double, in an order that does not depend on the threads.
#include <algorithm>
#include <cmath>

#include "lockstep/ops/cpu/chunks.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/layout.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/cpu/report.h"
#include "lockstep/ops/internal/nn_operations.h"
#include "lockstep/runtime/record.h"

namespace lockstep::cpu {
namespace {

// ---- negative log likelihood ------------------------------------------------------------------------------------

template <class Op>
void require_targets(const Op&, const TensorMeta& target) {
    if (target.dtype != DType::i64)
        throw InvalidArgument(std::string(Op::name) + ": targets have dtype " + std::string(name_of(target.dtype)) +
                              "; expected i64");
}

/// Log-probabilities (n, classes, inner) of n * inner positions.
struct Positions {
    std::int64_t n, classes, inner = 1;

    explicit Positions(const Shape& shape) : n(shape[0]), classes(shape[1]) {
        for (int i = 2; i < shape.dims(); ++i) inner *= shape[i];
    }
    std::int64_t count() const { return n * inner; }
};

/// Sums over a chunk of positions.
struct NllPart {
    double numerator = 0, weight = 0;
    std::int64_t bad = -1;  ///< first position of the chunk whose target is not a class
};

std::unique_ptr<Kernel> make_nll_forward(const NllForward& operation, KernelRequest& request) {
    require_targets(operation, request.in[1]);
    request.want_all_contiguous();
    const Positions positions(request.in[0].shape);
    const bool weighted = request.has_in(2);
    const std::size_t scratch = static_cast<std::size_t>(chunk_count(positions.count())) * sizeof(NllPart);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [=, ignore = operation.ignore_index, threads = request.threads](const KernelArgs& call) {
                const T *logp = call.input<T>(0), *weights = call.input<T>(2);
                const auto* target = call.input<std::int64_t>(1);
                const std::int64_t classes = positions.classes, inner = positions.inner;
                const auto add = [=](std::int64_t begin, std::int64_t end) {
                    NllPart part;
                    for (std::int64_t at = begin; at < end; ++at) {
                        const std::int64_t t = target[at];
                        if (t == ignore) continue;
                        if (t < 0 || t >= classes) {
                            if (part.bad < 0) part.bad = at;
                            continue;
                        }
                        const double w = weighted ? static_cast<double>(weights[t]) : 1.0;
                        const std::int64_t row = inner == 1 ? at : at / inner, in_row = at - row * inner;
                        if (logp) part.numerator -= w * static_cast<double>(logp[(row * classes + t) * inner + in_row]);
                        part.weight += w;
                    }
                    return part;
                };
                auto* const parts = static_cast<NllPart*>(call.scratch);
                for_parts(worthwhile_threads(threads, positions.count()), positions.count(), chunk_elements,
                          [&](std::int64_t begin, std::int64_t end) {
                              for (std::int64_t at = begin; at < end; at += chunk_elements)
                                  parts[at / chunk_elements] =
                                      add(at, std::min<std::int64_t>(end, at + chunk_elements));
                          });
                NllPart all;
                for (std::int64_t i = 0; i < chunk_count(positions.count()); ++i) {
                    all.numerator += parts[i].numerator;
                    all.weight += parts[i].weight;
                    if (parts[i].bad >= 0)
                        report(call, StatusCode::target_out_of_range, call.first_row + parts[i].bad / inner,
                               target[parts[i].bad]);
                }
                *call.output<T>(0) = static_cast<T>(all.numerator);
                *call.output<T>(1) = static_cast<T>(all.weight);
            },
            scratch);
    });
}

std::unique_ptr<Kernel> make_nll_backward(const NllBackward& operation, KernelRequest& request) {
    require_targets(operation, request.in[1]);
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    const Positions positions(request.out[0].shape);
    const bool weighted = request.has_in(2);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([=, ignore = operation.ignore_index, threads = request.threads](const KernelArgs& call) {
            const T gradient = *call.input<T>(0), *weights = call.input<T>(2);
            const auto* target = call.input<std::int64_t>(1);
            T* dlogp = call.output<T>(0);
            const std::int64_t n = positions.n, classes = positions.classes, inner = positions.inner;
            if (inner == 1) {
                std::fill_n(dlogp, n * classes, T(0));
                for (std::int64_t row = 0; row < n; ++row) {
                    const std::int64_t t = target[row];
                    if (t == ignore || t < 0 || t >= classes) continue;
                    dlogp[row * classes + t] = weighted ? -gradient * weights[t] : -gradient;
                }
                return;
            }
            // One map per class, each written once.
            for_parts(worthwhile_threads(threads, positions.count() * classes), n * classes, 1,
                      [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t map = begin; map < end; ++map) {
                              const std::int64_t c = map % classes;
                              const std::int64_t* const t = target + map / classes * inner;
                              const T value = c == ignore ? T(0) : weighted ? -gradient * weights[c] : -gradient;
                              T* const d = dlogp + map * inner;
                              for (std::int64_t i = 0; i < inner; ++i) d[i] = t[i] == c ? value : T(0);
                          }
                      });
        });
    });
}

// ---- squared error ----------------------------------------------------------------------------------------------

/// Asks for the same dense arrangement of both inputs.
void want_alike(KernelRequest& request, std::size_t a, std::size_t b) {
    if (!is_dense(request.in[a])) request.want_contiguous(a);
    set_layout_like(request.in[b], request.in[a]);
}

std::unique_ptr<Kernel> make_squared_error_forward(const SquaredErrorForward& operation, KernelRequest& request) {
    want_alike(request, 0, 1);
    const std::int64_t elements = dense_elements(request.in[0]);
    const std::size_t scratch = static_cast<std::size_t>(chunk_count(elements)) * sizeof(double);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel(
            [elements, threads = request.threads](const KernelArgs& call) {
                const T *a = call.input<T>(0), *b = call.input<T>(1);
                *call.output<T>(0) = static_cast<T>(sum_chunks(
                    threads, elements, static_cast<double*>(call.scratch), [&](std::int64_t begin, std::int64_t end) {
                        return loops<T>().squared_error(a + begin, b + begin, end - begin);
                    }));
            },
            scratch);
    });
}

std::unique_ptr<Kernel> make_squared_error_backward(const SquaredErrorBackward& operation, KernelRequest& request) {
    want_alike(request, 1, 2);
    set_layout_like(request.out[0], request.in[1]);
    const std::int64_t elements = dense_elements(request.in[1]);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([elements, threads = request.threads](const KernelArgs& call) {
            const T factor = T(2) * *call.input<T>(0);
            for_element_parts(threads, elements, [&](std::int64_t begin, std::int64_t end) {
                loops<T>().squared_error_backward(call.input<T>(1) + begin, call.input<T>(2) + begin, factor,
                                                  call.output<T>(0) + begin, end - begin);
            });
        });
    });
}

std::unique_ptr<Kernel> make_check_finite(const CheckFinite& operation, KernelRequest& request) {
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([](const KernelArgs& call) {
            const T value = *call.input<T>(0);
            if (!std::isfinite(value)) report(call, StatusCode::loss_not_finite, 0, 0);
            *call.output<T>(0) = value;
        });
    });
}

}  // namespace

void add_loss_kernels(KernelTable& table) {
    table.add<NllForward, make_nll_forward>();
    table.add<NllBackward, make_nll_backward>();
    table.add<SquaredErrorForward, make_squared_error_forward>();
    table.add<SquaredErrorBackward, make_squared_error_backward>();
    table.add<CheckFinite, make_check_finite>();
}

}  // namespace lockstep::cpu
