// One process at a time writes a file, or a pair of files.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

namespace lockstep::internal {

/// Keeps other processes from writing `path` as long as it lives, by a lock on "PATH.lock" that the kernel lets go of
/// when this process ends, however it does. What a killed process leaves of it is an empty claim, which the next one
/// takes over and removes at its end. File systems that know no locks keep nobody out.
class FileLock {
public:
    /// The lock of this process on what `path` means, shared with whoever has it here already. Throws InvalidArgument,
    /// naming the process, when another one has it, and when the file could not be written at all.
    static std::shared_ptr<FileLock> acquire(const std::filesystem::path& path);
    ~FileLock();
    FileLock(const FileLock&) = delete;
    FileLock& operator=(const FileLock&) = delete;

    /// Held by the thread of this process that writes.
    std::mutex& writing() { return writing_; }

private:
    FileLock(const std::filesystem::path& given, const std::filesystem::path& target);
    /// False when what was locked is not what bears the name any more.
    bool try_to_lock(const std::string& given);

    std::string name_;
    int descriptor_ = -1;
    pid_t process_;
    std::mutex writing_;
};

}  // namespace lockstep::internal
