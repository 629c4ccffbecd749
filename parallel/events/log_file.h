// A file of a log, which grows by whole records.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace lockstep::internal {

class LogFile {
public:
    /// Opens it, made where it is missing, to write after what it holds. Throws InvalidArgument when that cannot be.
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

/// Takes from a file of JSON lines what belongs to `step` and later ones, by their member "step", and what follows
/// that; and half a line at its end, of a run that was killed. Nothing where there is no such file.
void cut_json_lines(const std::filesystem::path& path, std::int64_t step);

/// A name for a new event file in `directory` that sorts behind all that are there: readers take them in that order.
std::filesystem::path next_event_file(const std::filesystem::path& directory);

}  // namespace lockstep::internal
