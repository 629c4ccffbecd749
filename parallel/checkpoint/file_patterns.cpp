#include "lockstep/parallel/checkpoint/file_patterns.h"

#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "lockstep/parallel/checkpoint.h"
#include "lockstep/parallel/data/files/file.h"

namespace lockstep::internal {

namespace {

/// A character of a pattern, a digit, or any number of digits.
struct Piece {
    enum class Kind : std::uint8_t { character, digit, digits } kind;
    char character = 0;
    friend bool operator==(const Piece&, const Piece&) = default;
};
using Kind = Piece::Kind;

std::vector<Piece> pieces_of(std::string_view pattern) {
    std::vector<Piece> pieces;
    while (!pattern.empty()) {
        const std::string_view mark = pattern.starts_with(epoch_mark)  ? epoch_mark
                                      : pattern.starts_with(step_mark) ? step_mark
                                                                       : "";
        if (mark.empty()) {
            pieces.push_back({Kind::character, pattern.front()});
        } else {
            pieces.push_back({Kind::digit});
            pieces.push_back({Kind::digits});
        }
        pattern.remove_prefix(std::max<std::size_t>(mark.size(), 1));
    }
    return pieces;
}

bool can_be_equal(const Piece& one, const Piece& other) {
    const auto is_digit = [](const Piece& piece) {
        return piece.kind != Kind::character || (piece.character >= '0' && piece.character <= '9');
    };
    return one == other ||
           (is_digit(one) && is_digit(other) && (one.kind != Kind::character || other.kind != Kind::character));
}

/// Whether two patterns can be the same name, by the pairs of positions that equal beginnings lead to.
bool can_be_same(std::string_view one, std::string_view other) {
    const std::vector<Piece> a = pieces_of(one), b = pieces_of(other);
    std::set<std::pair<std::size_t, std::size_t>> known;
    std::vector<std::pair<std::size_t, std::size_t>> open{{0, 0}};
    while (!open.empty()) {
        const auto [i, k] = open.back();
        open.pop_back();
        if (!known.insert({i, k}).second) continue;
        if (i == a.size() && k == b.size()) return true;
        const bool repeats_a = i < a.size() && a[i].kind == Kind::digits;
        const bool repeats_b = k < b.size() && b[k].kind == Kind::digits;
        if (repeats_a) open.emplace_back(i + 1, k);
        if (repeats_b) open.emplace_back(i, k + 1);
        if (i < a.size() && k < b.size() && can_be_equal(a[i], b[k]))
            open.emplace_back(repeats_a ? i : i + 1, repeats_b ? k : k + 1);
    }
    return false;
}

}  // namespace

bool has_number(const std::filesystem::path& pattern) {
    const std::string text = pattern.string();
    return text.find(epoch_mark) != std::string::npos || text.find(step_mark) != std::string::npos;
}

std::filesystem::path numbered(const std::filesystem::path& pattern, std::uint64_t epoch, std::uint64_t step) {
    std::string text = pattern.string();
    for (const auto& [mark, number] :
         {std::pair<std::string_view, std::uint64_t>(epoch_mark, epoch), {step_mark, step}})
        for (auto at = text.find(mark); at != std::string::npos; at = text.find(mark))
            text.replace(at, mark.size(), std::to_string(number));
    return text;
}

std::filesystem::path written_file(const std::filesystem::path& file) {
    std::error_code failed;
    std::filesystem::path found = std::filesystem::absolute(followed(file), failed);
    if (!failed) found = std::filesystem::weakly_canonical(found, failed);
    return failed ? file.lexically_normal() : found;
}

bool share_files(const std::filesystem::path& one, const std::filesystem::path& other) {
    const std::filesystem::path a = written_file(one), b = written_file(other);
    return can_be_same(a.string(), b.string()) || can_be_same(resume_path(a).string(), b.string()) ||
           can_be_same(a.string(), resume_path(b).string());
}

}  // namespace lockstep::internal
