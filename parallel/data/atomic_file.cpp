#include "lockstep/parallel/data/atomic_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/held_signal.h"
#include "lockstep/runtime/internal/process.h"
#include "lockstep/runtime/internal/trusted_links.h"

namespace lockstep {

using internal::directory_of;
using internal::followed;
using internal::largest_transfer;
using internal::reason;

namespace {

/// Whether a file of `size` bytes exceeds this process's limit, and the program does not handle the signal of that.
bool exceeds_limit(std::uint64_t size) {
    rlimit limit{};
    struct sigaction now {};
    return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && size > limit.rlim_cur &&
           ::sigaction(SIGXFSZ, nullptr, &now) == 0 && now.sa_handler == SIG_DFL;
}

/// Marks the file as being written for other writers. If the file system has no locks, every file counts as marked.
bool mark_as_being_written(int descriptor) { return ::flock(descriptor, LOCK_EX | LOCK_NB) == 0; }

/// "FILE.123-4.tmp"
bool is_temporary_name(std::string_view name, std::string_view of_file) {
    if (!name.starts_with(of_file)) return false;
    name.remove_prefix(of_file.size());
    if (!name.starts_with('.') || !name.ends_with(".tmp")) return false;
    name = name.substr(1, name.size() - 5);
    const auto dash = name.find('-');
    const auto is_number = [](std::string_view text) {
        return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
    };
    return dash != std::string_view::npos && is_number(name.substr(0, dash)) && is_number(name.substr(dash + 1));
}

/// Removes the file unless a running process is writing it.
void remove_if_left_behind(const std::filesystem::path& temporary) {
    const int found = ::open(temporary.c_str(), O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (found < 0) return;
    struct stat status {};
    if (::fstat(found, &status) == 0 && S_ISREG(status.st_mode) && mark_as_being_written(found))
        ::unlink(temporary.c_str());
    ::close(found);
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& path, const std::filesystem::path& like)
    : given_(path.string()), path_(path) {
    internal::open_standard_streams();
    internal::require_replaceable(path);
    path_ = followed(path);
    struct stat old {};
    const bool has_model = ::stat(path_.c_str(), &old) == 0 || (!like.empty() && ::stat(like.c_str(), &old) == 0);
    const mode_t at_first = has_model ? 0600 : 0666;
    if (!try_unnamed(at_first)) create_named(at_first);
    if (has_model) copy_mode_of(old);
    remove_stale_files(path_);
}

/// A file without a name disappears with its process, killed or not. Not every file system supports it.
bool AtomicFile::try_unnamed(mode_t mode) {
    if (::access("/proc/self/fd", X_OK) != 0) return false;  // the name is given through this path
    descriptor_ = ::open(directory_of(path_).c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, mode);
    if (descriptor_ < 0) return false;
    mark_as_being_written(descriptor_);
    return true;
}

void AtomicFile::create_named(mode_t mode) {
    for (;;) {
        temporary_ = next_name();
        descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        if (descriptor_ < 0 && errno == EEXIST) continue;
        if (descriptor_ < 0) {
            temporary_.clear();
            throw InvalidArgument("cannot write " + given_ + ": " + reason() + "; expected a writable directory");
        }
        // Before it was marked, another process may have considered it a dead writer's file and removed it.
        const bool marked = mark_as_being_written(descriptor_) || errno != EWOULDBLOCK;
        struct stat status {};
        if (marked && ::fstat(descriptor_, &status) == 0 && status.st_nlink > 0) return;
        ::close(std::exchange(descriptor_, -1));
    }
}

/// If the group cannot be preserved, its permissions become those of others, so that no other group gets them.
void AtomicFile::copy_mode_of(const struct stat& old) const {
    struct stat own {};
    if (::fstat(descriptor_, &own) != 0) return;
    mode_t mode = old.st_mode & 0777;
    if (own.st_gid != old.st_gid && ::fchown(descriptor_, static_cast<uid_t>(-1), old.st_gid) != 0)
        mode = (mode & ~mode_t{070}) | (mode & 07) << 3;
    // only root may change a file's owner
    [[maybe_unused]] const int given =
        own.st_uid != old.st_uid ? ::fchown(descriptor_, old.st_uid, static_cast<gid_t>(-1)) : 0;
    ::fchmod(descriptor_, mode);
}

std::string AtomicFile::next_name() const {
    static std::atomic<unsigned> count{0};
    return path_.string() + "." + std::to_string(::getpid()) + "-" + std::to_string(count++) + ".tmp";
}

/// If no file exists at the path, the name is the path at once.
void AtomicFile::link_name() {
    const std::string nameless = "/proc/self/fd/" + std::to_string(descriptor_);
    const auto link_as = [&](const std::string& name) {
        return ::linkat(AT_FDCWD, nameless.c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW) == 0;
    };
    if (link_as(path_.string())) return;
    std::string name;
    do {
        if (errno != EEXIST) fail("naming");
        name = next_name();
    } while (!link_as(name));
    temporary_ = name;
}

AtomicFile::~AtomicFile() {
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    if (descriptor_ >= 0) ::close(descriptor_);
}

void AtomicFile::fail(const char* action) const {
    const char* advice = errno == EFBIG ? "raise the limit of the file size (ulimit -f), or use another directory"
                                        : "free some space, or use another directory";
    throw DataError(given_ + ": offset " + std::to_string(written_) + ": " + action + " failed: " + reason() + "; " +
                    advice + " (the old file, if any, is unchanged)");
}

void AtomicFile::write(std::span<const std::byte> bytes) {
    if (bytes.empty()) return;
    std::optional<HeldSignal> error_only;
    if (exceeds_limit(written_ + bytes.size())) error_only.emplace(SIGXFSZ);
    while (!bytes.empty()) {
        const ssize_t put = ::write(descriptor_, bytes.data(), std::min(bytes.size(), largest_transfer));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) fail("writing");
        written_ += static_cast<std::uint64_t>(put);
        bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
}

void AtomicFile::overwrite(std::uint64_t offset, std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
        const ssize_t put = ::pwrite(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) fail("writing");
        offset += static_cast<std::uint64_t>(put);
        bytes = bytes.subspan(static_cast<std::size_t>(put));
    }
}

void AtomicFile::commit() {
    if (::fsync(descriptor_) != 0) fail("syncing");
    if (temporary_.empty()) link_name();
    if (!temporary_.empty() && ::rename(temporary_.c_str(), path_.c_str()) != 0) fail("renaming");
    temporary_.clear();
    ::close(std::exchange(descriptor_, -1));
    sync_parent_directory(path_);
}

bool same_file(const std::filesystem::path& one, const std::filesystem::path& other) {
    return internal::identity_of(one) == internal::identity_of(other);
}

void make_directories(const std::filesystem::path& directory) {
    if (directory.empty()) return;
    internal::require_trusted_links(directory);
    std::error_code failed;
    std::filesystem::create_directories(directory, failed);
    if (failed)
        throw InvalidArgument("cannot create the directory " + directory.string() + ": " + failed.message() +
                              "; expected a writable one");
}

void remove_stale_files(const std::filesystem::path& path) {
    std::error_code error;
    const std::string name = path.filename();
    for (std::filesystem::directory_iterator entry(directory_of(path), error), end; !error && entry != end;
         entry.increment(error))
        if (is_temporary_name(entry->path().filename().native(), name)) remove_if_left_behind(entry->path());
}

void sync_parent_directory(const std::filesystem::path& path) noexcept {
    const int directory = ::open(directory_of(path).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return;
    ::fsync(directory);
    ::close(directory);
}

}  // namespace lockstep
