// The file of a FileStore: a log of changes to its keys, shared by processes of one user. Its locks are OFD locks,
// which the kernel releases when a process dies. Every process that uses the file holds one. Content without a lock
// remains from a job whose processes are all dead.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string_view>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/parallel/comm/store/store_commands.h"

namespace lockstep {

/// Marks the file as in use while this exists.
class FilePresence {
public:
    /// Creates the file if it does not exist, and empties it if it is an unused store. Throws InvalidArgument if it
    /// cannot be used or others can change it, DataError if it is not a store, CommunicationError if its lock is not
    /// released in time.
    FilePresence(std::filesystem::path file, Store::Milliseconds timeout);
    const std::filesystem::path& file() const { return file_; }
    /// Whether `other` is the same file, and not a new one with the same name.
    bool is(const struct stat& other) const { return other.st_dev == device_ && other.st_ino == number_; }

    /// The keys as of byte `end` of the file. It only grows while a process uses it, so nothing is read twice.
    struct Content {
        std::mutex mutex;
        KeyTable keys;
        off_t end = 0;

        /// The next log reads the whole file.
        void clear() {
            keys = KeyTable();
            end = 0;
        }
    };
    Content& content() const { return *content_; }

private:
    bool enter(Store::Milliseconds timeout);

    std::filesystem::path file_;
    Descriptor descriptor_;
    dev_t device_ = 0;
    ino_t number_ = 0;
    std::unique_ptr<Content> content_ = std::make_unique<Content>();
};

/// The file, opened, locked and read, while this exists.
class LockedLog {
public:
    /// Throws as FilePresence, and CommunicationError if the file was removed.
    LockedLog(const FilePresence& presence, Store::Milliseconds timeout);
    /// If an exception is in flight, a change of the keys may not have been written: they are cleared.
    ~LockedLog();
    LockedLog(const LockedLog&) = delete;
    LockedLog& operator=(const LockedLog&) = delete;

    KeyTable& keys() { return content_.keys; }
    void set(std::string_view key, std::string_view value) { append(Change::set, key, value); }
    void remove(std::string_view key) { append(Change::remove, key, {}); }
    void remove_file();

private:
    enum class Change : std::uint8_t { set, remove };
    void read(off_t size_now);
    void append(Change change, std::string_view key, std::string_view value);

    const std::filesystem::path& file_;
    FilePresence::Content& content_;
    const int exceptions_;  ///< in flight when this was created
    Descriptor descriptor_;
    std::unique_lock<std::mutex> lock_;  ///< taken after the file's lock, which excludes other threads as well
};

}  // namespace lockstep
