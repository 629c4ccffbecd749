#include "lockstep/parallel/comm/key_table.h"

#include <charconv>

namespace lockstep {

const std::string* KeyTable::find(std::string_view key) const {
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
}

std::optional<std::int64_t> KeyTable::add(std::string_view key, std::int64_t amount) {
    std::int64_t sum = 0;
    if (const std::string* value = find(key)) {
        const char* end = value->data() + value->size();
        const auto [rest, error] = std::from_chars(value->data(), end, sum);
        if (error != std::errc() || rest != end) return std::nullopt;
    }
    if (__builtin_add_overflow(sum, amount, &sum)) return std::nullopt;
    set(key, std::to_string(sum));
    return sum;
}

bool KeyTable::compare_set(std::string_view key, std::string_view expected, std::string_view desired) {
    const std::string* value = find(key);
    if (value ? *value != expected : !expected.empty()) return false;
    set(key, std::string(desired));
    return true;
}

bool KeyTable::remove(std::string_view key) {
    const auto found = values_.find(key);
    if (found == values_.end()) return false;
    values_.erase(found);
    return true;
}

}  // namespace lockstep
