// Objects after a move: calls throw instead of using content that belongs to another object.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "lockstep/runtime/error.h"

namespace lockstep::detail {

[[noreturn]] inline void refuse_moved_from(std::string_view type) {
    throw InvalidArgument(std::string(type) + ": used after it was moved from; use the object it was moved to");
}

/// The content of an object of class `type`, which a move leaves without. Throws InvalidArgument if it is null.
template <class Pointer>
auto& content_of(const Pointer& content, std::string_view type) {
    if (!content) refuse_moved_from(type);
    return *content;
}

/// A member that remembers whether its object was moved from, for classes whose other members do not show it. A copy of
/// a moved-from object counts as moved from.
class MoveMark {
public:
    MoveMark() = default;
    MoveMark(const MoveMark&) = default;
    MoveMark& operator=(const MoveMark&) = default;
    MoveMark(MoveMark&& other) noexcept : moved_from_(std::exchange(other.moved_from_, true)) {}
    MoveMark& operator=(MoveMark&& other) noexcept {
        const bool was = std::exchange(other.moved_from_, true);
        moved_from_ = was;
        return *this;
    }
    ~MoveMark() = default;

    /// Throws InvalidArgument if the object, of class `type`, was moved from.
    void require(std::string_view type) const {
        if (moved_from_) refuse_moved_from(type);
    }

private:
    bool moved_from_ = false;
};

}  // namespace lockstep::detail
