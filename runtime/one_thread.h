// Things that one thread may use at a time, in the process that made them: others are told so, before they have torn
// anything.
#pragma once

#include <atomic>
#include <thread>

namespace lockstep {

/// Knows which thread is inside a thing's calls. Two of them at once are the caller's mistake; to notice it costs a few
/// nanoseconds a call.
class OneThreadAtATime {
public:
    /// `what`: "this model", for messages.
    explicit OneThreadAtATime(const char* what);
    OneThreadAtATime(const OneThreadAtATime&) = delete;
    OneThreadAtATime& operator=(const OneThreadAtATime&) = delete;

    /// A call: while it lives the thing belongs to this thread, which may make further calls inside.
    class Use {
    public:
        /// Throws InvalidArgument, in the name of `call`, while another thread is inside one, inside a `forward` or a
        /// loss that is being traced, and in a child that was forked since the thing was made.
        Use(OneThreadAtATime& thing, const char* call);
        ~Use() {
            if (thing_) thing_->owner_.store({}, std::memory_order_release);
        }
        Use(const Use&) = delete;
        Use& operator=(const Use&) = delete;

    private:
        OneThreadAtATime* thing_;  ///< null: an outer call of this thread holds it
    };

    /// For what is handed out without a call that lasts. Throws InvalidArgument while another thread is inside one.
    void require_free(const char* call) const;
    bool used_by_another() const;

private:
    [[noreturn]] void refuse(const char* call) const;
    const char* what_;
    int made_in_;                           ///< see forked::generation
    std::atomic<std::thread::id> owner_{};  ///< nobody's id: free
};

}  // namespace lockstep
