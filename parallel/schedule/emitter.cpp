#include "lockstep/parallel/schedule/emitter.h"

#include <utility>

namespace lockstep {

TensorMeta bytes_meta(std::size_t bytes) {
    return TensorMeta::contiguous(DType::u8, {static_cast<std::int64_t>(bytes)});
}

MemoryRef Emitter::readable_on(Stream& reader, const MemoryRef& ref) {
    const bool nothing = ref.workspace < 0 && !ref.memory;
    if (nothing || ref.owner == reader.device() || peer_access(reader.device(), ref.owner)) return ref;
    const MemoryRef staged = fixed(Buffer::allocate(reader, ref.bytes, "staging"));
    MemoryRef source = ref;
    source.first = 0;
    copy(reader, source, staged);
    MemoryRef result = staged;
    result.first = ref.first;
    return result;
}

TaskSpec Emitter::flat_task(Stream& stream, DeviceIndex device, std::shared_ptr<const Operation> operation,
                            FlatOperands in, FlatOperands out) const {
    KernelRequest request;
    request.device = stream.device();
    request.deterministic = topology_.arithmetic.deterministic;
    request.in.assign(in.metas.begin(), in.metas.end());
    request.out.assign(out.metas.begin(), out.metas.end());
    TaskSpec task;
    task.kernel = KernelTable::of(request.device.kind()).make(*operation, request);
    task.operation = std::move(operation);
    task.in = std::move(in.refs);
    task.out = std::move(out.refs);
    if (const std::size_t bytes = task.kernel->scratch_bytes())
        task.scratch = fixed(memory_.scratch(stream, bytes), 0, bytes);
    const ControlBlock& control = memory_.control(device);
    task.step = control.step();
    task.agreed = control.agreed();
    task.health = memory_.health().get();
    task.replica = device;
    return task;
}

}  // namespace lockstep
