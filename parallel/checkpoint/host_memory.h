// Memory on the host that copies of a model and its optimizer go to.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/runtime/memory.h"

namespace lockstep::internal {

/// Kept from one save to the next: pinned memory is dear to make.
class HostMemory {
public:
    /// All of it is free again.
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
