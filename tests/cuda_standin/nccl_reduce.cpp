// NCCL's reductions, in the order of the ranks.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include "lockstep/tests/cuda_standin/dense.h"
#include "lockstep/tests/cuda_standin/nccl_state.h"

namespace standin {
namespace {

template <class T>
T combine(ncclRedOp_t op, T a, T b) {
    if (op == ncclMin) return std::min(a, b);
    if (op == ncclMax) return std::max(a, b);
    if constexpr (std::is_integral_v<T>) {  // wraps
        using Unsigned = std::make_unsigned_t<T>;
        const auto x = static_cast<Unsigned>(a), y = static_cast<Unsigned>(b);
        return static_cast<T>(op == ncclProd ? x * y : x + y);
    } else {
        return op == ncclProd ? a * b : a + b;
    }
}

// As NCCL averages: floats times 1/n before the sum, integers divided after it.
template <class T>
void reduce_as(ncclRedOp_t op, const std::vector<const T*>& values, std::size_t count, T* to, T share) {
    const auto load = [&](std::size_t rank, std::size_t i) {
        T value;
        std::memcpy(&value, values[rank] + i, sizeof value);
        if constexpr (!std::is_integral_v<T>)
            if (op == ncclAvg) value *= share;
        return value;
    };
    for (std::size_t i = 0; i < count; ++i) {
        T sum = load(0, i);
        for (std::size_t rank = 1; rank < values.size(); ++rank) sum = combine(op, sum, load(rank, i));
        if constexpr (std::is_integral_v<T>)
            if (op == ncclAvg) sum = static_cast<T>(sum / static_cast<T>(values.size()));
        std::memcpy(to + i, &sum, sizeof sum);
    }
}

template <class T>
void reduce_plain(ncclRedOp_t op, const std::vector<const char*>& values, std::size_t count, char* to) {
    std::vector<const T*> typed;
    for (const char* each : values) typed.push_back(reinterpret_cast<const T*>(each));
    reduce_as<T>(op, typed, count, reinterpret_cast<T*>(to), static_cast<T>(1.0 / static_cast<double>(values.size())));
}

// 16-bit floats, as float in between.
void reduce_half(Scalar type, ncclRedOp_t op, const std::vector<const char*>& values, std::size_t count, char* to) {
    std::vector<std::vector<float>> wide;
    std::vector<const float*> typed;
    for (const char* each : values) {
        auto& row = wide.emplace_back(count);
        for (std::size_t i = 0; i < count; ++i)
            row[i] = static_cast<float>(load_scalar(type, each, static_cast<std::int64_t>(i)));
    }
    for (const auto& row : wide) typed.push_back(row.data());
    std::uint16_t share = 0;
    store_scalar(type, &share, 0, 1.0 / static_cast<double>(values.size()));
    std::vector<float> sums(count);
    reduce_as<float>(op, typed, count, sums.data(), static_cast<float>(load_scalar(type, &share, 0)));
    for (std::size_t i = 0; i < count; ++i) store_scalar(type, to, static_cast<std::int64_t>(i), sums[i]);
}

}  // namespace

void reduce_parts(ncclDataType_t type, ncclRedOp_t op, const std::vector<const char*>& values, std::size_t count,
                  char* to) {
    switch (type) {
        case ncclInt8: return reduce_plain<std::int8_t>(op, values, count, to);
        case ncclUint8: return reduce_plain<std::uint8_t>(op, values, count, to);
        case ncclInt32: return reduce_plain<std::int32_t>(op, values, count, to);
        case ncclUint32: return reduce_plain<std::uint32_t>(op, values, count, to);
        case ncclInt64: return reduce_plain<std::int64_t>(op, values, count, to);
        case ncclUint64: return reduce_plain<std::uint64_t>(op, values, count, to);
        case ncclFloat16: return reduce_half(Scalar::f16, op, values, count, to);
        case ncclFloat32: return reduce_plain<float>(op, values, count, to);
        case ncclFloat64: return reduce_plain<double>(op, values, count, to);
        default: return reduce_half(Scalar::bf16, op, values, count, to);
    }
}

}  // namespace standin
