#include "lockstep/samples/apps/program/ranks_agree.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "lockstep/samples/apps/program/command_line.h"
#include "lockstep/samples/apps/program/gather_strings.h"

namespace program {

namespace {

/// Removes the first line from `text` and returns it.
std::string_view next_line(std::string_view& text) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    return line;
}

bool is_own(const std::string& flag) {
    constexpr std::array<std::string_view, 18> own{
        "help", "backend",      "init-method", "rank", "world-size", "timeout", "devices",  "workers",  "data",
        "save", "stop-signals", "log-dir",     "json", "quiet",      "config",  "work-dir", "launcher", "log-interval"};
    return std::find(own.begin(), own.end(), flag) != own.end();
}

/// The value, normalized: "0.50" becomes "0.5".
std::string value_of(const CLI::Option& option) {
    std::string text = option.count() > 0 ? option.results().back() : option.get_default_str();
    const bool whole = text.find_first_not_of("0123456789") == std::string::npos;
    const std::optional<double> number = whole ? std::nullopt : number_of(text);
    return number ? fmt::format("{}", *number) : text;
}

/// "--lr 0.5", "no --steps"; for --load only whether it is given, because hosts may have the file in different places.
std::string said_by(const CLI::Option& option) {
    const std::string& flag = option.get_single_name();
    const std::string value = value_of(option);
    if (value.empty()) return "no --" + flag;
    return "--" + flag + (value == "true" || flag == "load" ? "" : " " + value);
}

}  // namespace

void require_ranks_agree(lockstep::ProcessGroup& group, const std::vector<std::string>& own) {
    std::string text;
    for (const std::string& line : own) text += line + "\n";
    const std::vector<std::string> all = gather_strings(group, text);
    for (std::size_t rank = 1; rank < all.size(); ++rank)
        for (std::string_view theirs = all[rank], of_rank_0 = all[0]; theirs != of_rank_0;) {
            const std::string_view there = next_line(theirs), here = next_line(of_rank_0);
            if (there != here)
                throw UsageError(fmt::format("rank {} has {}, rank 0 has {}; expected the same on all ranks", rank,
                                             there.empty() ? "nothing" : there, here.empty() ? "nothing" : here));
        }
}

void require_same_flags(lockstep::ProcessGroup& group, const CLI::App& app) {
    std::vector<std::string> lines{"the program " + app.get_name()};
    for (const CLI::Option* option : app.get_options())
        if (!is_own(option->get_single_name())) lines.push_back(said_by(*option));
    require_ranks_agree(group, lines);
}

}  // namespace program
