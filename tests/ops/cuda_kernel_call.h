// One call of a CUDA kernel, on the stand-in or on a GPU, with operands in device memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/runtime/memory.h"
#include "lockstep/runtime/record.h"
#include "lockstep/runtime/status.h"
#include "lockstep/tests/gpu/machine.h"

namespace lockstep::test {

inline const Device gpu = Device::cuda(0);

/// Values in device memory.
template <class T>
class OnDevice {
public:
    explicit OnDevice(const std::vector<T>& values) : count_(values.size()) {
        Stream& stream = Stream::of(gpu);
        buffer_ = Buffer::allocate(stream, count_ * sizeof(T), "test");
        stream.copy(buffer_->data(), gpu, values.data(), Device::host(), count_ * sizeof(T));
    }
    T* data() const { return static_cast<T*>(buffer_->data()); }
    std::vector<T> fetch() const {
        std::vector<T> values(count_);
        Stream& stream = Stream::of(gpu);
        stream.copy(values.data(), Device::host(), data(), gpu, count_ * sizeof(T));
        stream.synchronize();
        return values;
    }

private:
    std::size_t count_;
    std::shared_ptr<Buffer> buffer_;
};

/// One call of a kernel: set its operands, then `run`.
struct Call {
    std::vector<TensorMeta> in_metas, out_metas;
    std::vector<void*> in, out;
    const StepCounters* step = nullptr;
    StatusWord* status = nullptr;
    const StatusWord* agreed = nullptr;
    std::uint32_t ordinal = 0;
    int shard = 0;
    std::int64_t first_row = 0;
    int shards = 1;

    /// Makes the kernel of an operation, and returns a function that enqueues it.
    template <class Op>
    std::function<void()> made(const Op& operation) const {
        KernelRequest request;
        request.device = gpu;
        request.shards = shards;
        request.in.assign(in_metas.begin(), in_metas.end());
        request.out.assign(out_metas.begin(), out_metas.end());
        std::shared_ptr<const Kernel> kernel =
            KernelTable::of(DeviceKind::cuda).make(*make_operation(operation), request);
        std::shared_ptr<Buffer> scratch;
        if (kernel->scratch_bytes() > 0)
            scratch = Buffer::allocate(Stream::of(gpu), kernel->scratch_bytes(), "scratch");
        return [call = *this, kernel = std::move(kernel), scratch = std::move(scratch),
                name = std::string(operation_name(operation))] {
            Stream::of(gpu).run(name, {}, [&](const ExecContext& context) {
                kernel->run({context, call.in.data(), call.out.data(), scratch ? scratch->data() : nullptr, call.step,
                             call.status, call.agreed, call.ordinal, call.shard, call.first_row, call.shards});
            });
        };
    }

    template <class Op>
    void run(const Op& operation) const {
        made(operation)();
        Stream::of(gpu).synchronize();
    }
};

inline TensorMeta floats(std::int64_t count) { return TensorMeta::contiguous(DType::f32, {count}); }
inline TensorMeta bytes(std::size_t count) {
    return TensorMeta::contiguous(DType::u8, {static_cast<std::int64_t>(count)});
}

struct NoMistakes {
    ~NoMistakes() { check_no_mistakes(); }
};

inline const StatusWord bad{static_cast<std::int32_t>(StatusCode::loss_not_finite), 3, 7, 0, 0};

}  // namespace lockstep::test
