// Carries out the commands of a store's clients on its keys.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/parallel/comm/store/store_protocol.h"

namespace lockstep {

// The keys of a store and the operations on them.

class KeyTable {
public:
    /// Shared, because it may still be in flight to a client when the key gets another value.
    using Value = std::shared_ptr<const std::string>;
    /// Maximum overhead of a key in addition to its bytes and those of its value.
    static constexpr std::size_t cost_of_key = 192;

    /// Null if the key is not set.
    Value find(std::string_view key) const;
    void set(std::string_view key, std::string value);
    /// The sum; nullopt if the value is not a number or the sum does not fit.
    std::optional<std::int64_t> add(std::string_view key, std::int64_t amount);
    /// See Store::compare_set; true if `desired` was stored.
    bool compare_set(std::string_view key, std::string_view expected, std::string_view desired);
    bool remove(std::string_view key);
    std::int64_t count() const { return static_cast<std::int64_t>(values_.size()); }
    /// Size of all keys and values, including overhead.
    std::size_t bytes() const { return bytes_; }

private:
    std::map<std::string, Value, std::less<>> values_;
    std::size_t bytes_ = 0;
};

/// Result of a command.
struct Outcome {
    store_protocol::Answer answer = store_protocol::Answer::good;
    KeyTable::Value value;  ///< the answer's field; null: none
    std::string key;        ///< key of the command
    bool changed = false;   ///< the key has a new value
    /// Set if the key does not exist: how long the client waits for it before it is answered.
    std::optional<std::chrono::milliseconds> patience;
    bool breach = false;  ///< not a valid command: the connection is closed after the answer
};

Outcome refusal(std::string_view why);
Outcome breach_of_protocol(std::string_view why = "unknown command");

/// Carries out `command`, except those that concern connections: `hello`, `proof` and `append_on_loss` are breaches
/// here.
Outcome execute_command(KeyTable& keys, store_protocol::Frame command);
/// Whether the keys have room for the value; a store is not meant for tensors.
bool has_room(const KeyTable& keys, std::string_view key, std::size_t value_size);
/// Whether the frame has the fields of its command, with valid lengths.
bool well_formed(const store_protocol::Frame& command);

}  // namespace lockstep
