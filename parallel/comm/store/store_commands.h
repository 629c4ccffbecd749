// Carries out the commands of a store's clients on its keys.
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "lockstep/parallel/comm/store/key_table.h"
#include "lockstep/parallel/comm/store/store_protocol.h"

namespace lockstep {

/// Result of a command.
struct Outcome {
    store_protocol::Answer answer = store_protocol::Answer::good;
    KeyTable::Value value;  ///< the answer's field; null: it has none
    std::string key;        ///< that the command was about
    bool changed = false;   ///< the key holds something new
    /// Set if the key does not exist: how long the client waits for it before it is answered.
    std::optional<std::chrono::milliseconds> patience;
    bool breach = false;  ///< not a command: the connection is closed after the answer
};

Outcome refusal(std::string_view why);
Outcome breach_of_protocol(std::string_view why = "unknown command");

/// Carries out `command`, which is none of connections: `hello`, `proof` and `append_on_loss` are breaches here.
Outcome carry_out(KeyTable& keys, store_protocol::Frame command);
/// Whether the keys have room for the value; a store is not meant for tensors.
bool has_room(const KeyTable& keys, std::string_view key, std::size_t value_size);
/// Whether the frame has the fields that its command has, of lengths that a store takes.
bool well_formed(const store_protocol::Frame& command);

}  // namespace lockstep
