// The file of a FileStore: a log of changes to its keys, shared by processes of one user. Its locks are OFD locks,
// which the kernel releases when a process dies. Every process that uses the file holds one. Content without a lock
// remains from a job whose processes are all dead.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/parallel/comm/store/key_table.h"
#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

/// Marks the file as in use while it lives.
class FilePresence {
public:
    /// Creates the file if it does not exist, and empties it if it is an unused store. Throws InvalidArgument if it
    /// cannot be used or others can change it, DataError if it is not a store, CommunicationError if its lock is not
    /// released in time.
    FilePresence(std::filesystem::path file, Store::Milliseconds timeout);
    const std::filesystem::path& file() const { return file_; }
    /// Whether that is the same file, and not another one that has its name now.
    bool is(const struct stat& other) const { return other.st_dev == device_ && other.st_ino == number_; }

private:
    bool enter(Store::Milliseconds timeout);

    std::filesystem::path file_;
    Descriptor descriptor_;
    dev_t device_ = 0;
    ino_t number_ = 0;
};

/// The file, opened, locked and read, for as long as this lives.
class LockedLog {
public:
    /// Throws as FilePresence, and CommunicationError when the file was removed.
    LockedLog(const FilePresence& presence, Store::Milliseconds timeout);
    KeyTable& keys() { return keys_; }
    void set(std::string_view key, std::string_view value) { append(Change::set, key, value); }
    void remove(std::string_view key) { append(Change::remove, key, {}); }
    void remove_file();

private:
    enum class Change : std::uint8_t { set, remove };
    void read();
    void append(Change change, std::string_view key, std::string_view value);

    const std::filesystem::path& file_;
    Descriptor descriptor_;
    KeyTable keys_;
    off_t end_ = 0;
};

}  // namespace lockstep
