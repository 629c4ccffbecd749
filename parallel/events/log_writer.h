// The thread of a log that encodes and writes, so that no step waits for a disk.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "lockstep/parallel/events/log_file.h"

namespace lockstep::internal {

/// Data to append to the files.
struct LogText {
    std::string events, lines;
};

class LogWriter {
public:
    /// The event file begins with `first_events`. Throws as EventLog does. Its last owner waits until all is written.
    /// In a child of fork() it is never destroyed: destructors would wait for a thread that only the parent has.
    static std::shared_ptr<LogWriter> start(const std::filesystem::path& directory, const std::string& name,
                                            std::optional<std::int64_t> resume_step, const std::string& first_events);

    LogWriter(const std::filesystem::path& directory, const std::string& name, std::optional<std::int64_t> resume_step,
              const std::string& first_events);
    ~LogWriter();
    LogWriter(const LogWriter&) = delete;
    LogWriter& operator=(const LogWriter&) = delete;

    /// Calls `encode` on the thread, soon. It holds `bytes` of memory until then.
    void put(std::size_t bytes, std::function<void(LogText& text)> encode);
    void flush();

private:
    struct Pending {
        std::size_t bytes;
        std::function<void(LogText&)> encode;
    };
    /// This process is a child of fork(): the log is the parent's business.
    bool is_of_parent() const;
    void run();
    void write(std::deque<Pending> all);
    void append(LogFile& file, const std::string& text);
    void warn_once(const std::string& text);

    LogFile lines_, events_;
    std::mutex mutex_;
    std::condition_variable wake_, written_;
    std::deque<Pending> pending_;
    std::size_t pending_bytes_ = 0;
    bool writing_ = false, hurry_ = false, ending_ = false, warned_ = false;
    int generation_;
    std::thread thread_;  // last: it uses all of the above
};

}  // namespace lockstep::internal
