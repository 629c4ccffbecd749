#include "lockstep/ops/cpu/strided_copy.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "lockstep/ops/cpu/parallel.h"
#include "lockstep/runtime/internal/float16_rows.h"

namespace lockstep::cpu {
namespace {

template <class T>
constexpr bool is_half_type = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <class To, class From>
To convert(From value) {
    if constexpr (std::is_same_v<To, From>) {
        return value;
    } else if constexpr (is_half_type<From>) {
        return convert<To>(static_cast<float>(value));
    } else if constexpr (is_half_type<To>) {
        return To(static_cast<float>(value));
    } else if constexpr (std::is_same_v<To, bool>) {
        return value != From(0);
    } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
        constexpr double low = static_cast<double>(std::numeric_limits<To>::min());
        // The first number above the range: exact in double, unlike perhaps the largest one in it.
        constexpr double end = 2.0 * static_cast<double>(std::numeric_limits<To>::max() / 2 + 1);
        const double wide = static_cast<double>(value);
        if (!(wide == wide)) return To(0);
        if (wide <= low) return std::numeric_limits<To>::min();
        return wide >= end ? std::numeric_limits<To>::max() : static_cast<To>(wide);
    } else {
        return static_cast<To>(value);
    }
}

template <class T>
constexpr bool is_float16 = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <class From, class To>
void convert_row(const void* from, std::int64_t from_step, void* to, std::int64_t to_step, std::int64_t count) {
    const auto* x = static_cast<const From*>(from);
    auto* y = static_cast<To*>(to);
    if (from_step == 1 && to_step == 1) {
        if constexpr (std::is_same_v<From, To>) {
            std::memcpy(y, x, static_cast<std::size_t>(count) * sizeof(To));
            return;
        } else if constexpr (is_float16<From> && std::is_same_v<To, float>) {
            return float16::upcast(x, y, count);
        } else if constexpr (std::is_same_v<From, float> && is_float16<To>) {
            return float16::downcast(x, y, count);
        } else {
            for (std::int64_t i = 0; i < count; ++i) y[i] = convert<To>(x[i]);
            return;
        }
    }
    if (from_step == 0 && to_step == 1) {
        std::fill_n(y, count, convert<To>(*x));
        return;
    }
    for (std::int64_t i = 0; i < count; ++i) y[i * to_step] = convert<To>(x[i * from_step]);
}

}  // namespace

StridedCopy::StridedCopy(DType from_dtype, const Shape& from_strides, DType to_dtype, const Shape& to_strides,
                         const Shape& shape)
    : walk_(shape, {from_strides, to_strides}),
      from_size_(static_cast<std::int64_t>(size_of(from_dtype))),
      to_size_(static_cast<std::int64_t>(size_of(to_dtype))),
      row_(visit_dtype(from_dtype, [&](auto from) {
          return visit_dtype(to_dtype, [](auto to) -> Row { return convert_row<decltype(from), decltype(to)>; });
      })) {
    if (from_dtype == to_dtype) transposed_ = TransposedCopy::of(size_of(to_dtype), from_strides, to_strides, shape);
}

void StridedCopy::run(const void* from, void* to, int threads) const {
    if (transposed_) return transposed_->run(from, to, threads);
    const auto* source = static_cast<const char*>(from);
    auto* target = static_cast<char*>(to);
    const std::int64_t from_step = walk_.steps()[0], to_step = walk_.steps()[1], run = walk_.run();
    if (walk_.rows() == 1) {
        for_element_parts(threads, run, [&](std::int64_t begin, std::int64_t end) {
            row_(source + begin * from_step * from_size_, from_step, target + begin * to_step * to_size_, to_step,
                 end - begin);
        });
        return;
    }
    const std::int64_t grain = std::max<std::int64_t>(1, element_grain / run);
    for_parts(worthwhile_threads(threads, walk_.rows() * run), walk_.rows(), grain,
              [&](std::int64_t begin, std::int64_t end) {
                  walk_.for_rows(begin, end, [&](const StridedWalk<2>::Offsets& at) {
                      row_(source + at[0] * from_size_, from_step, target + at[1] * to_size_, to_step, run);
                  });
              });
}

}  // namespace lockstep::cpu
