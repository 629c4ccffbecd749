// Operations that only tests have: they fail, block, or wait for each other inside their CPU kernels.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>

#include "lockstep/ops/functional.h"
#include "lockstep/runtime/autograd.h"
#include "lockstep/runtime/record.h"
#include "lockstep/tests/patience.h"

namespace test_operations {

namespace ls = lockstep;

/// Called by the kernel of `touch` with the shard's number, in forward and in backward.
struct Hook {
    std::function<void(int shard)> forward = [](int) {}, backward = [](int) {};
};
inline Hook& hook() {
    static Hook instance;
    return instance;
}

/// in: x; out: a copy of it
struct Touch {
    bool backward;
    std::string_view name() const { return backward ? "touch_backward" : "touch"; }
};

inline std::unique_ptr<ls::Kernel> make_touch(const Touch& op, ls::KernelRequest& request) {
    request.want_all_contiguous();
    const auto count = request.in[0].numel();
    return ls::make_kernel([backward = op.backward, count](const ls::KernelArgs& run) {
        (backward ? hook().backward : hook().forward)(run.shard);
        for (std::int64_t i = 0; i < count; ++i) run.output<float>(0)[i] = run.input<float>(0)[i];
    });
}

/// x itself, through a kernel that calls the hook. Differentiable.
inline ls::Tensor touch(const ls::Tensor& x) {
    static const bool known = [] {
        ls::KernelTable::of(ls::DeviceKind::cpu).add<Touch, make_touch>();
        return true;
    }();
    (void)known;
    const auto alike = ls::TensorMeta::contiguous(x.dtype(), x.shape(), x.is_batch());
    const ls::Tensor y = ls::apply_one(Touch{false}, {x}, alike);
    if (ls::needs_autograd({x}))
        ls::add_autograd_node("touch", {x}, {y}, [alike](const std::vector<ls::Tensor>& gradients) {
            return std::vector<ls::Tensor>{ls::apply_one(Touch{true}, {gradients[0]}, alike)};
        });
    return y;
}

/// Something that happens once; waiting for it gives up in the end, so that a test fails and never hangs.
class Gate {
public:
    void open() {
        const std::scoped_lock lock(mutex_);
        open_ = true;
        changed_.notify_all();
    }
    bool is_open() {
        const std::scoped_lock lock(mutex_);
        return open_;
    }
    void pass() {
        std::unique_lock lock(mutex_);
        if (!changed_.wait_for(lock, lockstep::test::hang, [this] { return open_; }))
            throw std::runtime_error("nobody opened the gate");
    }

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    bool open_ = false;
};

}  // namespace test_operations
