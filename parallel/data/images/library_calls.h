// Calls to C libraries that report errors by longjmp.
#pragma once

#include <csetjmp>
#include <cstdio>

namespace lockstep::internal {

/// libjpeg and libpng require an error callback that does not return. It calls fail(), which jumps back to succeeds(),
/// across frames of the library and of `body`. These frames must therefore not contain objects with destructors.
class LibraryCalls {
public:
    /// Whether `body` ran to its end; otherwise message() has the error.
    template <class Body>
    bool succeeds(Body body) {
        if (setjmp(back_) != 0) return false;  // NOLINT(cert-err52-cpp): the libraries require it
        body();
        return true;
    }
    [[noreturn]] void fail(const char* message) {
        std::snprintf(message_, sizeof message_, "%s", message);
        std::longjmp(back_, 1);  // NOLINT(cert-err52-cpp)
    }
    const char* message() const { return message_; }

private:
    std::jmp_buf back_{};
    char message_[256] = "";
};

}  // namespace lockstep::internal
