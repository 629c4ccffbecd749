// Strong types for the numbers of devices and ranks, so that neither is confused with the other, with a shard or with a
// slot.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>

namespace lockstep {

/// Number of an item of one kind, counted from 0.
template <class Tag>
class Index {
public:
    constexpr Index() = default;
    constexpr explicit Index(int number) : number_(number) {}
    constexpr int number() const { return number_; }
    /// The element for `index` of a vector with one element per item.
    template <class Vector>
    friend constexpr auto& at(Vector& of_each, Index index) {
        return of_each[static_cast<std::size_t>(index.number_)];
    }
    friend constexpr auto operator<=>(Index, Index) = default;

private:
    int number_ = 0;
};

/// Indices in [first, last), for loops; empty unless `last` is greater than `first`.
template <class Index>
class IndexRange {
public:
    class Iterator {
    public:
        constexpr explicit Iterator(int number) : number_(number) {}
        constexpr Index operator*() const { return Index(number_); }
        constexpr Iterator& operator++() {
            ++number_;
            return *this;
        }
        friend constexpr bool operator==(Iterator, Iterator) = default;

    private:
        int number_;
    };

    constexpr IndexRange(int first, int last) : first_(first), last_((std::max)(first, last)) {}
    constexpr Iterator begin() const { return Iterator(first_); }
    constexpr Iterator end() const { return Iterator(last_); }

private:
    int first_, last_;
};

/// A position in a list of devices (not Device::index(), which counts visible devices), and in lists with one element
/// per device, such as replicas.
using DeviceIndex = Index<struct DeviceTag>;
inline constexpr DeviceIndex first_device{};

/// One of the processes that train together.
using RankIndex = Index<struct RankTag>;
inline constexpr RankIndex rank_0{};

}  // namespace lockstep
