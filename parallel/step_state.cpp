#include "lockstep/parallel/step_state.h"

#include <fmt/format.h>

#include <map>
#include <string>
#include <string_view>

namespace lockstep {

namespace {

constexpr std::string_view scaler_owner = "grad_scaler";

bool belongs(std::string_view field, std::string_view owner) {
    return field.size() > owner.size() && field.starts_with(owner) && field[owner.size()] == ' ';
}

/// Takes the place of the numbers that the owner had there.
void keep(std::string_view owner, const std::map<std::string, double>& numbers, RunState& run) {
    std::erase_if(run.fields, [&](const auto& field) { return belongs(field.first, owner); });
    for (const auto& [name, value] : numbers) run.fields[fmt::format("{} {}", owner, name)] = field_of(value);
}

/// Empty where the owner has none.
std::map<std::string, double> kept(std::string_view owner, const RunState& run) {
    std::map<std::string, double> numbers;
    for (const auto& [field, text] : run.fields) {
        if (!belongs(field, owner)) continue;
        numbers[field.substr(owner.size() + 1)] = *number_in(run, field);
    }
    return numbers;
}

}  // namespace

void keep_scaler(GradScaler& scaler, RunState& run) { keep(scaler_owner, scaler.state(), run); }

bool restore_scaler(GradScaler& scaler, const RunState& run) {
    const std::map<std::string, double> state = kept(scaler_owner, run);
    if (!state.empty()) scaler.load_state(state);
    return !state.empty();
}

void keep_rates(AdaptiveRates& rates, RunState& run) { keep(rates.name(), rates.state(), run); }

bool restore_rates(AdaptiveRates& rates, const RunState& run) {
    const std::map<std::string, double> state = kept(rates.name(), run);
    if (!state.empty()) rates.load_state(state);
    return !state.empty();
}

}  // namespace lockstep
