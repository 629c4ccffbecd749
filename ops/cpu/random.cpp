// Random numbers, dropout.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <iterator>
#include <limits>
#include <type_traits>

#include "lockstep/ops/cpu/half_types.h"
#include "lockstep/ops/cpu/kernels.h"
#include "lockstep/ops/cpu/loops.h"
#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/ops/cpu/report.h"
#include "lockstep/ops/internal/random_arithmetic.h"
#include "lockstep/ops/internal/random_operations.h"

namespace lockstep::cpu {
namespace {

/// Elements of one row of a batch of this shape.
std::int64_t elements_of_row(const Shape& shape) {
    return shape.dims() > 0 && shape[0] > 0 ? shape.numel() / shape[0] : 0;
}

Draws draws_of(const KernelArgs& call, DrawBy by, std::int64_t row_size) {
    return {*call.step, call.ordinal, element::first_draw(by, call.first_row, row_size, call.shard)};
}

constexpr std::int64_t cost_of_draw = 6;  // in simple elements

/// Bits of a uniform number.
template <class Stored>
constexpr int digits_of() {
    if constexpr (std::is_same_v<Stored, Half>) return 11;
    if constexpr (std::is_same_v<Stored, BFloat16>) return 8;
    return 24;  // f64 has 53 whatever the argument
}

/// Calls work(buffer, first, count) for parts of the elements [begin, end) of y, whose values it writes to the buffer.
template <class Stored, class Work>
void write_by_parts(Stored* y, std::int64_t begin, std::int64_t end, const Work& work) {
    for (std::int64_t first = begin; first < end; first += run_elements) {
        const std::int64_t count = std::min<std::int64_t>(run_elements, end - first);
        if constexpr (is_half<Stored>) {
            float buffer[run_elements];
            work(buffer, first, count);
            float16::downcast(buffer, y + first, count);
        } else {
            work(y + first, first, count);
        }
    }
}

std::unique_ptr<Kernel> make_random_values(const RandomValues& operation, KernelRequest& request) {
    require_contiguous_output(operation, request, 0);
    const Shape& shape = request.out[0].shape;
    return for_stored(operation, request.out[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        using T = Arithmetic<Stored>;
        return make_kernel([operation, elements = shape.numel(), row_size = elements_of_row(shape),
                            threads = request.threads](const KernelArgs& call) {
            const Draws draws = draws_of(call, operation.by, row_size);
            const auto p = static_cast<float>(operation.p);
            const auto draw = [&](T* out, std::int64_t first, std::int64_t count) {
                const std::int64_t end = first + count;
                switch (operation.distribution) {
                    case Distribution::uniform: return loops<T>().uniform(out, first, end, draws, digits_of<Stored>());
                    case Distribution::normal: return loops<T>().normal(out, first, end, draws);
                    case Distribution::bernoulli: return loops<T>().one_of_two(out, first, end, draws, p, T(1), T(0));
                    case Distribution::dropout:
                        return loops<T>().one_of_two(out, first, end, draws, p, T(0),
                                                     element::dropout_factor<T>(operation.p));
                }
            };
            for_parts(worthwhile_threads(threads, cost_of_draw * elements), elements, element_grain,
                      [&](std::int64_t begin, std::int64_t end) {
                          write_by_parts(call.output<Stored>(0), begin, end, draw);
                      });
        });
    });
}

/// Reports the first parameter that is not in [0, largest].
template <class Stored>
void report_bad(const KernelArgs& call, const RandomValuesOf& operation, const Stored* parameter,
                Arithmetic<Stored> largest) {
    std::int64_t i = 0;
    auto value = static_cast<Arithmetic<Stored>>(parameter[0]);
    while (value >= 0 && value <= largest) value = static_cast<Arithmetic<Stored>>(parameter[++i]);
    const bool is_probability = operation.distribution == Distribution::bernoulli;
    report(call, is_probability ? StatusCode::probability_out_of_range : StatusCode::deviation_negative,
           (operation.by == DrawBy::row ? call.first_row : 0) + i / operation.per_row,
           std::bit_cast<std::int64_t>(static_cast<double>(value)));
}

std::unique_ptr<Kernel> make_random_values_of(const RandomValuesOf& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return for_stored(operation, request.out[0].dtype, [&](auto zero) {
        using Stored = decltype(zero);
        using T = Arithmetic<Stored>;
        return make_kernel(
            [operation, elements = request.out[0].numel(), threads = request.threads](const KernelArgs& call) {
                const Draws draws = draws_of(call, operation.by, operation.per_row);
                const auto* const parameters = call.input<Stored>(0);
                const bool is_normal = operation.distribution == Distribution::normal;
                const T largest = is_normal ? std::numeric_limits<T>::infinity() : T(1);
                std::atomic<bool> all_good = true;
                const auto draw = [&](T* out, std::int64_t first, std::int64_t count) {
                    T buffer[run_elements];
                    const T* const parameter = wide(parameters + first, count, buffer);
                    bool good = true;
                    for (std::int64_t i = 0; i < count; ++i)
                        good = good & (parameter[i] >= T(0)) & (parameter[i] <= largest);
                    if (!good) all_good.store(false, std::memory_order_relaxed);
                    if (is_normal) {
                        loops<T>().normal(out, first, first + count, draws);
                        for (std::int64_t i = 0; i < count; ++i) out[i] *= parameter[i];
                    } else {
                        loops<T>().uniform(out, first, first + count, draws, digits_of<T>());
                        for (std::int64_t i = 0; i < count; ++i) out[i] = out[i] < parameter[i] ? T(1) : T(0);
                    }
                };
                for_parts(worthwhile_threads(threads, cost_of_draw * elements), elements, element_grain,
                          [&](std::int64_t begin, std::int64_t end) {
                              write_by_parts(call.output<Stored>(0), begin, end, draw);
                          });
                if (!all_good) report_bad(call, operation, parameters, largest);
            });
    });
}

// ---- dropout ----------------------------------------------------------------------------------------------------

/// y = x * mask, by parts of as many elements as `buffer`, whose mask `draw(buffer, first, count)` writes.
template <class T, class Draw>
void multiply_by_mask(const T* x, T* y, std::int64_t begin, std::int64_t end, const Draw& draw) {
    T buffer[1024];
    for (std::int64_t first = begin; first < end; first += std::ssize(buffer)) {
        const std::int64_t count = std::min<std::int64_t>(std::ssize(buffer), end - first);
        draw(buffer, first, count);
        for (std::int64_t i = 0; i < count; ++i) y[first + i] = x[first + i] * buffer[i];
    }
}

std::unique_ptr<Kernel> make_dropout_forward(const DropoutForward& operation, KernelRequest& request) {
    request.want_contiguous(0);
    require_contiguous_output(operation, request, 0);
    require_contiguous_output(operation, request, 1);
    const Shape& shape = request.out[0].shape;
    const std::int64_t elements = shape.numel();
    const std::int64_t row_size = elements_of_row(shape);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([elements, row_size, operation, threads = request.threads](const KernelArgs& call) {
            const Draws draws = draws_of(call, operation.by, row_size);
            const auto p = static_cast<float>(operation.p);
            const T keep = element::dropout_factor<T>(operation.p);
            auto* const kept = call.output<std::uint8_t>(1);
            const auto draw = [&](T* mask, std::int64_t first, std::int64_t count) {
                // A mask of 1 is drawn first: `keep` may be 0.
                loops<T>().one_of_two(mask, first, first + count, draws, p, T(0), T(1));
                for (std::int64_t i = 0; i < count; ++i) {
                    kept[first + i] = static_cast<std::uint8_t>(static_cast<std::int32_t>(mask[i]));
                    mask[i] *= keep;
                }
            };
            constexpr std::int64_t cost = 5;  // cost of one in simple elements
            for_parts(worthwhile_threads(threads, cost * elements), elements, element_grain,
                      [&](std::int64_t begin, std::int64_t end) {
                          multiply_by_mask(call.input<T>(0), call.output<T>(0), begin, end, draw);
                      });
        });
    });
}

std::unique_ptr<Kernel> make_dropout_backward(const DropoutBackward& operation, KernelRequest& request) {
    request.want_all_contiguous();
    require_contiguous_output(operation, request, 0);
    return for_floating(operation, request.in[0].dtype, [&](auto zero) {
        using T = decltype(zero);
        return make_kernel([elements = request.out[0].numel(), keep = element::dropout_factor<T>(operation.p),
                            threads = request.threads](const KernelArgs& call) {
            const auto* const kept = call.input<std::uint8_t>(1);
            const auto draw = [&](T* mask, std::int64_t first, std::int64_t count) {
                // Without a branch, which random masks mispredict.
                for (std::int64_t i = 0; i < count; ++i) mask[i] = static_cast<T>(kept[first + i]) * keep;
            };
            for_parts(worthwhile_threads(threads, elements), elements, element_grain,
                      [&](std::int64_t begin, std::int64_t end) {
                          multiply_by_mask(call.input<T>(0), call.output<T>(0), begin, end, draw);
                      });
        });
    });
}

}  // namespace

void add_random_kernels(KernelTable& table) {
    table.add<RandomValues, make_random_values>();
    table.add<RandomValuesOf, make_random_values_of>();
    table.add_half_types<RandomValues, make_random_values>();
    table.add_half_types<RandomValuesOf, make_random_values_of>();
    table.add<DropoutForward, make_dropout_forward>();
    table.add<DropoutBackward, make_dropout_backward>();
}

}  // namespace lockstep::cpu
