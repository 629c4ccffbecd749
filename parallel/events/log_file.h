// A file of a log, which grows by whole records.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep::internal {

class LogFile {
public:
    /// Opens or creates the file for appending. Throws InvalidArgument if that fails.
    explicit LogFile(const std::filesystem::path& path);
    ~LogFile();
    LogFile(const LogFile&) = delete;
    LogFile& operator=(const LogFile&) = delete;

    const std::string& name() const { return name_; }
    /// Empty, or why the file does not take the bytes; then it is as it was before. The thread has SIGXFSZ blocked.
    std::string append(std::string_view bytes);

private:
    std::string name_;
    int descriptor_ = -1;
    std::uint64_t size_ = 0;
};

/// Removes from a file of JSON lines all lines of `step` and later steps, by their member "step", all lines after them,
/// and an incomplete line of a killed run at the end. Does nothing if the file does not exist.
void cut_json_lines(const std::filesystem::path& path, std::int64_t step);

/// A name for a new event file in `directory` that sorts after all existing ones: readers read them in that order.
std::filesystem::path next_event_file(const std::filesystem::path& directory);

}  // namespace lockstep::internal
