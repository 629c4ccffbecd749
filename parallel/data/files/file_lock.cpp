#include "lockstep/parallel/data/files/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <string_view>
#include <utility>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/process.h"

namespace lockstep::internal {
namespace {

/// The first line: "process 17 of host7", as written by the holder; empty if it has not been written yet.
std::string line_of(int descriptor) {
    std::array<char, 200> bytes{};
    const ssize_t count = ::pread(descriptor, bytes.data(), bytes.size(), 0);
    const std::string_view text(bytes.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
    return std::string(text.substr(0, text.find('\n')));
}

bool is_ours(const std::string& line) { return line.starts_with("process "); }

std::string own_name() {
    std::array<char, 128> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = 0;
    return "process " + std::to_string(::getpid()) + (host[0] != 0 ? " of " + std::string(host.data()) : "") + "\n";
}

bool is_same_file(int descriptor, const std::string& name) {
    struct stat own {
    }, there{};
    return ::fstat(descriptor, &own) == 0 && ::stat(name.c_str(), &there) == 0 && own.st_dev == there.st_dev &&
           own.st_ino == there.st_ino;
}

std::mutex& table_mutex() {
    static auto* mutex = new std::mutex;  // never destroyed: static objects may save
    return *mutex;
}

struct KnownLock {
    std::weak_ptr<FileLock> lock;
    pid_t opened_by = 0;  ///< process of which a thread opens the lock's file now; 0: none
};
/// The locks of this process.
std::map<FileIdentity, KnownLock>& table() {
    static auto* locks = new std::map<FileIdentity, KnownLock>;  // as above
    return *locks;
}
std::condition_variable& opening_ended() {
    static auto* changed = new std::condition_variable;  // as above
    return *changed;
}

/// With the lock: nothing opens the file any more. Drops entries without a use.
void end_opening(const FileIdentity& key) {
    table()[key].opened_by = 0;
    std::erase_if(table(),
                  [](const auto& known) { return known.second.lock.expired() && known.second.opened_by == 0; });
    opening_ended().notify_all();
}

}  // namespace

std::shared_ptr<FileLock> FileLock::acquire(const std::filesystem::path& path) {
    require_replaceable(path);
    const std::filesystem::path target = followed(path);
    // Locks the name and not the file, which every save replaces.
    const auto [device, directory, nothing] = identity_of(directory_of(target));
    const FileIdentity key{device, directory, target.filename()};
    std::unique_lock guard(table_mutex());
    // A forked process has the table of its parent, but neither its locks nor its threads.
    while (table()[key].opened_by == ::getpid()) opening_ended().wait(guard);
    if (auto known = table()[key].lock.lock(); known && known->process_ == ::getpid()) return known;
    table()[key].opened_by = ::getpid();
    guard.unlock();  // the file system may be slow, and saves to others must not wait for it
    std::shared_ptr<FileLock> lock;
    try {
        lock.reset(new FileLock(path, target));
    } catch (...) {
        guard.lock();
        end_opening(key);
        throw;
    }
    guard.lock();
    table()[key].lock = lock;
    end_opening(key);
    return lock;
}

FileLock::FileLock(const std::filesystem::path& given, const std::filesystem::path& target)
    : name_(target.string() + ".lock"), process_(::getpid()) {
    open_standard_streams();
    while (!try_to_lock(given.string())) {
    }
    const std::string text = own_name();
    if (::ftruncate(descriptor_, 0) != 0 ||
        ::pwrite(descriptor_, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
        return;  // another process then learns that the file is locked, but not by which process
}

InvalidArgument FileLock::not_regular(const std::string& given) const {
    return InvalidArgument("cannot write " + given + ": its lock file " + name_ +
                           " is not a regular file; remove it, or use another file");
}

bool FileLock::try_to_lock(const std::string& given) {
    const int opened = ::open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
    if (opened < 0) {
        const bool denied = errno == EACCES;
        const std::string why = reason();
        struct stat found {};
        if (denied && ::lstat(name_.c_str(), &found) == 0)
            throw InvalidArgument("cannot write " + given + ": its lock file " + name_ + " belongs to user " +
                                  std::to_string(found.st_uid) + " (" + why +
                                  "); wait until that user has saved, or use another file");
        if (::lstat(name_.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) throw not_regular(given);
        throw InvalidArgument("cannot write " + given + ": " + why + "; expected a writable directory");
    }
    struct stat opened_file {};
    if (::fstat(opened, &opened_file) == 0 && !S_ISREG(opened_file.st_mode)) {  // a FIFO, which would be removed
        ::close(opened);
        throw not_regular(given);
    }
    if (::flock(opened, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        const std::string who = line_of(opened);
        ::close(opened);
        throw InvalidArgument("cannot write " + given + ": " + (is_ours(who) ? who : "another process") +
                              " is saving to it; wait for it, or use another file");
    }
    if (const std::string line = line_of(opened); !line.empty() && !is_ours(line)) {
        ::close(opened);
        throw InvalidArgument("cannot write " + given + ": " + name_ +
                              " would be its lock file but has other content; use another file");
    }
    // The previous holder may have removed it in between.
    if (!is_same_file(opened, name_)) {
        ::close(opened);
        return false;
    }
    descriptor_ = opened;
    return true;
}

FileLock::~FileLock() {
    if (process_ == ::getpid() && is_same_file(descriptor_, name_)) ::unlink(name_.c_str());
    ::close(descriptor_);
}

}  // namespace lockstep::internal
