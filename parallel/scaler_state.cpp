#include "lockstep/parallel/scaler_state.h"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

constexpr std::string_view prefix = "grad_scaler ";

}  // namespace

void keep_scaler(GradScaler& scaler, RunState& run) {
    std::erase_if(run.fields, [](const auto& field) { return field.first.starts_with(prefix); });
    for (const auto& [name, value] : scaler.state())
        run.fields[std::string(prefix) + name] = fmt::format("{:a}", value);
}

bool restore_scaler(GradScaler& scaler, const RunState& run) {
    std::map<std::string, double> state;
    for (const auto& [field, text] : run.fields) {
        if (!field.starts_with(prefix)) continue;
        char* end = nullptr;
        state[field.substr(prefix.size())] = std::strtod(text.c_str(), &end);
        if (end == text.c_str() || *end != '\0')
            throw DataError(fmt::format("the checkpoint's field '{}' is '{}'; it should be a number", field, text));
    }
    if (state.empty()) return false;
    scaler.load_state(state);
    return true;
}

}  // namespace lockstep
