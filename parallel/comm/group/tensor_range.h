// Tensors as a communicator wants them: one range of host memory or of a GPU's, from any thread.
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

/// One or several tensors, one after the other. Where a tensor is alone, contiguous and in memory of the kind that is
/// asked for the range is its own memory, otherwise a copy: a pinned one where a device's memory must be copied to the
/// host. Keeps the memory alive.
class TensorRange {
public:
    enum class Use : unsigned char { read, write, update };

    TensorRange() = default;
    /// To be called where the tensors are used: it counts the writes, and what their devices have been given so far is
    /// waited for in `begin`. Throws InvalidArgument, in the name of `operation`, for tensors that cannot be moved.
    TensorRange(std::string_view operation, std::span<const Tensor> tensors, Use use);

    bool empty() const { return parts_.empty(); }  ///< of no tensor
    std::size_t bytes() const { return bytes_; }
    /// Whether writing this range changes what `other` reads or writes.
    bool shares_memory_with(const TensorRange& other) const;
    /// Whether this is the part of `whole` that begins at `offset`.
    bool is_part_of(const TensorRange& whole, std::size_t offset) const;

    /// The GPU that all of it lies on; none where there is nothing, or something lies elsewhere.
    std::optional<Device> gpu() const;
    /// Waits for the devices. First byte, for the host or, where one is given, for the GPU that all of it lies on; null
    /// where there is nothing.
    std::byte* begin(std::optional<Device> on = {});
    /// The memory has been written: the tensors get it, and whoever uses them from now on sees it.
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
    /// Calls visit(device, block) all over.
    template <class Visit>
    void each_block(Visit visit);
    /// From the tensors to the copy, or back.
    void move(bool to_tensors);
    std::byte* memory() const;  ///< of the copy; null where there is none

    std::vector<Part> parts_;
    std::vector<Event> ready_;
    Use use_ = Use::read;
    std::size_t bytes_ = 0;
    bool copied_ = false;  ///< it is no single range
    bool staged_ = false;  ///< the host cannot use it
    Device copy_device_;   ///< where the copy is
    std::unique_ptr<std::byte[]> copy_;
    std::shared_ptr<Buffer> copy_buffer_;  ///< pinned, or a GPU's
};

}  // namespace lockstep
