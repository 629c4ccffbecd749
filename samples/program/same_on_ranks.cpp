#include "lockstep/samples/program/same_on_ranks.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>

#include "lockstep/samples/program/command_line.h"

namespace program {

namespace {

/// In order of ranks, on all of them.
std::vector<std::string> texts_of_all(lockstep::ProcessGroup& group, std::string own) {
    const std::int64_t ranks = group.size();
    const auto sizes = lockstep::Tensor::zeros({ranks}, lockstep::DType::i64);
    group.all_gather(sizes, lockstep::Tensor::from(std::vector{static_cast<std::int64_t>(own.size())}, {1}));
    const std::vector<std::int64_t> lengths = sizes.to_vector<std::int64_t>();
    const std::int64_t longest = std::max<std::int64_t>(1, *std::max_element(lengths.begin(), lengths.end()));
    own.resize(static_cast<std::size_t>(longest));
    const auto all = lockstep::Tensor::zeros({ranks, longest}, lockstep::DType::u8);
    group.all_gather(all, lockstep::Tensor::from(std::vector<std::uint8_t>(own.begin(), own.end()), {longest}));
    const std::vector<std::uint8_t> bytes = all.to_vector<std::uint8_t>();
    std::vector<std::string> texts;
    for (std::int64_t rank = 0; rank < ranks; ++rank)
        texts.emplace_back(bytes.begin() + rank * longest,
                           bytes.begin() + rank * longest + lengths[static_cast<std::size_t>(rank)]);
    return texts;
}

/// Takes the first line from `text`.
std::string_view next_line(std::string_view& text) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), line.size() + 1));
    return line;
}

bool is_own(const std::string& flag) {
    constexpr std::array<std::string_view, 13> own{"help",    "backend", "init-method", "rank", "world-size",
                                                   "timeout", "devices", "workers",     "data", "save",
                                                   "log-dir", "json",    "quiet"};
    return std::find(own.begin(), own.end(), flag) != own.end();
}

/// 0.50 is 0.5.
std::string value_of(const CLI::Option& option) {
    std::string text = option.count() > 0 ? option.results().back() : option.get_default_str();
    double number = 0;
    const bool whole = text.find_first_not_of("0123456789") == std::string::npos;
    return !whole && CLI::detail::lexical_cast(text, number) ? fmt::format("{}", number) : text;
}

/// "--lr 0.5", "no --steps"; of --load only whether it is there: hosts may have the file in different places.
std::string said_by(const CLI::Option& option) {
    const std::string& flag = option.get_single_name();
    const std::string value = value_of(option);
    if (value.empty()) return "no --" + flag;
    return "--" + flag + (value == "true" || flag == "load" ? "" : " " + value);
}

}  // namespace

void require_same_on_ranks(lockstep::ProcessGroup& group, const std::vector<std::string>& own) {
    std::string text;
    for (const std::string& line : own) text += line + "\n";
    const std::vector<std::string> all = texts_of_all(group, text);
    for (std::size_t rank = 1; rank < all.size(); ++rank)
        for (std::string_view theirs = all[rank], of_rank_0 = all[0]; theirs != of_rank_0;) {
            const std::string_view there = next_line(theirs), here = next_line(of_rank_0);
            if (there != here)
                throw UsageError(fmt::format("rank {} has {}, rank 0 has {}; all ranks must have the same", rank,
                                             there.empty() ? "nothing" : there, here.empty() ? "nothing" : here));
        }
}

void require_same_flags(lockstep::ProcessGroup& group, const CLI::App& app) {
    std::vector<std::string> lines{"the program " + app.get_name()};
    for (const CLI::Option* option : app.get_options())
        if (!is_own(option->get_single_name())) lines.push_back(said_by(*option));
    require_same_on_ranks(group, lines);
}

}  // namespace program
