// Thread-local objects, waiting, and exceptions in flight.
#pragma once

#include <chrono>
#include <exception>
#include <utility>

namespace lockstep {

// Objects that a thread keeps from call to call.

/// The calling thread's `T`, created at its first call. Thread-local objects are destroyed before static ones, whose
/// destructors may still call: an object created then is leaked. Give each use a separate type.
template <class T>
T& per_thread() {
    static thread_local T* object = nullptr;  // a pointer has no destructor: it can be read until the very end
    struct Owner {
        ~Owner() { delete std::exchange(object, nullptr); }
    };
    if (object == nullptr) {
        static thread_local Owner owner;  // created once, and not again after its destruction
        static_cast<void>(&owner);
        object = new T;
    }
    return *object;
}

// Waiting for an event that is expected soon: a thread spins for a bounded time, then sleeps.
//
// It does not call sched_yield: on a shared machine, a thread that yields in a loop keeps a core busy for nothing and
// takes it from programs that have work.

/// Leaves the core's other hardware thread its share for a moment.
inline void pause_core() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

/// About the cost of sleeping and being woken: spinning this long before sleeping costs at most twice the optimum.
constexpr std::chrono::microseconds worth_spinning(50);

/// One wait.
class Spin {
public:
    using Clock = std::chrono::steady_clock;

    explicit Spin(std::chrono::microseconds longest = worth_spinning) : longest_(longest) {}

    /// Polls `there` for a moment. False if it does not hold and the time is over.
    template <class There>
    bool again(There&& there) {
        for (int looks = 0; looks < 32; ++looks) {
            if (there()) return true;
            pause_core();
        }
        const auto now = Clock::now();
        if (end_ == Clock::time_point()) end_ = now + longest_;
        return now < end_;
    }

private:
    std::chrono::microseconds longest_;
    Clock::time_point end_;  ///< counted from the first unsuccessful poll
};

// Destruction of an object because of an exception.

/// For destructors with effects that others notice: true if an exception thrown during the object's life is in flight.
class UnwindingNotice {
public:
    bool unwinding() const noexcept { return std::uncaught_exceptions() > before_; }

private:
    int before_ = std::uncaught_exceptions();
};

}  // namespace lockstep
