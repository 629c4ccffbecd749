#include "lockstep/parallel/run_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <string_view>
#include <system_error>

#include "lockstep/ops/adaptive_rates.h"
#include "lockstep/ops/grad_scaler.h"
#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// Parses the whole text, independent of the locale. Lockstep has written a decimal comma in some locales.
std::optional<double> number_from(std::string text) {
    if (const auto comma = text.find(','); comma != std::string::npos) text[comma] = '.';
    std::string_view rest = text;
    const bool negative = rest.starts_with('-');
    if (negative) rest.remove_prefix(1);
    const bool hexadecimal = rest.starts_with("0x");
    if (hexadecimal) rest.remove_prefix(2);
    if (rest.starts_with('-')) return std::nullopt;
    double value = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), value,
                                              hexadecimal ? std::chars_format::hex : std::chars_format::general);
    if (error != std::errc() || end != rest.data() + rest.size()) return std::nullopt;
    return negative ? -value : value;
}

}  // namespace

std::string field_of(double value) {
    std::array<char, 40> digits{};
    const double size = std::abs(value);
    const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), size, std::chars_format::hex);
    return fmt::format("{}{}{}", std::signbit(value) ? "-" : "", std::isfinite(value) ? "0x" : "",
                       std::string_view(digits.data(), static_cast<std::size_t>(end - digits.data())));
}

std::optional<double> number_in(const RunState& run, const std::string& field) {
    const auto found = run.fields.find(field);
    if (found == run.fields.end()) return std::nullopt;
    if (const auto value = number_from(found->second)) return value;
    throw DataError(fmt::format("the checkpoint's field '{}' is '{}'; expected a number", field, found->second));
}

namespace {

constexpr std::string_view scaler_owner = "grad_scaler";

bool belongs(std::string_view field, std::string_view owner) {
    return field.size() > owner.size() && field.starts_with(owner) && field[owner.size()] == ' ';
}

/// Replaces the owner's numbers.
void keep(std::string_view owner, const std::map<std::string, double>& numbers, RunState& run) {
    std::erase_if(run.fields, [&](const auto& field) { return belongs(field.first, owner); });
    for (const auto& [name, value] : numbers) run.fields[fmt::format("{} {}", owner, name)] = field_of(value);
}

/// Empty if the owner has none.
std::map<std::string, double> kept(std::string_view owner, const RunState& run) {
    std::map<std::string, double> numbers;
    for (const auto& [field, text] : run.fields) {
        if (!belongs(field, owner)) continue;
        numbers[field.substr(owner.size() + 1)] = *number_in(run, field);
    }
    return numbers;
}

}  // namespace

void store_scaler(GradScaler& scaler, RunState& run) { keep(scaler_owner, scaler.state(), run); }

bool restore_scaler(GradScaler& scaler, const RunState& run) {
    const std::map<std::string, double> state = kept(scaler_owner, run);
    if (!state.empty()) scaler.load_state(state);
    return !state.empty();
}

void store_rates(AdaptiveRates& rates, RunState& run) { keep(rates.name(), rates.state(), run); }

bool restore_rates(AdaptiveRates& rates, const RunState& run) {
    const std::map<std::string, double> state = kept(rates.name(), run);
    if (!state.empty()) rates.load_state(state);
    return !state.empty();
}

}  // namespace lockstep
