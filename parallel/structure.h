// Containers of tensors: tuples, pairs, vectors, arrays, maps and optionals, nested as they come. Everything else is a
// value that all replicas share and that becomes part of the program's key.
#pragma once

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/parallel/sharded_tensor.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::structure {

template <class T>
inline constexpr bool is_tensor = std::is_same_v<T, Tensor> || std::is_same_v<T, ShardedTensor>;
template <class T>
concept TupleLike = requires {
    std::tuple_size<T>::value;
};
template <class T>
concept MapLike = requires(T& t) {
    typename T::mapped_type;
    t.begin()->second;
};
template <class T>
concept ListLike = requires(T& t) {
    t.begin();
    t.end();
    t.size();
}
&&!MapLike<T> && !std::is_same_v<T, std::string>;
template <class T>
concept OptionalLike = requires(std::remove_const_t<T>& t) {
    t.has_value();
    *t;
    t.reset();
};
template <class T>
concept Describes = requires(const T& t, Signature& s) {
    t.describe(s);
};

/// Calls visit(tensor) for every Tensor and ShardedTensor in `value`, in order; `visit` may change them.
template <class T, class Visit>
void for_each_tensor(T& value, Visit&& visit) {
    using Plain = std::remove_cv_t<T>;
    if constexpr (is_tensor<Plain>) {
        visit(value);
    } else if constexpr (OptionalLike<T>) {
        if (value.has_value()) for_each_tensor(*value, visit);
    } else if constexpr (MapLike<T>) {
        for (auto& entry : value) for_each_tensor(entry.second, visit);
    } else if constexpr (ListLike<T>) {
        for (auto& entry : value) for_each_tensor(entry, visit);
    } else if constexpr (TupleLike<T>) {
        std::apply([&](auto&... parts) { (for_each_tensor(parts, visit), ...); }, value);
    }
}

/// Appends the structure of `value` and all its values that are no tensors.
template <class T>
void describe(const T& value, Signature& signature) {
    if constexpr (is_tensor<T>) {
        signature.add('t');
    } else if constexpr (std::is_same_v<T, std::string>) {
        signature.add(std::string_view(value));
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
        signature.add(value);
    } else if constexpr (Describes<T>) {
        value.describe(signature);
    } else if constexpr (OptionalLike<T>) {
        signature.add(value.has_value());
        if (value.has_value()) describe(*value, signature);
    } else if constexpr (MapLike<T>) {
        signature.add(value.size());
        for (const auto& [key, entry] : value) {
            describe(key, signature);
            describe(entry, signature);
        }
    } else if constexpr (ListLike<T>) {
        signature.add(value.size());
        for (const auto& entry : value) describe(entry, signature);
    } else if constexpr (TupleLike<T>) {
        std::apply([&](const auto&... parts) { (describe(parts, signature), ...); }, value);
    } else if constexpr (std::is_function_v<T>) {
        describe(std::addressof(value), signature);
    } else {
        // By its bytes: equal bytes are the same value; unequal ones at worst trace once more.
        signature.add(std::string_view(typeid(T).name()));
        if constexpr (!std::is_empty_v<T>)
            signature.add(std::string_view(reinterpret_cast<const char*>(std::addressof(value)), sizeof(T)));
    }
}

/// T with plain tensors in place of sharded ones: what `forward` is called with.
template <class T>
struct Traced {
    using type = T;
};
template <>
struct Traced<ShardedTensor> {
    using type = Tensor;
};
template <class... Ts>
struct Traced<std::tuple<Ts...>> {
    using type = std::tuple<typename Traced<std::remove_cvref_t<Ts>>::type...>;
};
template <class A, class B>
struct Traced<std::pair<A, B>> {
    using type = std::pair<typename Traced<A>::type, typename Traced<B>::type>;
};
template <class T>
struct Traced<std::vector<T>> {
    using type = std::vector<typename Traced<T>::type>;
};
template <class T, std::size_t n>
struct Traced<std::array<T, n>> {
    using type = std::array<typename Traced<T>::type, n>;
};
template <class K, class T>
struct Traced<std::map<K, T>> {
    using type = std::map<K, typename Traced<T>::type>;
};
template <class T>
struct Traced<std::optional<T>> {
    using type = std::optional<typename Traced<T>::type>;
};
template <class T>
using traced_t = typename Traced<std::remove_cvref_t<T>>::type;

/// `value` with its tensors replaced by those of `next()`, in order.
template <class T, class Next>
traced_t<T> replaced(const T& value, Next&& next) {
    if constexpr (is_tensor<T>) {
        return next();
    } else if constexpr (OptionalLike<T>) {
        return value.has_value() ? traced_t<T>(replaced(*value, next)) : traced_t<T>();
    } else if constexpr (MapLike<T>) {
        traced_t<T> result;
        for (const auto& [key, entry] : value) result.emplace(key, replaced(entry, next));
        return result;
    } else if constexpr (ListLike<T> && !TupleLike<T>) {
        traced_t<T> result;
        for (const auto& entry : value) result.push_back(replaced(entry, next));
        return result;
    } else if constexpr (TupleLike<T>) {
        // Braces fix the order of evaluation.
        return std::apply([&](const auto&... parts) { return traced_t<T>{replaced(parts, next)...}; }, value);
    } else {
        return value;
    }
}

}  // namespace lockstep::structure
