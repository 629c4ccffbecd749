#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "lockstep/parallel/comm/backoff.h"
#include "lockstep/parallel/comm/key_table.h"
#include "lockstep/parallel/comm/sockets.h"
#include "lockstep/parallel/comm/store_protocol.h"
#include "lockstep/parallel/store.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

// The file is a log of frames, each the change of one key, behind a magic word: writers append under a lock, so a
// process that dies in the middle leaves at most one torn frame at the end, which the next writer cuts off.
constexpr std::string_view head = "lockstep file store 1\n";
enum class Change : std::uint8_t { set, remove };

/// The file, opened and locked for as long as this lives.
class LockedLog {
public:
    /// `create`: 0, or O_CREAT to make the file where there is none. `timeout`: for others to let go of it.
    LockedLog(const std::filesystem::path& file, Store::Milliseconds timeout, int create = 0)
        : file_(file), descriptor_(open(file.c_str(), O_RDWR | create | O_CLOEXEC, 0600)) {
        if (!descriptor_ && create == 0 && errno == ENOENT)
            throw CommunicationError(fmt::format("file store {}: it was removed: the job has ended", file.string()));
        if (!descriptor_)
            throw InvalidArgument(
                fmt::format("file store {}: {}; name a file in a directory that all processes can write", file.string(),
                            text_of(errno)));
        lock(timeout);
        read();
    }

    KeyTable& keys() { return keys_; }

    void append(Change change, std::string_view key, std::string_view value) {
        const std::string bytes = (end_ == 0 ? std::string(head) : std::string()) +
                                  store_protocol::encode(static_cast<std::uint8_t>(change), {key, value});
        if (ftruncate(descriptor_.get(), end_) != 0) fail("cut");
        for (std::size_t done = 0; done < bytes.size();) {
            const ssize_t written =
                pwrite(descriptor_.get(), bytes.data() + done, bytes.size() - done, end_ + static_cast<off_t>(done));
            if (written < 0 && errno == EINTR) continue;
            if (written < 0) fail("write to");
            done += static_cast<std::size_t>(written);
        }
        end_ += static_cast<off_t>(bytes.size());
    }

private:
    [[noreturn]] void fail(const char* what) const {
        throw CommunicationError(
            fmt::format("file store {}: cannot {} it: {}; look at the disk", file_.string(), what, text_of(errno)));
    }

    /// Does not sleep in the kernel: a process that was stopped may hold the lock.
    void lock(Store::Milliseconds timeout) const {
        const Deadline deadline = std::chrono::steady_clock::now() + timeout;
        for (Backoff backoff(0); flock(descriptor_.get(), LOCK_EX | LOCK_NB) != 0; backoff.pause()) {
            if (errno != EWOULDBLOCK && errno != EINTR) fail("lock");
            if (std::chrono::steady_clock::now() >= deadline)
                throw CommunicationError(
                    fmt::format("file store {}: another process has held its lock for {} ms; is one of them stopped?",
                                file_.string(), timeout.count()));
        }
    }

    void read() {
        struct stat info {};
        if (fstat(descriptor_.get(), &info) != 0) fail("look at");
        std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
        for (std::size_t done = 0; done < bytes.size();) {
            const ssize_t got =
                pread(descriptor_.get(), bytes.data() + done, bytes.size() - done, static_cast<off_t>(done));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) fail("read");
            if (got == 0) bytes.resize(done);
            done += static_cast<std::size_t>(got);
        }
        const std::string_view all(bytes);
        if (all.empty() || (all.size() < head.size() && head.starts_with(all))) return;
        if (!all.starts_with(head))
            throw DataError(fmt::format("file store {}: byte 0: this is no store; name a new file", file_.string()));
        std::size_t at = head.size();
        while (all.size() - at >= 4) {
            const std::size_t size = store_protocol::length_of(all.substr(at));
            if (size > store_protocol::longest_frame)
                throw DataError(fmt::format("file store {}: byte {}: damaged; name a new file", file_.string(), at));
            if (all.size() - at - 4 < size) break;  // torn
            const auto frame = store_protocol::decode(all.substr(at + 4, size));
            if (!frame || frame->fields.size() != 2 || frame->kind > static_cast<std::uint8_t>(Change::remove))
                throw DataError(fmt::format("file store {}: byte {}: damaged; name a new file", file_.string(), at));
            if (static_cast<Change>(frame->kind) == Change::set)
                keys_.set(frame->fields[0], frame->fields[1]);
            else
                keys_.remove(frame->fields[0]);
            at += 4 + size;
        }
        end_ = static_cast<off_t>(at);
    }

    std::filesystem::path file_;
    Descriptor descriptor_;
    KeyTable keys_;
    off_t end_ = 0;
};

}  // namespace

FileStore::FileStore(std::filesystem::path file, Milliseconds timeout) : file_(std::move(file)), timeout_(timeout) {
    LockedLog log(file_, timeout_, O_CREAT);
}

void FileStore::set(std::string_view key, std::string_view value) {
    require_value(key, value);
    LockedLog(file_, timeout_).append(Change::set, key, value);
}

std::string FileStore::get(std::string_view key, Milliseconds timeout) {
    const Deadline deadline = std::chrono::steady_clock::now() + timeout;
    std::chrono::milliseconds pause(1);
    for (;;) {
        if (std::optional<std::string> value = try_get(key)) return std::move(*value);
        if (std::chrono::steady_clock::now() >= deadline)
            throw CommunicationError(
                fmt::format("{}: get '{}': nobody has set it for {} ms", describe(), key, timeout.count()));
        std::this_thread::sleep_for(pause);
        pause = std::min(pause * 2, std::chrono::milliseconds(50));
    }
}

std::optional<std::string> FileStore::try_get(std::string_view key) {
    require_key(key);
    LockedLog log(file_, timeout_);
    const std::string* value = log.keys().find(key);
    return value ? std::optional(*value) : std::nullopt;
}

std::int64_t FileStore::add(std::string_view key, std::int64_t amount) {
    require_key(key);
    LockedLog log(file_, timeout_);
    const std::optional<std::int64_t> sum = log.keys().add(key, amount);
    if (!sum)
        throw CommunicationError(fmt::format(
            "{}: add to '{}': the key holds no number, or the sum does not fit in 64 bits", describe(), key));
    log.append(Change::set, key, std::to_string(*sum));
    return *sum;
}

std::string FileStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
    require_value(key, expected);
    require_value(key, desired);
    LockedLog log(file_, timeout_);
    if (log.keys().compare_set(key, expected, desired)) log.append(Change::set, key, desired);
    const std::string* value = log.keys().find(key);
    return value ? *value : std::string();
}

bool FileStore::remove(std::string_view key) {
    require_key(key);
    LockedLog log(file_, timeout_);
    if (!log.keys().remove(key)) return false;
    log.append(Change::remove, key, {});
    return true;
}

std::int64_t FileStore::count() { return LockedLog(file_, timeout_).keys().count(); }

std::unique_ptr<Store> FileStore::clone(Milliseconds timeout) {
    auto other = std::make_unique<FileStore>(*this);  // does not make the file again
    other->timeout_ = timeout;
    return other;
}

std::string FileStore::describe() const { return fmt::format("file store {}", file_.string()); }

}  // namespace lockstep
