// Objects that one thread may use at a time, in the process that created them: concurrent use throws before it damages
// anything.
#pragma once

#include <atomic>
#include <thread>

#include "lockstep/runtime/language.h"

namespace lockstep {

/// Tracks which thread is inside a call of an object. Concurrent calls are the caller's mistake; detecting them costs a
/// few nanoseconds a call.
class OneThreadAtATime {
public:
    /// `what`: noun for messages, such as "this model".
    explicit OneThreadAtATime(const char* what);
    OneThreadAtATime(const OneThreadAtATime&) = delete;
    OneThreadAtATime& operator=(const OneThreadAtATime&) = delete;

    /// A call: while it lives, the object belongs to this thread, which may make nested calls.
    class Use {
    public:
        /// Throws InvalidArgument, in the name of `call`, if another thread is inside a call. Also throws it inside a
        /// `forward` or a loss that is being traced, and in a child process forked after the object was created.
        Use(OneThreadAtATime& thing, const char* call);
        ~Use() {
            if (thing_) thing_->owner_.store({}, std::memory_order_release);
        }
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;

    private:
        OneThreadAtATime* thing_;  ///< null: an outer call of this thread holds it
    };

    /// For data that is handed out without a lasting call. Throws InvalidArgument while another thread is inside a
    /// call.
    void require_free(const char* call) const;
    bool used_by_another() const;

private:
    [[noreturn]] void refuse(const char* call) const;
    const char* what_;
    int fork_generation_;                   ///< see forked::generation
    std::atomic<std::thread::id> owner_{};  ///< default id: free
};

}  // namespace lockstep
