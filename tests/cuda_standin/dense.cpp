#include "lockstep/tests/cuda_standin/dense.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

namespace standin {
namespace {

double from_half(std::uint16_t bits) {
    const int exponent = (bits >> 10) & 31;
    const int mantissa = bits & 1023;
    const double sign = (bits & 0x8000) != 0 ? -1 : 1;
    if (exponent == 31) return mantissa != 0 ? std::nan("") : sign * HUGE_VAL;
    return sign * (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

std::uint16_t to_half(double value) {
    const auto sign = static_cast<std::uint16_t>(std::signbit(value) ? 0x8000 : 0);
    if (std::isnan(value)) return 0x7fff;
    const double size = std::fabs(value);
    if (size >= 65520) return static_cast<std::uint16_t>(sign | 0x7c00);
    const int exponent = size < std::ldexp(1.0, -14) ? -14 : std::ilogb(size);
    // Nearest even at the spacing of this exponent; a carry into the exponent is correct without special treatment.
    const auto steps = static_cast<int>(std::nearbyint(std::ldexp(size, 10 - exponent)));
    return static_cast<std::uint16_t>(sign + steps + (exponent + 14) * 1024);
}

double from_bfloat(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

std::uint16_t to_bfloat(double value) {
    if (std::isnan(value)) return 0x7fff;
    const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(value));
    return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T>
T element(const void* data, std::int64_t index) {
    T value;
    std::memcpy(&value, static_cast<const char*>(data) + index * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
    return value;
}

template <class T>
void set_element(void* data, std::int64_t index, T value) {
    std::memcpy(static_cast<char*>(data) + index * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

// Calls visit(n, offset) for every element in row-major order.
template <class Visit>
void for_each_offset(const Strided& tensor, Visit&& visit) {
    const std::int64_t count = tensor.count();
    if (count == 0) return;
    const std::size_t rank = tensor.dims.size();
    const std::int64_t inner = rank == 0 ? 1 : tensor.dims.back();
    const std::int64_t step = rank == 0 ? 0 : tensor.strides.back();
    std::vector<std::int64_t> at(rank, 0);
    std::int64_t offset = 0;
    for (std::int64_t n = 0; n < count; n += inner) {
        for (std::int64_t i = 0; i < inner; ++i) visit(static_cast<std::size_t>(n + i), offset + i * step);
        for (std::size_t d = rank - (rank == 0 ? 0 : 1); d-- > 0;) {
            offset += tensor.strides[d];
            if (++at[d] < tensor.dims[d]) break;
            offset -= tensor.strides[d] * tensor.dims[d];
            at[d] = 0;
        }
    }
}

std::minstd_rand& chance() {
    static std::atomic<unsigned> threads{0};
    thread_local std::minstd_rand random(std::random_device{}() + ++threads);
    return random;
}

}  // namespace

const char* name_of(Scalar type) {
    switch (type) {
        case Scalar::f64: return "f64";
        case Scalar::f16: return "f16";
        case Scalar::bf16: return "bf16";
        default: return "f32";
    }
}

std::size_t bytes_of(Scalar type) {
    switch (type) {
        case Scalar::f64: return 8;
        case Scalar::f32: return 4;
        default: return 2;
    }
}

double load_scalar(Scalar type, const void* data, std::int64_t index) {
    switch (type) {
        case Scalar::f64: return element<double>(data, index);
        case Scalar::f16: return from_half(element<std::uint16_t>(data, index));
        case Scalar::bf16: return from_bfloat(element<std::uint16_t>(data, index));
        default: return element<float>(data, index);
    }
}

void store_scalar(Scalar type, void* data, std::int64_t index, double value) {
    switch (type) {
        case Scalar::f64: return set_element(data, index, value);
        case Scalar::f16: return set_element(data, index, to_half(value));
        case Scalar::bf16: return set_element(data, index, to_bfloat(value));
        default: return set_element(data, index, static_cast<float>(value));
    }
}

std::int64_t Strided::count() const {
    std::int64_t product = 1;
    for (const auto dim : dims) product *= dim;
    return product;
}

std::size_t Strided::extent_bytes() const {
    if (count() == 0) return 0;
    std::int64_t last = 0;
    for (std::size_t d = 0; d < dims.size(); ++d) last += (dims[d] - 1) * strides[d];
    return static_cast<std::size_t>(last + 1) * bytes_of(type);
}

Strided Strided::permuted(const std::vector<std::size_t>& order) const {
    Strided result{type, {}, {}};
    for (const auto d : order) {
        result.dims.push_back(dims[d]);
        result.strides.push_back(strides[d]);
    }
    return result;
}

Strided Strided::broadcast(const std::vector<std::int64_t>& like) const {
    Strided result{type, like, strides};
    if (dims.size() != like.size()) return {type, {}, {}};
    for (std::size_t d = 0; d < dims.size(); ++d) {
        if (dims[d] == like[d]) continue;
        if (dims[d] != 1) return {type, {}, {}};
        result.strides[d] = 0;
    }
    return result;
}

std::vector<std::int64_t> packed_strides(const std::vector<std::int64_t>& dims) {
    std::vector<std::int64_t> strides(dims.size(), 1);
    for (std::size_t d = dims.size(); d-- > 1;) strides[d - 1] = strides[d] * dims[d];
    return strides;
}

std::vector<double> load(const Strided& from, const void* data) {
    std::vector<double> values(static_cast<std::size_t>(from.count()));
    if (from.type == Scalar::f32) {
        for_each_offset(from, [&](std::size_t n, std::int64_t at) { values[n] = static_cast<const float*>(data)[at]; });
    } else {
        for_each_offset(from, [&](std::size_t n, std::int64_t at) { values[n] = load_scalar(from.type, data, at); });
    }
    return values;
}

void store(const Strided& to, void* data, const std::vector<double>& values, double alpha, double beta, bool unsteady) {
    for_each_offset(to, [&](std::size_t n, std::int64_t at) {
        const double before = beta == 0 ? 0 : beta * load_scalar(to.type, data, at);
        double result = alpha * values[n] + before;
        if (unsteady && to.type == Scalar::f32 && chance()() % 4 == 0)
            result = std::nextafter(static_cast<float>(result), INFINITY);
        store_scalar(to.type, data, at, result);
    });
}

// Most of the arithmetic of a training step: a sanitizer, which would make it several times as slow, sees only memory
// that no caller of CUDA passes.
__attribute__((no_sanitize("address", "undefined", "thread"))) void add_scaled(double* to, const double* from,
                                                                               double factor, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) to[i] += factor * from[i];
}

}  // namespace standin
