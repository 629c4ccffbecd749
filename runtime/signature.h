// Values as bytes: the cache keys of kernels and programs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <ranges>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "lockstep/runtime/tensor.h"

namespace lockstep {

namespace detail {

/// Converts to any member of an aggregate; never evaluated.
struct AnyMember {
    template <class T>
    constexpr operator T() const;  // NOLINT(google-explicit-constructor)
};

template <class T, std::size_t... i>
constexpr bool takes_members(std::index_sequence<i...>) {
    return requires { T{(static_cast<void>(i), AnyMember{})...}; };
}

constexpr std::size_t max_members = 8;

template <class T, std::size_t count = max_members + 1>
constexpr std::size_t member_count() {
    if constexpr (takes_members<T>(std::make_index_sequence<count>{}))
        return count;
    else if constexpr (count == 0)
        return 0;
    else
        return member_count<T, count - 1>();
}

/// The members of an aggregate as references, in their order.
template <class T>
auto members_of_aggregate(const T& value) {
    static_assert(std::is_aggregate_v<T>,
                  "an operation must be an aggregate: a struct of public members, without constructors");
    constexpr std::size_t count = member_count<T>();
    static_assert(count <= max_members, "an operation has at most eight members; group them in a struct");
    if constexpr (count == 0) {
        static_assert(std::is_empty_v<T>, "every member must be convertible from AnyMember");
        return std::tuple<>();
    } else if constexpr (count == 1) {
        const auto& [a] = value;
        return std::tie(a);
    } else if constexpr (count == 2) {
        const auto& [a, b] = value;
        return std::tie(a, b);
    } else if constexpr (count == 3) {
        const auto& [a, b, c] = value;
        return std::tie(a, b, c);
    } else if constexpr (count == 4) {
        const auto& [a, b, c, d] = value;
        return std::tie(a, b, c, d);
    } else if constexpr (count == 5) {
        const auto& [a, b, c, d, e] = value;
        return std::tie(a, b, c, d, e);
    } else if constexpr (count == 6) {
        const auto& [a, b, c, d, e, f] = value;
        return std::tie(a, b, c, d, e, f);
    } else if constexpr (count == 7) {
        const auto& [a, b, c, d, e, f, g] = value;
        return std::tie(a, b, c, d, e, f, g);
    } else {
        const auto& [a, b, c, d, e, f, g, h] = value;
        return std::tie(a, b, c, d, e, f, g, h);
    }
}

}  // namespace detail

/// Bytes that identify options and types in the key of a program.
class Signature {
public:
    /// Numbers, enumerations and text; ranges, pairs and aggregates of at most eight members, recursively.
    template <class T>
    Signature& add(const T& value) {
        if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
            bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
        } else if constexpr (std::is_convertible_v<const T&, std::string_view>) {
            add(std::string_view(value));
        } else if constexpr (std::ranges::sized_range<const T>) {
            add(static_cast<std::uint64_t>(std::ranges::size(value)));
            for (const auto& element : value) add(element);
        } else if constexpr (requires { std::tuple_size<T>::value; }) {
            std::apply([this](const auto&... members) { (this->add(members), ...); }, value);
        } else {
            add(detail::members_of_aggregate(value));
        }
        return *this;
    }
    Signature& add(std::string_view text);
    Signature& add(const Shape& shape);
    Signature& add(const TensorMeta& meta);
    const std::string& bytes() const { return bytes_; }
    /// Empties the signature and keeps its memory.
    void clear() { bytes_.clear(); }

private:
    std::string bytes_;
};

}  // namespace lockstep
