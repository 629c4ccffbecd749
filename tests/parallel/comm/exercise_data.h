// Data that exercise_transport sends and expects, and comparisons.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/process_group.h"
#include "lockstep/tests/fixtures/waiting.h"

namespace lockstep::test {

using Bytes = std::vector<unsigned char>;
using Clock = std::chrono::steady_clock;

inline constexpr std::size_t max_failures = 12;
// A multiple of 4, not of 8 or 16. Sanitizers make the loops here 10 and 25 times slower, and check one rank at a time.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr std::size_t large = (std::size_t{1} << 17) + 20;
#else
inline constexpr std::size_t large = (std::size_t{1} << 20) + 20;
#endif
inline constexpr std::size_t guard = 64;
inline constexpr unsigned char untouched = 0xa5;

inline std::uint64_t scramble(std::uint64_t x) {
    x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 29)) * 0x94d049bb133111ebu;
    return x ^ (x >> 32);
}

/// Byte `i` of the data that rank `from` sends to rank `to` in call number `call`.
inline unsigned char byte_at(std::uint64_t call, int from, int to, std::size_t i) {
    return static_cast<unsigned char>(scramble(call * 1009 + static_cast<std::uint64_t>(from * 64 + to)) +
                                      scramble(i / 4) + i);
}

inline Bytes sent_bytes(std::uint64_t call, int from, int to, std::size_t size) {
    Bytes bytes(size);
    for (std::size_t i = 0; i < size; ++i) bytes[i] = byte_at(call, from, to, i);
    return bytes;
}

/// Element i of a reduction's input on `rank`. Sums and products of 8 ranks are exact in every floating type; integers
/// take all values and wrap.
template <class T>
std::int64_t number_at(ReduceOp op, int rank, std::size_t i) {
    const std::uint64_t bits = scramble(i * 64 + static_cast<std::uint64_t>(rank));
    if constexpr (std::is_same_v<T, bool>) {
        const bool all = op == ReduceOp::min || op == ReduceOp::product;
        return (bits % 4 == 0) != all;
    } else if constexpr (std::is_integral_v<T>) {
        return static_cast<std::int64_t>(static_cast<T>(bits));
    } else {
        if (op == ReduceOp::product) return (bits & 1 ? 2 : 1) * (bits & 2 ? -1 : 1);
        return static_cast<std::int64_t>(bits % 17) - 8;
    }
}

template <class T>
T element_of(std::int64_t number) {
    if constexpr (std::is_integral_v<T>)
        return static_cast<T>(number);
    else
        return T(static_cast<float>(number));
}

template <class T>
Bytes elements(ReduceOp op, int rank, std::size_t begin, std::size_t count) {
    Bytes bytes(count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) {
        const T element = element_of<T>(number_at<T>(op, rank, begin + i));
        std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
    return bytes;
}

/// In 64-bit integers, which wrap as narrower ones do.
inline std::int64_t fold(ReduceOp op, bool boolean, std::int64_t a, std::int64_t b) {
    const auto x = static_cast<std::uint64_t>(a), y = static_cast<std::uint64_t>(b);
    if (op == ReduceOp::min || (boolean && op == ReduceOp::product)) return std::min(a, b);
    if (op == ReduceOp::max || (boolean && op == ReduceOp::sum)) return std::max(a, b);
    return static_cast<std::int64_t>(op == ReduceOp::product ? x * y : x + y);
}

template <class T>
Bytes reduced(ReduceOp op, int size, std::size_t begin, std::size_t count) {
    Bytes bytes(count * sizeof(T));
    for (std::size_t i = 0; i < count; ++i) {
        std::int64_t value = number_at<T>(op, 0, begin + i);
        for (int rank = 1; rank < size; ++rank)
            value = fold(op, std::is_same_v<T, bool>, value, number_at<T>(op, rank, begin + i));
        const T element = element_of<T>(value);
        std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
    return bytes;
}

inline std::string text_of(ReduceOp op) {
    switch (op) {
        case ReduceOp::sum: return "sum";
        case ReduceOp::min: return "min";
        case ReduceOp::max: return "max";
        case ReduceOp::product: return "product";
        case ReduceOp::mean: break;
    }
    return "mean";
}

/// Memory that a call writes to, with guards around it.
class Target {
public:
    explicit Target(std::size_t size) : bytes_(size + 2 * guard, untouched) {}
    explicit Target(const Bytes& content) : Target(content.size()) {
        std::copy(content.begin(), content.end(), bytes_.begin() + guard);
    }
    unsigned char* data() { return bytes_.data() + guard; }
    void put(std::size_t at, const Bytes& content) {
        std::copy(content.begin(), content.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(guard + at));
    }
    /// Difference from `expected`; empty: equal.
    std::string difference(const Bytes& expected) const {
        for (std::size_t i = 0; i < bytes_.size(); ++i) {
            const bool inside = i >= guard && i - guard < expected.size();
            const unsigned char wanted = inside ? expected[i - guard] : untouched;
            if (bytes_[i] == wanted) continue;
            return "byte " + std::to_string(static_cast<std::ptrdiff_t>(i) - static_cast<std::ptrdiff_t>(guard)) +
                   " is " + std::to_string(bytes_[i]) + ", not " + std::to_string(wanted);
        }
        return {};
    }

private:
    Bytes bytes_;
};

inline Deadline soon() { return RunClock::now() + test::hang; }

/// Errors found; at most a dozen lines.
class Failures {
public:
    void check(const std::string& what, const Target& target, const Bytes& expected) {
        const std::string difference = target.difference(expected);
        require(difference.empty(), what + ": " + difference);
    }
    void require(bool good, const std::string& what) {
        if (!good && lines_.size() < max_failures) lines_.push_back(what);
    }
    const std::vector<std::string>& lines() const { return lines_; }

private:
    std::vector<std::string> lines_;
};

/// The part of the exercise with messages.
void exercise_messages(Transport& transport, int rank, int size, Failures& failures);

}  // namespace lockstep::test
