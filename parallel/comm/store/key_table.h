// The keys of a store and the operations on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

class KeyTable {
public:
    /// Shared: it may still be sent to a client when the key gets another one.
    using Value = std::shared_ptr<const std::string>;
    /// Maximum overhead of a key in addition to its bytes and those of its value.
    static constexpr std::size_t cost_of_key = 192;

    /// Null if the key is not set.
    Value find(std::string_view key) const;
    void set(std::string_view key, std::string value);
    /// The sum; nothing when the key holds no number or the sum does not fit.
    std::optional<std::int64_t> add(std::string_view key, std::int64_t amount);
    /// See Store::compare_set; true when `desired` was stored.
    bool compare_set(std::string_view key, std::string_view expected, std::string_view desired);
    bool remove(std::string_view key);
    std::int64_t count() const { return static_cast<std::int64_t>(values_.size()); }
    /// Size of all keys and values, including overhead.
    std::size_t bytes() const { return bytes_; }

private:
    std::map<std::string, Value, std::less<>> values_;
    std::size_t bytes_ = 0;
};

}  // namespace lockstep
