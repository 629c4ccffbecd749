// The ranks of a job that have left, and how: one line each under one key of the job's store. The store's server writes
// the line of a rank that dies.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lockstep/parallel/comm/store.h"

namespace lockstep {

enum class Departure : std::uint8_t {
    left,    ///< its work was done
    failed,  ///< its work was not
    died
};

constexpr std::string_view departures = "departed";

/// "3 died\n".
std::string departure_line(int rank, Departure how);
/// Adds the line of a rank. Throws as the store does.
void note_departure(Store& job, int rank, Departure how);
/// The departure of a rank according to `lines`; nullopt if it has not left.
std::optional<Departure> departure_of(std::string_view lines, int rank);
/// "died".
std::string_view name_of(Departure how);

}  // namespace lockstep
