// Lists of types, as tuples.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>

namespace lockstep {

/// The index of `T` among the elements of a tuple, which must contain it.
template <class T, class List, std::size_t i = 0>
constexpr std::size_t index_in() {
    static_assert(i < std::tuple_size_v<List>, "this type is not in the list");
    if constexpr (std::is_same_v<std::tuple_element_t<i, List>, T>)
        return i;
    else
        return index_in<T, List, i + 1>();
}

/// A list as the argument of a function that deduces its elements.
template <class List>
constexpr const List* list_of = nullptr;

}  // namespace lockstep
