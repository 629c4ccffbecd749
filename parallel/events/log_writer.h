// The thread that encodes and writes a log, so that no step waits for a disk.
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
#include <string_view>
#include <thread>

namespace lockstep::internal {

// A file of a log, which grows by whole records.

class LogFile {
public:
    /// Opens or creates the file for appending. Throws InvalidArgument if that fails.
    explicit LogFile(const std::filesystem::path& path);
    ~LogFile();
    LogFile(const LogFile&) = delete;
    LogFile& operator=(const LogFile&) = delete;

    const std::string& name() const { return name_; }
    /// Appends bytes. Returns an empty string, or the error; then the file is unchanged. The thread must have SIGXFSZ
    /// blocked.
    std::string append(std::string_view bytes);
    /// Whether nothing has the file's name any more, so that what is written is lost when the file is closed.
    bool is_deleted() const;

private:
    std::string name_;
    int descriptor_ = -1;
    std::uint64_t size_ = 0;
};

/// Removes from a file of JSON lines all lines of `step` and later steps, by their member "step", all lines after them,
/// and an incomplete line of a killed run at the end. Does nothing if the file does not exist.
void cut_json_lines(const std::filesystem::path& path, std::int64_t step);

/// Name of a new event file in `directory` that sorts after all existing ones, because readers read them in that order.
std::filesystem::path next_event_file(const std::filesystem::path& directory);

/// Data to append to the files.
struct LogText {
    std::string events, lines;
};

class LogWriter {
public:
    /// The event file begins with `first_events`. Throws as EventLog. Its last owner waits until all data is written.
    /// It is never destroyed in a child of fork(), because the destructor would wait for a thread that only the parent
    /// has.
    static std::shared_ptr<LogWriter> start(const std::filesystem::path& directory, const std::string& name,
                                            std::optional<std::int64_t> resume_step, const std::string& first_events);

    LogWriter(const std::filesystem::path& directory, const std::string& name, std::optional<std::int64_t> resume_step,
              const std::string& first_events);
    ~LogWriter();
    LogWriter(const LogWriter&) = delete;
    LogWriter& operator=(const LogWriter&) = delete;

    /// Calls `encode` on the thread, soon. Until then it counts `bytes` of pending memory.
    void put(std::size_t bytes, std::function<void(LogText& text)> encode);
    void flush();

private:
    struct Pending {
        std::size_t bytes;
        std::function<void(LogText&)> encode;
    };
    /// Whether this process is a child of fork(): the log belongs to the parent.
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
    bool writing_ = false, flush_requested_ = false, ending_ = false, warned_ = false;
    int generation_;
    std::thread thread_;  // last, because it uses all of the above
};

}  // namespace lockstep::internal
