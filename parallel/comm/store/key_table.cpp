#include "lockstep/parallel/comm/store/key_table.h"

#include <charconv>
#include <utility>

namespace lockstep {

KeyTable::Value KeyTable::find(std::string_view key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : found->second;
}

void KeyTable::set(std::string_view key, std::string value) {
    auto found = values_.find(key);
    if (found == values_.end()) {
        found = values_.emplace(key, std::make_shared<const std::string>()).first;
        bytes_ += key.size() + cost_of_key;
    }
    bytes_ = bytes_ - found->second->size() + value.size();
    found->second = std::make_shared<const std::string>(std::move(value));
}

std::optional<std::int64_t> KeyTable::add(std::string_view key, std::int64_t amount) {
    std::int64_t sum = 0;
    if (const Value value = find(key)) {
        const char* end = value->data() + value->size();
        const auto [rest, error] = std::from_chars(value->data(), end, sum);
        if (error != std::errc() || rest != end) return std::nullopt;
    }
    if (__builtin_add_overflow(sum, amount, &sum)) return std::nullopt;
    set(key, std::to_string(sum));
    return sum;
}

bool KeyTable::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
    const Value value = find(key);
    if (value ? *value != expected : !expected.empty()) return false;
    set(key, std::string(desired));
    return true;
}

bool KeyTable::remove(std::string_view key) {
    const auto found = values_.find(key);
    if (found == values_.end()) return false;
    bytes_ -= key.size() + cost_of_key + found->second->size();
    values_.erase(found);
    return true;
}

}  // namespace lockstep
