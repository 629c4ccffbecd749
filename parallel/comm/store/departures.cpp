#include "lockstep/parallel/comm/store/departures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>

namespace lockstep {

namespace {

constexpr std::array<std::string_view, 3> words{"left", "failed", "died"};

}  // namespace

std::string departure_line(int rank, Departure how) { return fmt::format("{} {}\n", rank, name_of(how)); }

void note_departure(Store& job, int rank, Departure how) {
    for (std::string lines = job.try_get(departures).value_or("");;) {
        const std::string more = lines + departure_line(rank, how);
        std::string found = job.compare_set(departures, lines, more);
        if (found == more) return;
        lines = std::move(found);
    }
}

std::optional<Departure> departure_of(std::string_view lines, int rank) {
    std::istringstream words_of(std::string{lines});
    int found = 0;
    for (std::string how; words_of >> found >> how;)
        if (const auto word = std::find(words.begin(), words.end(), how); found == rank && word != words.end())
            return static_cast<Departure>(word - words.begin());
    return std::nullopt;
}

std::string_view name_of(Departure how) { return words[static_cast<std::size_t>(how)]; }

}  // namespace lockstep
