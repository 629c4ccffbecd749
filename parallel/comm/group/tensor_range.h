// Tensors in the form that a communicator needs: one range of host memory or of a GPU's, usable from any thread.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lockstep/runtime/stream.h"
#include "lockstep/runtime/tensor.h"

namespace lockstep {

/// One or more tensors, concatenated. A single contiguous tensor in memory of the requested kind is used in place,
/// otherwise a copy, which is pinned if device memory must be copied to the host. Keeps the memory alive.
class TensorRange {
public:
    enum class Use : unsigned char { read, write, update };

    TensorRange() = default;
    /// To be constructed when the tensors are used: it counts the writes. `begin` waits for the work enqueued on their
    /// devices so far. Throws InvalidArgument, in the name of `operation`, for tensors that cannot be moved.
    TensorRange(std::string_view operation, std::span<const Tensor> tensors, Use use);

    bool empty() const { return parts_.empty(); }  ///< true if it has no tensors
    std::size_t bytes() const { return bytes_; }
    /// Whether writing this range changes what `other` reads or writes.
    bool shares_memory_with(const TensorRange& other) const;
    /// Whether this is the part of `whole` that begins at `offset`.
    bool is_part_of(const TensorRange& whole, std::size_t offset) const;

    /// The GPU of all tensors; nullopt if there are no tensors, or if one is elsewhere.
    std::optional<Device> gpu() const;
    /// Waits for the devices. Returns the first byte, for the host or, if `on` is set, for the GPU of all tensors; null
    /// if the range is empty.
    std::byte* begin(std::optional<Device> on = {});
    /// The memory has been written: updates the tensors, and orders later uses after the write.
    void end();

private:
    struct Part {
        std::shared_ptr<Buffer> buffer;
        TensorMeta meta;
        std::byte* first;
        std::size_t bytes;
    };
    void add(std::string_view operation, const Tensor& tensor);
    struct Block;  ///< rows of a tensor and of the copy
    /// Calls visit(device, block) for every block.
    template <class Visit>
    void each_block(Visit visit);
    /// From the tensors to the copy, or back.
    void move(bool to_tensors);
    std::byte* memory() const;  ///< memory of the copy; null without a copy

    std::vector<Part> parts_;
    std::vector<Event> ready_;
    Use use_ = Use::read;
    std::size_t bytes_ = 0;
    bool copied_ = false;  ///< whether it is not a single range
    bool staged_ = false;  ///< the host cannot access it
    Device copy_device_;   ///< device of the copy
    std::unique_ptr<std::byte[]> copy_;
    std::shared_ptr<Buffer> copy_buffer_;  ///< pinned memory, or a GPU's
};

}  // namespace lockstep
