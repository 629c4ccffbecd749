// Values by key, of which only the recently used are cached.
#pragma once

#include <cstddef>
#include <list>
#include <string>
#include <string_view>
#include <utility>

namespace lockstep {

/// A list in the order of use. It has few entries, and mostly the first is requested, which costs one comparison.
template <class Value>
class RecentlyUsed {
public:
    /// The value under `key`, which becomes the most recently used; null if it does not exist.
    Value* find(std::string_view key) {
        for (auto entry = entries_.begin(); entry != entries_.end(); ++entry)
            if (entry->key == key) {
                entries_.splice(entries_.begin(), entries_, entry);
                return &entry->value;
            }
        return nullptr;
    }
    /// Adds `value`, whose address does not change until it is dropped.
    Value& add(std::string_view key, Value value) {
        entries_.push_front({std::string(key), std::move(value)});
        return entries_.front().value;
    }
    /// Whether `add` would exceed `limit`.
    bool full(std::size_t limit) const { return entries_.size() >= limit; }
    template <class Wanted>
    bool any_of(Wanted&& wanted) const {
        for (const Entry& entry : entries_)
            if (wanted(entry.value)) return true;
        return false;
    }
    /// Calls `visit` for all values except the `count` that were used last.
    template <class Visit>
    void for_each_beyond(std::size_t count, Visit&& visit) {
        for (Entry& entry : entries_)
            if (count > 0)
                --count;
            else
                visit(entry.value);
    }
    /// Drops all values for which `goes` is true.
    template <class Goes>
    void drop_if(Goes&& goes) {
        entries_.remove_if([&](const Entry& entry) { return goes(entry.value); });
    }
    /// Makes room for one more under `limit`: drops the least recently used, but only values that are `idle`.
    template <class Idle>
    void make_room(std::size_t limit, Idle&& idle) {
        for (auto entry = entries_.end(); full(limit) && entry != entries_.begin();) {
            --entry;
            if (idle(entry->value)) entry = entries_.erase(entry);
        }
    }

private:
    struct Entry {
        std::string key;
        Value value;
    };
    std::list<Entry> entries_;
};

}  // namespace lockstep
