#include "lockstep/parallel/run_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// The whole text, whatever the locale. Lockstep has written a comma for the point in some of them.
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

}  // namespace lockstep
