// Names of checkpoints with numbers: patterns with "{epoch}" and "{step}".
#pragma once

#include <cstdint>
#include <filesystem>

namespace lockstep::internal {

/// The text of numbers in a pattern.
inline constexpr const char *epoch_mark = "{epoch}", *step_mark = "{step}";

bool has_number(const std::filesystem::path& pattern);
/// The pattern with numbers in place of the marks.
std::filesystem::path numbered(const std::filesystem::path& pattern, std::uint64_t epoch, std::uint64_t step);
/// The file that is written: without links and dots where directories exist.
std::filesystem::path written_file(const std::filesystem::path& file);
/// Whether checkpoints of two patterns can have a file in common. Their run states count.
bool share_files(const std::filesystem::path& one, const std::filesystem::path& other);

}  // namespace lockstep::internal
