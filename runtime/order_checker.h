// Ordering checker: finds missing event waits. Every enqueue declares the memory it reads and writes; two accesses of
// one range from different streams, one of them a write, must be ordered by record and wait or by the host.
// LOCKSTEP_CHECK_ORDER=1 checks every enqueue of the process; a recorded log can also be checked afterwards. The method
// is that of race detectors with vector clocks (FastTrack, Flanagan and Freund 2009), over streams instead of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/runtime/error.h"
#include "lockstep/runtime/stream.h"

namespace lockstep {

/// Work was refused because it is not ordered after other work on the same memory. It was not enqueued.
class OrderError : public Error {
public:
    using Error::Error;
};

/// One action of the host on a stream, or of the host itself.
struct OrderEntry {
    /// Value of `stream` for the host thread. Enqueued work runs after everything that the host has done and waited
    /// for.
    static constexpr int host = -1;

    enum class Kind : std::uint8_t {
        work,        ///< touches `accesses`: a kernel, a copy, a fill, or work that the host does at once
        record,      ///< records `event`
        wait,        ///< waits for the latest record of `event` (no-op without one); the host blocks
        wait_stream  ///< waits for everything enqueued on stream `other` so far
    };
    Kind kind = Kind::work;
    int stream = host;
    std::string stream_name;       ///< as in Stream::name()
    std::string what;              ///< operation, for messages
    std::uint64_t event = 0;       ///< Event::id()
    int other = host;              ///< for wait_stream
    std::vector<Access> accesses;  ///< for work
};

/// Two unordered accesses: `later` should have waited for `earlier`.
struct OrderViolation {
    std::size_t earlier = 0;  ///< position in the log, counted from 0: the latest entry that `later` had to wait for
    std::size_t later = 0;
    const void* address = nullptr;  ///< memory that both touch
    std::size_t bytes = 0;
    std::string text;  ///< one line: both operations, their streams, the memory and the missing wait
};

/// Checks a log entry by entry. Only addresses count: a freed block that another stream reuses without a wait is a
/// conflict between its old user and its new one. Not thread-safe.
class OrderChecker {
public:
    OrderChecker();
    ~OrderChecker();
    OrderChecker(const OrderChecker& other);
    OrderChecker& operator=(const OrderChecker& other);
    OrderChecker(OrderChecker&&) noexcept;
    OrderChecker& operator=(OrderChecker&&) noexcept;

    /// Processes the next entry. Accesses of an entry that violates the order are discarded, as if it had not run.
    std::optional<OrderViolation> append(const OrderEntry& entry);

private:
    struct State;
    std::unique_ptr<State> state_;
};

namespace order_check {

/// Whether enqueues must be reported to the functions below: LOCKSTEP_CHECK_ORDER=1, a recording is active, or a call
/// is to be refused.
/// Throws InvalidArgument if that variable is malformed.
bool enabled();
/// Overrides LOCKSTEP_CHECK_ORDER from now on, and discards the history.
void set_checking(bool on);

/// Records all further enqueues. Throws InvalidArgument if a recording is active.
void start_recording();
/// Ends the recording and returns it. Throws InvalidArgument if no recording is active.
std::vector<OrderEntry> take_recording();

/// For tests: reported call number `nth` (from 1) throws DeviceError and has no effect, like a call that the device
/// refuses. 0 disables this.
void arm_failure(std::uint64_t nth);
/// Calls reported since the last arm_failure().
std::uint64_t calls_since_armed();

/// Messages call this range, or parts of it, `text` ("parameters of cpu:1") until another name covers it. No-op unless
/// enabled.
void name_memory(const void* address, std::size_t bytes, std::string_view text);
/// Name of the range that contains `address`, or an empty string.
std::string memory_name(const void* address);

/// Reports by Stream and Event: before the action for enqueues, and after it returns for waits of the host. `stream` is
/// Stream::id(), `name` is Stream::name(); the host's streams are recognised by their name. Throw OrderError.
void on_work(int stream, std::string_view name, std::string_view what, std::span<const Access> accesses);
void on_record(int stream, std::string_view name, std::uint64_t event);
void on_wait(int stream, std::string_view name, std::uint64_t event);
void on_host_wait_stream(int stream);
void on_host_wait_event(std::uint64_t event);

}  // namespace order_check

}  // namespace lockstep
