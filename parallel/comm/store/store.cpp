#include "lockstep/parallel/comm/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/parallel/comm/store/deadline.h"
#include "lockstep/parallel/comm/store/store_protocol.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

void Store::require_key(std::string_view key) {
    if (key.empty() || key.size() > max_key_bytes)
        throw InvalidArgument(fmt::format("store: a key of {} bytes; expected 1 to {}", key.size(), max_key_bytes));
}

void Store::require_value(std::string_view key, std::string_view value) {
    require_key(key);
    if (value.size() > max_value_bytes)
        throw InvalidArgument(fmt::format("store: the value of '{}' has {} bytes; expected at most {}", key,
                                          value.size(), max_value_bytes));
}

std::unique_ptr<Store> Store::clone(Milliseconds timeout, Milliseconds connect_timeout) {
    constexpr Milliseconds first_pause(5), longest_pause(100);
    const Deadline deadline = deadline_in(connect_timeout);
    for (Milliseconds pause = first_pause;; pause = std::min(2 * pause, longest_pause)) {
        try {
            return clone(timeout);
        } catch (const NotAdmitted&) {  // another attempt would fail in the same way
            throw;
        } catch (const StoreEnded&) {  // nothing listens there any more
            throw;
        } catch (const CommunicationError&) {
            if (RunClock::now() >= deadline) throw;
        }
        pause_for(pause);
    }
}

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store)
    : prefix_(std::move(prefix)), store_(std::move(store)) {
    if (!store_) throw InvalidArgument("PrefixStore: the store is null");
}

void PrefixStore::set(std::string_view key, std::string_view value) {
    require_key(key);
    store_->set(prefix_ + std::string(key), value);
}

std::string PrefixStore::get(std::string_view key, Milliseconds timeout) {
    require_key(key);
    return store_->get(prefix_ + std::string(key), timeout);
}

std::optional<std::string> PrefixStore::try_get(std::string_view key) {
    require_key(key);
    return store_->try_get(prefix_ + std::string(key));
}

std::int64_t PrefixStore::add(std::string_view key, std::int64_t amount) {
    require_key(key);
    return store_->add(prefix_ + std::string(key), amount);
}

std::string PrefixStore::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
    require_key(key);
    return store_->compare_set(prefix_ + std::string(key), expected, desired);
}

bool PrefixStore::remove(std::string_view key) {
    require_key(key);
    return store_->remove(prefix_ + std::string(key));
}

std::int64_t PrefixStore::count() { return store_->count(); }

std::unique_ptr<Store> PrefixStore::clone(Milliseconds timeout) {
    return std::make_unique<PrefixStore>(prefix_, store_->clone(timeout));
}

Store::Milliseconds PrefixStore::time_limit() const { return store_->time_limit(); }

std::string PrefixStore::describe() const { return store_->describe(); }

}  // namespace lockstep
