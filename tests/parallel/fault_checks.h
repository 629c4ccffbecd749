// What must hold after a trial: who has said what, when, and what is left.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>
#include <sstream>
#include <string>

#include "lockstep/tests/parallel/fault_trial.h"
#include "lockstep/tests/patience.h"
#include "lockstep/tests/runtime/gate.h"

namespace fault_trial {

using ls::test::number_from;

/// What the others are given beyond the deadline.
inline milliseconds grace() { return milliseconds(number_from("LOCKSTEP_FAULT_GRACE_MS", 60000)); }

inline std::set<std::string> files_in(const std::filesystem::path& directory) {
    std::set<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) names.insert(entry.path().string());
    return names;
}

/// Files in `directory` that were not there before and stay: those of other programs come and go.
inline std::set<std::string> left_in(const std::filesystem::path& directory, const std::set<std::string>& before) {
    std::set<std::string> left = files_in(directory);
    for (const std::string& name : before) left.erase(name);
    ls::test::comes_true([&] {
        std::erase_if(left, [](const std::string& name) { return !std::filesystem::exists(name); });
        return left.empty();
    });
    return left;
}

/// "rank 2", or 2 in a list after "ranks".
inline bool names(const std::string& text, int victim) {
    for (std::size_t at = text.find("rank"); at != std::string::npos; at = text.find("rank", at + 4)) {
        std::istringstream list(text.substr(text[at + 4] == 's' ? at + 5 : at + 4));
        char comma = ',';
        for (int rank = 0; comma == ',' && list >> rank; comma = static_cast<char>(list.get()))
            if (rank == victim) return true;
    }
    return false;
}

/// A rank that goes on from one group to the next may find that all others have given the job up and removed its file.
inline bool tells_of(const std::string& text, int victim) {
    return names(text, victim) || lockstep::testing::contains(text, "it was removed: the job has ended");
}

inline milliseconds since_event(const Board& board, int rank) {
    return std::chrono::duration_cast<milliseconds>(
        Clock::duration(board->ended[static_cast<std::size_t>(rank)].load() - board->event.load()));
}

}  // namespace fault_trial
