// Gloo's installed headers include a header of this name that neither Gloo nor Debian installs. This one declares the
// names that they use, with Gloo's layout. It is last in the include path.
#pragma once

#include <memory>

namespace gloo {

template <typename T>
class ShareableNonOwningPtr;

/// Reference to an object that is valid as long as the object exists.
template <typename T>
class WeakNonOwningPtr final {
public:
    WeakNonOwningPtr() = default;
    explicit WeakNonOwningPtr(const ShareableNonOwningPtr<T>& to) : ptr_(to.ptr_) {}

private:
    std::weak_ptr<T> ptr_;
};

/// Source of such references; a member of the object, implemented in Gloo's library.
template <typename T>
class ShareableNonOwningPtr final {
private:
    std::shared_ptr<T> ptr_;
    friend class WeakNonOwningPtr<T>;
};

}  // namespace gloo
