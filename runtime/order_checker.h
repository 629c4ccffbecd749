// Ordering checker: finds event waits that are missing. Every enqueue declares the memory it reads and writes; two
// accesses of one range from different streams, one of them a write, must be ordered by record and wait or by the host.
// LOCKSTEP_CHECK_ORDER=1 checks every enqueue of the process; a recorded log can be checked afterwards as well.
// The method is that of race detectors with vector clocks (FastTrack, Flanagan and Freund 2009), over streams instead
// of threads.
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

/// Work was enqueued that is not ordered after other work on the same memory. It was not enqueued.
class OrderError : public Error {
public:
    using Error::Error;
};

/// One thing that the host did to a stream, or did itself.
struct OrderEntry {
    /// Stands for the host thread in `stream`. What is enqueued runs after what the host has done and waited for.
    static constexpr int host = -1;

    enum class Kind : std::uint8_t {
        work,        ///< touches `accesses`: a kernel, a copy, a fill, or work that the host does at once
        record,      ///< records `event`
        wait,        ///< waits for the latest record of `event` (none: no wait); by the host: it blocks
        wait_stream  ///< waits for all that stream `other` has been given so far
    };
    Kind kind = Kind::work;
    int stream = host;
    std::string stream_name;       ///< as in Stream::name()
    std::string what;              ///< operation, for messages
    std::uint64_t event = 0;       ///< Event::id()
    int other = host;              ///< of wait_stream
    std::vector<Access> accesses;  ///< of work
};

/// Two accesses without order: `later` needed to wait for `earlier`.
struct OrderViolation {
    std::size_t earlier = 0;  ///< position in the log, counted from 0: the latest entry that `later` had to wait for
    std::size_t later = 0;
    const void* address = nullptr;  ///< memory that both touch
    std::size_t bytes = 0;
    std::string text;  ///< one line: both operations, their streams, the memory and the wait that is missing
};

/// Checks a log entry by entry. Addresses are all that counts: a freed block that another stream gets without a wait
/// is a conflict between its old user and its new one. Not thread-safe.
class OrderChecker {
public:
    OrderChecker();
    ~OrderChecker();
    OrderChecker(const OrderChecker& other);
    OrderChecker& operator=(const OrderChecker& other);
    OrderChecker(OrderChecker&&) noexcept;
    OrderChecker& operator=(OrderChecker&&) noexcept;

    /// Takes the next entry. Accesses of an entry that violates the order are not remembered, as if it had not run.
    std::optional<OrderViolation> append(const OrderEntry& entry);

private:
    struct State;
    std::unique_ptr<State> state_;
};

namespace order_check {

/// Whether enqueues are to be reported to the functions below: LOCKSTEP_CHECK_ORDER=1, a recording is under way, or
/// a call is to be refused.
/// Throws InvalidArgument when that variable is malformed.
bool enabled();
/// Overrides LOCKSTEP_CHECK_ORDER from now on; what was seen so far is forgotten.
void set_checking(bool on);

/// Notes all further enqueues. Throws InvalidArgument when a recording is under way.
void start_recording();
/// Ends the recording and returns it. Throws InvalidArgument when there is none.
std::vector<OrderEntry> take_recording();

/// For tests: call number `nth` (from 1) that is reported from now on throws DeviceError instead, before it has done
/// anything, as one that a device refuses. 0: none.
void refuse_call(std::uint64_t nth);
/// Calls reported since then.
std::uint64_t calls_since_refusal();

/// Messages call this range `text` ("parameters of cpu:1"), or parts of it, until another name covers it. Does
/// nothing unless enabled.
void name_memory(const void* address, std::size_t bytes, std::string_view text);
/// Name of the range that `address` lies in, or an empty string.
std::string memory_name(const void* address);

/// What Stream and Event report, before they act for enqueues and after they return for waits of the host. `stream`
/// is Stream::id(), `name` is Stream::name(); the host's streams are recognised by their name. Throw OrderError.
void on_work(int stream, std::string_view name, std::string_view what, std::span<const Access> accesses);
void on_record(int stream, std::string_view name, std::uint64_t event);
void on_wait(int stream, std::string_view name, std::uint64_t event);
void on_host_wait_stream(int stream);
void on_host_wait_event(std::uint64_t event);

}  // namespace order_check

}  // namespace lockstep
