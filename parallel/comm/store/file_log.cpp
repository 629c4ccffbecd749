#include "lockstep/parallel/comm/store/file_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <exception>
#include <optional>
#include <string>
#include <utility>

#include "lockstep/parallel/comm/store/deadline.h"
#include "lockstep/parallel/comm/store/store_protocol.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/held_signal.h"
#include "lockstep/runtime/internal/trusted_links.h"

namespace lockstep {

namespace {

// Frames, each the change of one key, after a magic word: writers append under a lock, so a process that dies in the
// middle leaves at most one torn frame at the end, which the next writer cuts off.
constexpr std::string_view any_head = "lockstep file store ", head = "lockstep file store 2\n";

/// Locked bytes, far beyond the written ones: exclusively by the process that reads or writes, and shared by all that
/// use the file.
constexpr off_t writer = off_t{1} << 40, presence = writer + 1;

[[noreturn]] void fail(const std::filesystem::path& file, const char* what) {
    throw CommunicationError(fmt::format("file store {}: cannot {} it: {}", file.string(), what, text_of(errno)));
}

[[noreturn]] void unfit(const std::filesystem::path& file, const std::string& why) {
    throw InvalidArgument(
        fmt::format("file store {}: {}; expected a file of this user in a directory that no other user can write",
                    file.string(), why));
}

struct flock lock_of(off_t byte, short kind) {
    struct flock lock {};
    lock.l_type = kind;
    lock.l_whence = SEEK_SET;
    lock.l_start = byte;
    lock.l_len = 1;
    return lock;
}

bool set_lock(const Descriptor& descriptor, off_t byte, short kind) {
    struct flock lock = lock_of(byte, kind);
    return fcntl(descriptor.get(), F_OFD_SETLK, &lock) == 0;
}

/// Polls instead of sleeping in the kernel, because a stopped process may hold the lock.
void lock_for_writing(const std::filesystem::path& file, const Descriptor& descriptor, Store::Milliseconds timeout) {
    const Deadline deadline = deadline_in(timeout);
    for (Backoff backoff(0); !set_lock(descriptor, writer, F_WRLCK); backoff.pause()) {
        if (errno != EAGAIN && errno != EACCES && errno != EINTR) fail(file, "lock");
        if (RunClock::now() >= deadline)
            throw CommunicationError(
                fmt::format("file store {}: another process has held its lock for {} ms and may be stopped",
                            file.string(), timeout.count()));
    }
}

bool is_in_use(const std::filesystem::path& file, const Descriptor& descriptor) {
    struct flock lock = lock_of(presence, F_WRLCK);
    if (fcntl(descriptor.get(), F_OFD_GETLK, &lock) != 0) fail(file, "check for locks of");
    return lock.l_type != F_UNLCK;
}

struct stat look_at(const std::filesystem::path& file, const Descriptor& descriptor) {
    struct stat found {};
    if (fstat(descriptor.get(), &found) != 0) fail(file, "look at");
    return found;
}

/// Refuses a directory in which every user can rename and remove the files of others.
void require_safe_directory(const std::filesystem::path& file) {
    const std::filesystem::path parent = file.has_parent_path() ? file.parent_path() : ".";
    struct stat found {};
    if (stat(parent.c_str(), &found) == 0 && (found.st_mode & S_IWOTH) != 0 && (found.st_mode & S_ISVTX) == 0)
        unfit(file, fmt::format("any user can replace files in {}", parent.string()));
}

/// Opens a file that this user owns and no other user can write; nullopt if it does not exist.
std::optional<Descriptor> open_own(const std::filesystem::path& file, int create) {
    // O_NONBLOCK, because the path may be a device instead of a file.
    Descriptor descriptor(open(file.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | create, 0600));
    if (!descriptor) {
        if (errno == ENOENT && create == 0) return std::nullopt;
        if (errno == ELOOP) unfit(file, "it is a symbolic link, whose target is not verified");
        if (errno == EACCES) unfit(file, fmt::format("user {} may not read and write it", geteuid()));
        throw InvalidArgument(fmt::format("file store {}: {}; expected a directory that all processes can write",
                                          file.string(), text_of(errno)));
    }
    const struct stat found = look_at(file, descriptor);
    if (!S_ISREG(found.st_mode)) unfit(file, "it is not a regular file");
    if (found.st_uid != geteuid())
        unfit(file, fmt::format("it belongs to user {}, this process to user {}", found.st_uid, geteuid()));
    if ((found.st_mode & (S_IWGRP | S_IWOTH)) != 0)
        unfit(file, fmt::format("others can write it (mode {:03o})", found.st_mode & 0777U));
    return descriptor;
}

/// Bytes [begin, end).
std::string content_of(const std::filesystem::path& file, const Descriptor& descriptor, off_t begin, off_t end) {
    std::string bytes(static_cast<std::size_t>(end - begin), '\0');
    for (std::size_t done = 0; done < bytes.size();) {
        const ssize_t got =
            pread(descriptor.get(), bytes.data() + done, bytes.size() - done, begin + static_cast<off_t>(done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail(file, "read");
        if (got == 0) bytes.resize(done);
        done += static_cast<std::size_t>(got);
    }
    return bytes;
}

/// False if it is empty or ends within the magic word because a process died while writing it.
bool has_content(const std::filesystem::path& file, std::string_view bytes) {
    if (bytes.empty() || (bytes.size() < head.size() && head.starts_with(bytes))) return false;
    if (bytes.starts_with(head)) return true;
    if (bytes.starts_with(any_head))
        throw DataError(fmt::format("file store {}: byte {}: written by another version of Lockstep; remove it",
                                    file.string(), any_head.size()));
    throw DataError(fmt::format("file store {}: byte 0: not a file store; expected a new file", file.string()));
}

}  // namespace

FilePresence::FilePresence(std::filesystem::path file, Store::Milliseconds timeout) : file_(std::move(file)) {
    internal::require_trusted_links(file_);
    require_safe_directory(file_);
    while (!enter(timeout)) {
    }
}

/// Returns false if the file was removed in the meantime.
bool FilePresence::enter(Store::Milliseconds timeout) {
    descriptor_ = std::move(*open_own(file_, O_CREAT));
    lock_for_writing(file_, descriptor_, timeout);
    const struct stat found = look_at(file_, descriptor_);
    struct stat named {};
    if (stat(file_.c_str(), &named) != 0 || named.st_dev != found.st_dev || named.st_ino != found.st_ino) return false;
    device_ = found.st_dev;
    number_ = found.st_ino;
    if (has_content(file_, content_of(file_, descriptor_, 0, found.st_size)) && !is_in_use(file_, descriptor_) &&
        ftruncate(descriptor_.get(), 0) != 0)
        fail(file_, "empty");
    if (!set_lock(descriptor_, presence, F_RDLCK) || !set_lock(descriptor_, writer, F_UNLCK)) fail(file_, "lock");
    return true;
}

LockedLog::LockedLog(const FilePresence& present, Store::Milliseconds timeout)
    : file_(present.file()), content_(present.content()), exceptions_(std::uncaught_exceptions()) {
    const auto removed = [&] {
        return CommunicationError(fmt::format("file store {}: it was removed: the job has ended", file_.string()));
    };
    std::optional<Descriptor> opened = open_own(file_, 0);
    if (!opened) throw removed();
    descriptor_ = std::move(*opened);
    lock_for_writing(file_, descriptor_, timeout);
    const struct stat found = look_at(file_, descriptor_);
    if (found.st_nlink == 0 || !present.is(found)) throw removed();
    lock_ = std::unique_lock(content_.mutex);
    read(found.st_size);
}

LockedLog::~LockedLog() {
    if (std::uncaught_exceptions() != exceptions_) content_.clear();
}

void LockedLog::append(Change change, std::string_view key, std::string_view value) {
    const std::string bytes = (content_.end == 0 ? std::string(head) : std::string()) +
                              store_protocol::encode(static_cast<std::uint8_t>(change), {key, value});
    if (ftruncate(descriptor_.get(), content_.end) != 0) fail(file_, "cut");
    off_t at = content_.end;  // `content_` has this change when the log is read again
    const HeldSignal error_only(SIGXFSZ);
    for (std::size_t done = 0; done < bytes.size();) {
        const ssize_t written = pwrite(descriptor_.get(), bytes.data() + done, bytes.size() - done, at);
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail(file_, "write to");
        done += static_cast<std::size_t>(written);
        at += written;
    }
}

void LockedLog::remove_file() {
    if (unlink(file_.c_str()) != 0) fail(file_, "remove");
}

void LockedLog::read(off_t size_now) {
    KeyTable& keys = content_.keys;
    if (size_now < content_.end) content_.clear();  // others have changed the file; reading it says how
    const std::string bytes = content_of(file_, descriptor_, content_.end, size_now);
    std::string_view left(bytes);
    if (content_.end == 0) {
        if (!has_content(file_, bytes)) return;
        left.remove_prefix(head.size());
        content_.end = static_cast<off_t>(head.size());
    }
    const auto damaged = [&] {
        return DataError(
            fmt::format("file store {}: byte {}: damaged; expected a new file", file_.string(), content_.end));
    };
    while (left.size() >= 4) {
        const std::size_t size = store_protocol::length_of(left);
        if (size > store_protocol::max_frame_bytes) throw damaged();
        if (left.size() - 4 < size) break;  // torn frame
        const auto frame = store_protocol::decode(left.substr(4, size));
        if (!frame || frame->fields.size() != 2 || frame->kind > static_cast<std::uint8_t>(Change::remove))
            throw damaged();
        if (static_cast<Change>(frame->kind) == Change::set)
            keys.set(frame->fields[0], frame->fields[1]);
        else
            keys.remove(frame->fields[0]);
        left.remove_prefix(4 + size);
        content_.end += static_cast<off_t>(4 + size);
    }
}

}  // namespace lockstep
