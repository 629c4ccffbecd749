// Gloo's installed headers include a header of this name, but neither Gloo nor Debian install it. This one declares
// what those headers name, laid out as in Gloo, for whose code it stands; it comes last in the search for headers.
#pragma once

#include <memory>

namespace gloo {

template <typename T>
class ShareableNonOwningPtr;

/// Refers to something for as long as that is there.
template <typename T>
class WeakNonOwningPtr final {
public:
    WeakNonOwningPtr() = default;
    explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T>& to) : ptr_(to.ptr_) {}

private:
    std::weak_ptr<T> ptr_;
};

/// What such references are made from; a member of what they refer to, whose code is in Gloo's library.
template <typename T>
class ShareableNonOwningPtr final {
private:
    std::shared_ptr<T> ptr_;
    friend class WeakNonOwningPtr<T>;
};

}  // namespace gloo
