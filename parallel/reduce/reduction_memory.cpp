#include "lockstep/parallel/reduce/reduction_memory.h"

#include "lockstep/runtime/round_up.h"

namespace lockstep {

MemoryRef ReductionMemory::elements(const std::shared_ptr<Buffer>& memory, const Bucket& part,
                                    std::int64_t first) const {
    const std::size_t size = size_of(memory_.layout(part.arena).dtype);
    return fixed(memory, static_cast<std::size_t>(first) * size, static_cast<std::size_t>(part.elements()) * size);
}

MemoryRef ReductionMemory::gradients(DeviceIndex device, const Bucket& part) const {
    return elements(memory_.replica(device).gradients[static_cast<std::size_t>(part.arena)], part, part.begin);
}

MemoryRef ReductionMemory::parameters(DeviceIndex device, const Bucket& part) const {
    return elements(memory_.replica(device).parameters[static_cast<std::size_t>(part.arena)], part, part.begin);
}

const std::vector<std::shared_ptr<Buffer>>& ReductionMemory::separate_root_sums() {
    if (separate_root_sums_.empty()) {
        std::vector<std::shared_ptr<Buffer>> sums;
        for (const ArenaLayout& layout : memory_.store()->parameters())
            sums.push_back(Buffer::zeroed(topology_.devices[0], layout.bytes(), "gradients of one backward"));
        separate_root_sums_ = std::move(sums);
    }
    return separate_root_sums_;
}

MemoryRef ReductionMemory::separate_root_sums(const Bucket& part) {
    return elements(separate_root_sums()[static_cast<std::size_t>(part.arena)], part, part.begin);
}

TensorMeta ReductionMemory::flat(const Bucket& part) const {
    return TensorMeta::contiguous(memory_.layout(part.arena).dtype, {part.elements()});
}

const std::shared_ptr<Buffer>& ReductionMemory::slot(DeviceIndex device, int index, int turns) {
    auto& memory = slots_[{device, index}];
    // Buckets do not write the gaps between parameters, which are added up as well and should be numbers.
    if (!memory)
        memory = Buffer::zeroed(topology_.devices[device],
                                round_up(cut_.largest(), 256) * static_cast<std::size_t>(turns), "partial sums");
    return memory;
}

const std::shared_ptr<Buffer>& ReductionMemory::received(int index) {
    const auto number = static_cast<std::size_t>(index);
    if (received_.size() <= number) received_.resize(number + 1);
    const auto parts = static_cast<std::size_t>(topology_.ranks);
    if (!received_[number])
        received_[number] = Buffer::allocate(
            topology_.collective(), (cut_.largest() / parts + 2 * ArenaPartition::grain * sizeof(double)) * parts,
            "slices of others");
    return received_[number];
}

}  // namespace lockstep
