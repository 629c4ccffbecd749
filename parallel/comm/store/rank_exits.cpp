#include "lockstep/parallel/comm/store/rank_exits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <sstream>

namespace lockstep {

namespace {

constexpr std::array<std::string_view, 3> words{"left", "failed", "died"};

}  // namespace

std::string format_rank_exit(int rank, RankExit how) { return fmt::format("{} {}\n", rank, name_of(how)); }

void record_rank_exit(Store& job, int rank, RankExit how) {
    for (std::string lines = job.try_get(rank_exits).value_or("");;) {
        const std::string more = lines + format_rank_exit(rank, how);
        std::string found = job.compare_set(rank_exits, lines, more);
        if (found == more) return;
        lines = std::move(found);
    }
}

std::optional<RankExit> rank_exit_of(std::string_view lines, int rank) {
    std::istringstream words_of(std::string{lines});
    int found = 0;
    for (std::string how; words_of >> found >> how;)
        if (const auto word = std::find(words.begin(), words.end(), how); found == rank && word != words.end())
            return static_cast<RankExit>(word - words.begin());
    return std::nullopt;
}

std::string_view name_of(RankExit how) { return words[static_cast<std::size_t>(how)]; }

}  // namespace lockstep
