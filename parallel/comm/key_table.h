// What a store keeps: the keys, and what may be done with them.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

class KeyTable {
public:
    const std::string* find(std::string_view key) const;
    void set(std::string_view key, std::string value) { values_.insert_or_assign(std::string(key), std::move(value)); }
    /// The sum; nothing when the key holds no number or the sum does not fit.
    std::optional<std::int64_t> add(std::string_view key, std::int64_t amount);
    /// See Store::compare_set; true when `desired` was stored.
    bool compare_set(std::string_view key, std::string_view expected, std::string_view desired);
    bool remove(std::string_view key);
    std::int64_t count() const { return static_cast<std::int64_t>(values_.size()); }

private:
    std::map<std::string, std::string, std::less<>> values_;
};

}  // namespace lockstep
