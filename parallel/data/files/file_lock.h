// Lock that lets only one process at a time write a file, or a pair of files.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/runtime/error.h"

namespace lockstep::internal {

/// Prevents other processes from writing `path` while it exists, by a lock on "PATH.lock" that the kernel releases when
/// this process ends, even if killed. A killed process leaves an empty lock file, which the next one takes over and
/// removes at its end. On file systems without locks it has no effect.
class FileLock {
public:
    /// The lock of this process on the file that `path` refers to, shared with existing ones of this process. Throws
    /// InvalidArgument, naming the process, if another one holds it, and if the file is not writable.
    static std::shared_ptr<FileLock> acquire(const std::filesystem::path& path);
    ~FileLock();
    FileLock(const FileLock&) = delete;
    FileLock& operator=(const FileLock&) = delete;

    /// Held by the thread of this process that writes.
    std::mutex& writing() { return writing_; }

private:
    FileLock(const std::filesystem::path& given, const std::filesystem::path& target);
    /// Returns false if the locked file no longer has the name.
    bool try_to_lock(const std::string& given);
    InvalidArgument not_regular(const std::string& given) const;

    std::string name_;
    int descriptor_ = -1;
    pid_t process_;
    std::mutex writing_;
};

}  // namespace lockstep::internal
