#include "lockstep/parallel/events/log_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/parallel/data/files/file_name.h"
#include "lockstep/runtime/error.h"

namespace lockstep::internal {

namespace {

[[noreturn]] void refuse_log(const std::string& name, const std::string& why) {
    throw InvalidArgument(fmt::format("{} cannot be written: {}; expected a writable directory", name, why));
}

bool reaches(const std::string& line, std::int64_t step) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    if (!object.is_object()) return false;
    const auto found = object.find("step");
    return found != object.end() && found->is_number_integer() && found->get<std::int64_t>() >= step;
}

}  // namespace

LogFile::LogFile(const std::filesystem::path& path) : name_(path.string()) {
    require_trusted_links(path);
    std::error_code unknown;
    if (std::filesystem::is_fifo(path, unknown)) refuse_log(name_, "it is a pipe");
    descriptor_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (descriptor_ < 0) refuse_log(name_, reason());
    struct stat status {};
    if (::fstat(descriptor_, &status) == 0) size_ = static_cast<std::uint64_t>(status.st_size);
}

LogFile::~LogFile() { ::close(descriptor_); }

std::string LogFile::append(std::string_view bytes) {
    const std::uint64_t begin = size_;
    while (!bytes.empty()) {
        const ssize_t put = ::write(descriptor_, bytes.data(), std::min(bytes.size(), largest_transfer));
        if (put < 0 && errno == EINTR) continue;
        if (put < 0) {
            const std::string why = reason();
            if (::ftruncate(descriptor_, static_cast<off_t>(begin)) == 0) size_ = begin;
            return why;
        }
        size_ += static_cast<std::uint64_t>(put);
        bytes.remove_prefix(static_cast<std::size_t>(put));
    }
    return {};
}

void cut_json_lines(const std::filesystem::path& path, std::int64_t step) {
    std::error_code unknown;
    if (!std::filesystem::is_regular_file(path, unknown)) return;
    std::uintmax_t kept = 0;
    std::ifstream file(path, std::ios::binary);
    for (std::string line; std::getline(file, line) && !file.eof() && !reaches(line, step);) kept += line.size() + 1;
    if (kept == std::filesystem::file_size(path, unknown)) return;
    std::error_code failed;
    std::filesystem::resize_file(path, kept, failed);
    if (failed) refuse_log(path.string(), failed.message());
}

std::filesystem::path next_event_file(const std::filesystem::path& directory) {
    const std::string prefix = "events.out.tfevents.";
    std::int64_t seconds = std::time(nullptr);
    std::error_code failed;
    for (std::filesystem::directory_iterator entry(directory, failed), end; !failed && entry != end;
         entry.increment(failed)) {
        const std::string name = entry->path().filename().string();
        std::int64_t other = 0;
        if (name.starts_with(prefix) &&
            std::from_chars(name.data() + prefix.size(), name.data() + name.size(), other).ec == std::errc())
            seconds = std::max(seconds, other + 1);
    }
    std::array<char, 256> host{};
    if (::gethostname(host.data(), host.size() - 1) != 0) host[0] = '\0';
    return directory / fmt::format("{}{:010}.{}.{}", prefix, seconds, host[0] ? host.data() : "host", ::getpid());
}

}  // namespace lockstep::internal
