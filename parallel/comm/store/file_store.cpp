#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "lockstep/parallel/comm/store.h"
#include "lockstep/parallel/comm/store/file_log.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

FileStore::FileStore(std::filesystem::path file, Milliseconds timeout)
    : presence_(std::make_shared<const FilePresence>(std::move(file), timeout)), timeout_(timeout) {}

void FileStore::set(std::string_view key, std::string_view value) {
    require_value(key, value);
    LockedLog(*presence_, timeout_).set(key, value);
}

std::string FileStore::get(std::string_view key, Milliseconds timeout) {
    const Deadline deadline = deadline_in(timeout);
    std::chrono::milliseconds pause(1);
    for (;;) {
        if (std::optional<std::string> value = try_get(key)) return std::move(*value);
        if (RunClock::now() >= deadline)
            throw CommunicationError(
                fmt::format("{}: get '{}': the key was not set within {} ms", describe(), key, timeout.count()));
        std::this_thread::sleep_for(pause);
        pause = std::min(pause * 2, std::chrono::milliseconds(50));
    }
}

std::optional<std::string> FileStore::try_get(std::string_view key) {
    require_key(key);
    LockedLog log(*presence_, timeout_);
    const KeyTable::Value value = log.keys().find(key);
    return value ? std::optional(*value) : std::nullopt;
}

std::int64_t FileStore::add(std::string_view key, std::int64_t amount) {
    require_key(key);
    LockedLog log(*presence_, timeout_);
    const std::optional<std::int64_t> sum = log.keys().add(key, amount);
    if (!sum)
        throw CommunicationError(fmt::format(
            "{}: add to '{}': the value is not a number, or the sum does not fit in 64 bits", describe(), key));
    log.set(key, std::to_string(*sum));
    return *sum;
}

std::string FileStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
    require_value(key, expected);
    require_value(key, desired);
    LockedLog log(*presence_, timeout_);
    if (log.keys().compare_set(key, expected, desired)) log.set(key, desired);
    const KeyTable::Value value = log.keys().find(key);
    return value ? *value : std::string();
}

bool FileStore::remove(std::string_view key) {
    require_key(key);
    LockedLog log(*presence_, timeout_);
    if (!log.keys().remove(key)) return false;
    log.remove(key);
    return true;
}

std::int64_t FileStore::count() { return LockedLog(*presence_, timeout_).keys().count(); }

std::unique_ptr<Store> FileStore::clone(Milliseconds time_limit) {
    return std::unique_ptr<Store>(new FileStore(presence_, time_limit));
}

void FileStore::remove_file(Milliseconds timeout) { LockedLog(*presence_, timeout).remove_file(); }

std::string FileStore::describe() const { return fmt::format("file store {}", presence_->file().string()); }

}  // namespace lockstep
