// Host memory for copies of a model and its optimizer.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/runtime/memory.h"

namespace lockstep::internal {

/// Reused by later saves, because pinned memory is expensive to allocate.
class HostMemory {
public:
    /// Makes all of it free again.
    void rewind() { next_ = 0; }
    std::byte* take(std::size_t bytes) {
        if (next_ == pieces_.size()) pieces_.emplace_back();
        std::shared_ptr<Buffer>& piece = pieces_[next_++];
        if (!piece || piece->bytes() < bytes) piece = Buffer::allocate_pinned(bytes);
        return static_cast<std::byte*>(piece->data());
    }

private:
    std::vector<std::shared_ptr<Buffer>> pieces_;
    std::size_t next_ = 0;
};

}  // namespace lockstep::internal
