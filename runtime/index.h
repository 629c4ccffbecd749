// Numbers of devices and ranks as types of their own, so that neither is taken for the other, for a shard or for a
// slot.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>

namespace lockstep {

/// The number of one of several things of one kind, counted from 0.
template <class Tag>
class Index {
public:
    constexpr Index() = default;
    constexpr explicit Index(int number) : number_(number) {}
    constexpr int number() const { return number_; }
    /// The element of a vector that has one for each of the things.
    template <class Vector>
    friend constexpr auto& at(Vector& of_each, Index index) {
        return of_each[static_cast<std::size_t>(index.number_)];
    }
    friend constexpr auto operator<=>(Index, Index) = default;

private:
    int number_ = 0;
};

/// Those in [first, last), for loops; none where `last` is not greater.
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

/// A device of a list (not Device::index(), which counts visible devices), and what belongs to it, such as its replica.
using DeviceIndex = Index<struct DeviceTag>;
inline constexpr DeviceIndex first_device{};

/// A process among those that train together.
using RankIndex = Index<struct RankTag>;
inline constexpr RankIndex rank_0{};

}  // namespace lockstep
