// Containers of tensors: nested tuples, pairs, vectors, arrays, maps, optionals, and structs that list their members
// with LOCKSTEP_MEMBERS. Numbers, enums, strings and other plain values in them are shared by all replicas and become
// part of the program's key. Members that a struct does not list are not passed to `forward`.
#pragma once

#include <array>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

#include "lockstep/ops/module.h"
#include "lockstep/parallel/data/sharded_tensor.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep::structure {

/// Properties of a type, with the concepts below.
template <class T>
inline constexpr bool is_tensor = std::is_same_v<T, Tensor> || std::is_same_v<T, ShardedTensor>;
template <class T>
inline constexpr bool is_text = std::is_same_v<T, std::string> || std::is_same_v<T, std::string_view>;
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
&&!MapLike<T> && !is_text<std::remove_const_t<T>>;
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
/// A struct with LOCKSTEP_MEMBERS.
template <class T>
concept ListsMembers = requires(const T& t) {
    std::tuple_size<decltype(t.lockstep_members(::lockstep::detail::TieMembers()))>::value;
};

/// References to the members of a struct that lists them.
template <ListsMembers T>
auto members_of(T& value) {
    return value.lockstep_members(::lockstep::detail::TieMembers());
}

/// T with plain tensors in place of sharded ones: the argument type of `forward`. For structs this requires that the
/// type of the tensors is a template parameter.
template <class T>
struct Traced {
    using type = T;
};
template <class T>
using traced_t = typename Traced<std::remove_cvref_t<T>>::type;
template <>
struct Traced<ShardedTensor> {
    using type = Tensor;
};
template <class... Ts>
struct Traced<std::tuple<Ts...>> {
    using type = std::tuple<traced_t<Ts>...>;
};
template <class A, class B>
struct Traced<std::pair<A, B>> {
    using type = std::pair<traced_t<A>, traced_t<B>>;
};
template <class T>
struct Traced<std::vector<T>> {
    using type = std::vector<traced_t<T>>;
};
template <class T, std::size_t n>
struct Traced<std::array<T, n>> {
    using type = std::array<traced_t<T>, n>;
};
template <class K, class T>
struct Traced<std::map<K, T>> {
    using type = std::map<K, traced_t<T>>;
};
template <class T>
struct Traced<std::optional<T>> {
    using type = std::optional<traced_t<T>>;
};
template <template <class...> class Struct, class... Ts>
requires ListsMembers<Struct<Ts...>>
struct Traced<Struct<Ts...>> {
    using type = Struct<traced_t<Ts>...>;
};

/// Properties of a type's content.
struct Contents {
    bool tensors = false;  ///< whether it may hold a Tensor or a ShardedTensor
    bool sharded = false;  ///< whether it may hold a ShardedTensor
    bool walkable = true;  ///< whether all of them can be found
    constexpr Contents operator+(Contents other) const {
        return {tensors || other.tensors, sharded || other.sharded, walkable && other.walkable};
    }
};

/// Contents of T, or of the elements of a tuple.
template <class T>
constexpr Contents contents();
template <class Tuple, std::size_t... i>
constexpr Contents contents_of_tuple(std::index_sequence<i...>) {
    return (Contents{} + ... + contents<std::tuple_element_t<i, Tuple>>());
}

template <class T>
constexpr Contents contents() {
    using Plain = std::remove_cvref_t<T>;
    if constexpr (is_tensor<Plain>) {
        return {true, std::is_same_v<Plain, ShardedTensor>, true};
    } else if constexpr (is_text<Plain> || Describes<Plain> ||
                         (std::is_trivially_copyable_v<Plain> && !ListsMembers<Plain>)) {
        return {};  // trivially copyable types hold no tensor: tensors share ownership
    } else if constexpr (ListsMembers<Plain>) {
        using Members = decltype(members_of(std::declval<const Plain&>()));
        Contents all = contents_of_tuple<Members>(std::make_index_sequence<std::tuple_size_v<Members>>());
        all.walkable = all.walkable && (std::is_default_constructible_v<Plain> || !all.tensors);
        return all;
    } else if constexpr (OptionalLike<Plain>) {
        return contents<decltype(*std::declval<Plain&>())>();
    } else if constexpr (MapLike<Plain>) {
        return contents<typename Plain::key_type>() + contents<typename Plain::mapped_type>();
    } else if constexpr (TupleLike<Plain>) {
        return contents_of_tuple<Plain>(std::make_index_sequence<std::tuple_size_v<Plain>>());
    } else if constexpr (ListLike<Plain>) {
        Contents all = contents<typename Plain::value_type>();
        if constexpr (!requires(Plain & list, typename Plain::value_type value) { list.push_back(std::move(value)); })
            all.walkable = all.walkable && !all.tensors;
        return all;
    } else {
        return {.walkable = false};
    }
}

/// Whether the tensors in a T can be found and replaced by plain ones.
template <class T>
inline constexpr bool walkable = contents<T>().walkable && !contents<traced_t<T>>().sharded;

/// Calls visit(tensor) for every Tensor and ShardedTensor in `value`, in order; `visit` may change them.
template <class T, class Visit>
void for_each_tensor(T& value, Visit&& visit) {
    using Plain = std::remove_cv_t<T>;
    if constexpr (is_tensor<Plain>) {
        visit(value);
    } else if constexpr (!contents<T>().tensors) {
        return;
    } else if constexpr (ListsMembers<T>) {
        std::apply([&](auto&... members) { (for_each_tensor(members, visit), ...); }, members_of(value));
    } else if constexpr (OptionalLike<T>) {
        if (value.has_value()) for_each_tensor(*value, visit);
    } else if constexpr (MapLike<T>) {
        for (auto& entry : value) for_each_tensor(entry.second, visit);
    } else if constexpr (ListLike<T>) {
        for (auto& entry : value) for_each_tensor(entry, visit);
    } else {
        std::apply([&](auto&... parts) { (for_each_tensor(parts, visit), ...); }, value);
    }
}

/// Describes a value by its bytes. Equal bytes are the same value; different bytes cost at worst one more trace.
template <class T>
void describe_bytes(const T& value, Signature& signature) {
    if constexpr (Describes<T>) {
        value.describe(signature);
    } else if constexpr (std::is_function_v<T>) {
        describe_bytes(std::addressof(value), signature);
    } else {
        signature.add(std::string_view(typeid(T).name()));
        if constexpr (!std::is_empty_v<T>)
            signature.add(std::string_view(reinterpret_cast<const char*>(std::addressof(value)), sizeof(T)));
    }
}

/// A copy of an object in memory that was zero, so that padding is equal in all copies.
template <class T>
class ZeroedCopy {
public:
    explicit ZeroedCopy(const T& value) : memory_(std::calloc(1, sizeof(T)), std::free) {
        if (!memory_) throw std::bad_alloc();
        std::construct_at(static_cast<T*>(memory_.get()), value);
    }
    ZeroedCopy(const ZeroedCopy&) = delete;
    ZeroedCopy& operator=(const ZeroedCopy&) = delete;
    ~ZeroedCopy() { std::destroy_at(static_cast<T*>(memory_.get())); }
    std::string_view bytes() const { return {static_cast<const char*>(memory_.get()), sizeof(T)}; }

private:
    std::unique_ptr<void, void (*)(void*)> memory_;
};

/// Describes a loss by its bytes. Returns whether these identify its value while a copy of it lives. They do not if the
/// loss owns memory (a captured vector, a large std::function). Copies then have different bytes, and another loss may
/// get the same memory later.
template <class T>
bool describe_loss(const T& loss, Signature& signature) {
    if constexpr (Describes<T> || std::is_function_v<T> || std::is_trivially_copyable_v<T>) {
        describe_bytes(loss, signature);
        return true;
    } else {
        signature.add(std::string_view(typeid(T).name()));
        if constexpr (std::is_copy_constructible_v<T> && alignof(T) <= alignof(std::max_align_t)) {
            const ZeroedCopy<T> first(loss), second(loss);
            if (first.bytes() != second.bytes()) return false;
            signature.add(first.bytes());
            return true;
        }
        return false;
    }
}

/// Appends the structure of `value` and all its values other than tensors.
template <class T>
void describe(const T& value, Signature& signature) {
    if constexpr (is_tensor<T>) {
        signature.add('t');
    } else if constexpr (is_text<T>) {
        signature.add(std::string_view(value));
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
        signature.add(value);
    } else if constexpr (Describes<T>) {
        value.describe(signature);
    } else if constexpr (ListsMembers<T>) {
        std::apply([&](const auto&... members) { (describe(members, signature), ...); }, members_of(value));
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
    } else {
        describe_bytes(value, signature);
    }
}

/// `value` with its tensors replaced by those of `next()`, in order.
template <class T, class Next>
traced_t<T> replaced(const T& value, Next&& next) {
    if constexpr (is_tensor<T>) {
        return next();
    } else if constexpr (!contents<T>().tensors) {
        return value;
    } else if constexpr (ListsMembers<T>) {
        traced_t<T> result{};
        const auto to = members_of(result);
        const auto from = members_of(value);
        [&]<std::size_t... i>(std::index_sequence<i...>) {
            ((std::get<i>(to) = replaced(std::get<i>(from), next)), ...);
        }
        (std::make_index_sequence<std::tuple_size_v<decltype(members_of(value))>>());
        return result;
    } else if constexpr (OptionalLike<T>) {
        return value.has_value() ? traced_t<T>(replaced(*value, next)) : traced_t<T>();
    } else if constexpr (MapLike<T>) {
        traced_t<T> result;
        for (const auto& [key, entry] : value) result.emplace(key, replaced(entry, next));
        return result;
    } else if constexpr (TupleLike<T>) {
        // Braces fix the order of evaluation.
        return std::apply([&](const auto&... parts) { return traced_t<T>{replaced(parts, next)...}; }, value);
    } else {
        traced_t<T> result;
        for (const auto& entry : value) result.push_back(replaced(entry, next));
        return result;
    }
}

}  // namespace lockstep::structure
