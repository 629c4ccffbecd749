// Combinations of options in which every pair of values occurs, for tests in which each combination is a process.
#pragma once

#include <algorithm>
#include <cstddef>
#include <set>
#include <tuple>
#include <vector>

namespace lockstep::test {

/// One value for each option, by its index.
using Combination = std::vector<std::size_t>;

/// Pairs of values in a combination: option, value, later option, value.
inline std::set<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>> pairs_of(const Combination& row) {
    std::set<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>> pairs;
    for (std::size_t b = 1; b < row.size(); ++b)
        for (std::size_t a = 0; a < b; ++a) pairs.emplace(a, row[a], b, row[b]);
    return pairs;
}

/// Combinations of options with `sizes` values in which every two values of every two options meet. Greedy: each
/// combination begins with the first pair that is missing and takes the values that add most of the others.
inline std::vector<Combination> pairwise(const std::vector<std::size_t>& sizes) {
    std::set<std::tuple<std::size_t, std::size_t, std::size_t, std::size_t>> missing;
    for (std::size_t b = 1; b < sizes.size(); ++b)
        for (std::size_t a = 0; a < b; ++a)
            for (std::size_t i = 0; i < sizes[a]; ++i)
                for (std::size_t j = 0; j < sizes[b]; ++j) missing.emplace(a, i, b, j);
    std::vector<Combination> rows;
    while (!missing.empty()) {
        const auto [first, first_value, second, second_value] = *missing.begin();
        std::vector<bool> chosen(sizes.size(), false);
        Combination row(sizes.size(), 0);
        row[first] = first_value;
        row[second] = second_value;
        chosen[first] = chosen[second] = true;
        for (std::size_t option = 0; option < sizes.size(); ++option) {
            if (chosen[option]) continue;
            std::size_t most = 0;
            for (std::size_t value = 0; value < sizes[option]; ++value) {
                std::size_t added = 0;
                for (std::size_t other = 0; other < sizes.size(); ++other) {
                    if (!chosen[other]) continue;
                    const bool before = other < option;
                    added += missing.count({before ? other : option, before ? row[other] : value,
                                            before ? option : other, before ? value : row[other]});
                }
                if (value == 0 || added > most) {
                    most = added;
                    row[option] = value;
                }
            }
            chosen[option] = true;
        }
        for (const auto& pair : pairs_of(row)) missing.erase(pair);
        rows.push_back(row);
    }
    return rows;
}

}  // namespace lockstep::test
