#include "lockstep/parallel/comm/store/store_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/parallel/comm/store.h"

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

using namespace store_protocol;

namespace {

constexpr std::size_t max_bytes = std::size_t{256} << 20;

/// Number of fields of a command.
std::size_t fields_of(Command command) {
    switch (command) {
        case Command::count: return 0;
        case Command::try_get:
        case Command::proof:
        case Command::remove: return 1;
        case Command::compare_set: return 3;
        case Command::hello:
        case Command::set:
        case Command::get:
        case Command::add:
        case Command::append_on_loss: break;
    }
    return 2;
}

KeyTable::Value value_of(std::string text) { return std::make_shared<const std::string>(std::move(text)); }

Outcome full(const KeyTable& keys) {
    return refusal(fmt::format("the store is full: it holds {} bytes in {} keys, at most {} are allowed", keys.bytes(),
                               keys.count(), max_bytes));
}

void set(KeyTable& keys, Frame& command, Outcome& outcome) {
    if (!has_room(keys, outcome.key, command.fields[1].size())) {
        outcome = full(keys);
        return;
    }
    keys.set(outcome.key, std::move(command.fields[1]));
    outcome.changed = true;
}

void get(const KeyTable& keys, const Frame& command, Outcome& outcome) {
    constexpr std::int64_t longest = std::int64_t{1} << 40;
    const std::optional<std::int64_t> milliseconds = number(command.fields[1]);
    if (!milliseconds) {
        outcome = breach_of_protocol();
        return;
    }
    outcome.value = keys.find(outcome.key);
    if (!outcome.value)
        outcome.patience = std::chrono::milliseconds(std::clamp<std::int64_t>(*milliseconds, 0, longest));
}

void add(KeyTable& keys, const Frame& command, Outcome& outcome) {
    constexpr std::size_t longest_number = 20;
    const std::optional<std::int64_t> amount = number(command.fields[1]);
    if (!amount) {
        outcome = breach_of_protocol();
    } else if (!has_room(keys, outcome.key, longest_number)) {
        outcome = full(keys);
    } else if (const std::optional<std::int64_t> sum = keys.add(outcome.key, *amount)) {
        outcome.value = value_of(number(*sum));
        outcome.changed = true;
    } else {
        outcome = refusal("the value is not a number, or the sum does not fit in 64 bits");
    }
}

void compare_set(KeyTable& keys, const Frame& command, Outcome& outcome) {
    if (!has_room(keys, outcome.key, command.fields[2].size())) {
        outcome = full(keys);
        return;
    }
    outcome.changed = keys.compare_set(outcome.key, command.fields[1], command.fields[2]);
    outcome.value = keys.find(outcome.key);
    if (!outcome.value) outcome.value = value_of({});
}

}  // namespace

Outcome refusal(std::string_view why) {
    Outcome outcome;
    outcome.answer = Answer::refused;
    outcome.value = value_of(std::string(why));
    return outcome;
}

Outcome breach_of_protocol(std::string_view why) {
    Outcome outcome = refusal(why);
    outcome.breach = true;
    return outcome;
}

bool well_formed(const Frame& command) {
    const std::size_t wanted = fields_of(static_cast<Command>(command.kind));
    if (command.fields.size() != wanted) return false;
    if (wanted > 0 && (command.fields[0].empty() || command.fields[0].size() > Store::max_key_bytes)) return false;
    return std::all_of(command.fields.begin(), command.fields.end(),
                       [](const std::string& field) { return field.size() <= Store::max_value_bytes; });
}

bool has_room(const KeyTable& keys, std::string_view key, std::size_t value_size) {
    const KeyTable::Value before = keys.find(key);
    const std::size_t more = before ? value_size : value_size + key.size() + KeyTable::cost_of_key;
    return keys.bytes() - (before ? before->size() : 0) + more <= max_bytes;
}

Outcome execute_command(KeyTable& keys, Frame command) {
    if (!well_formed(command)) return breach_of_protocol();
    Outcome outcome;
    if (!command.fields.empty()) outcome.key = std::move(command.fields[0]);
    switch (static_cast<Command>(command.kind)) {
        case Command::set: set(keys, command, outcome); break;
        case Command::get: get(keys, command, outcome); break;
        case Command::try_get:
            outcome.value = keys.find(outcome.key);
            if (!outcome.value) outcome.answer = Answer::missing;
            break;
        case Command::add: add(keys, command, outcome); break;
        case Command::compare_set: compare_set(keys, command, outcome); break;
        case Command::remove: outcome.value = value_of(number(keys.remove(outcome.key) ? 1 : 0)); break;
        case Command::count: outcome.value = value_of(number(keys.count())); break;
        case Command::hello:
        case Command::proof:
        case Command::append_on_loss:
        default: return breach_of_protocol();
    }
    return outcome;
}

}  // namespace lockstep
