#include "lockstep/runtime/one_thread.h"

#include <fmt/format.h>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/process.h"
#include "lockstep/runtime/trace.h"

namespace lockstep {

OneThreadAtATime::OneThreadAtATime(const char* what) : what_(what), fork_generation_(forked::generation()) {}

OneThreadAtATime::Use::Use(OneThreadAtATime& thing, const char* call) : thing_(&thing) {
    const std::thread::id self = std::this_thread::get_id();
    const bool inside = thing.owner_.load(std::memory_order_relaxed) == self;
    if (Trace::current())
        throw InvalidArgument(
            fmt::format("{}: called inside a forward or loss of {}; expected {}", call,
                        inside ? "this model itself" : "another model",
                        inside ? "a computation with its members" : "a call of the module that it wraps"));
    if (inside) {
        thing_ = nullptr;
        return;
    }
    if (thing.fork_generation_ != forked::generation()) forked::refuse(call, thing.what_);
    std::thread::id nobody;
    if (!thing.owner_.compare_exchange_strong(nobody, self, std::memory_order_acquire, std::memory_order_relaxed))
        thing.refuse(call);
}

bool OneThreadAtATime::used_by_another() const {
    const std::thread::id owner = owner_.load(std::memory_order_acquire);
    return owner != std::thread::id() && owner != std::this_thread::get_id();
}

void OneThreadAtATime::require_free(const char* call) const {
    if (used_by_another()) refuse(call);
}

void OneThreadAtATime::refuse(const char* call) const {
    throw InvalidArgument(
        fmt::format("{}: {} is used by another thread; expected one thread at a time, or a separate instance for each "
                    "thread (or a copy of the module, made between two calls)",
                    call, what_));
}

}  // namespace lockstep
