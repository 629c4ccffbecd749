#include "lockstep/parallel/events/log_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <ctime>
#include <exception>
#include <fstream>
#include <system_error>
#include <utility>

#include "lockstep/parallel/data/files/file.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/process.h"
#include "lockstep/runtime/log.h"

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
    internal::open_standard_streams();
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

bool LogFile::is_deleted() const {
    struct stat status {};
    return ::fstat(descriptor_, &status) == 0 && status.st_nlink == 0;
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

namespace {

constexpr std::chrono::seconds longest_delay(1);
/// More data is pending only if a disk has stopped responding.
constexpr std::size_t max_pending_bytes = std::size_t{1} << 30;

/// Path of the file of JSON lines, after creating its directory.
std::filesystem::path prepared_lines(const std::filesystem::path& directory, const std::string& name,
                                     std::optional<std::int64_t> resume_step) {
    std::error_code failed;
    require_trusted_links(directory);
    std::filesystem::create_directories(directory, failed);
    if (failed)
        throw InvalidArgument(fmt::format("{} cannot be created: {}; expected a writable directory", directory.string(),
                                          failed.message()));
    const std::filesystem::path path = directory / (name + ".jsonl");
    require_trusted_links(path);
    if (resume_step)
        cut_json_lines(path, *resume_step);
    else if (std::filesystem::is_regular_file(path, failed))
        std::filesystem::resize_file(path, 0, failed);
    return path;
}

}  // namespace

std::shared_ptr<LogWriter> LogWriter::start(const std::filesystem::path& directory, const std::string& name,
                                            std::optional<std::int64_t> resume_step, const std::string& first_events) {
    const auto end = [](LogWriter* writer) {
        if (writer->is_of_parent())
            forked::keep(std::shared_ptr<const void>(writer, [](const void*) {}));
        else
            delete writer;
    };
    return {new LogWriter(directory, name, resume_step, first_events), end};
}

LogWriter::LogWriter(const std::filesystem::path& directory, const std::string& name,
                     std::optional<std::int64_t> resume_step, const std::string& first_events)
    : lines_(prepared_lines(directory, name, resume_step)),
      events_(next_event_file(directory)),
      pending_{{0, [first_events](LogText& text) { text.events += first_events; }}},
      generation_(forked::generation()),
      thread_([this] { run(); }) {}

LogWriter::~LogWriter() {
    {
        const std::scoped_lock lock(mutex_);
        ending_ = true;
    }
    wake_.notify_one();
    if (thread_.get_id() == std::this_thread::get_id())
        thread_.detach();  // a handler of its warnings ends the process
    else
        thread_.join();
}

bool LogWriter::is_of_parent() const { return generation_ != forked::generation(); }

void LogWriter::put(std::size_t bytes, std::function<void(LogText&)> encode) {
    if (is_of_parent()) return;
    {
        const std::scoped_lock lock(mutex_);
        if (pending_bytes_ + bytes <= max_pending_bytes) {
            pending_bytes_ += bytes;
            pending_.push_back({bytes, std::move(encode)});
            return;
        }
    }
    warn_once(fmt::format("the log {} has more than 1 GiB to write; further entries are dropped", events_.name()));
}

void LogWriter::flush() {
    if (is_of_parent()) return;
    if (std::this_thread::get_id() == thread_.get_id()) return;  // called by a warning handler while this thread writes
    std::unique_lock lock(mutex_);
    flush_requested_ = true;
    wake_.notify_one();
    written_.wait(lock, [this] { return pending_.empty() && !writing_; });
}

void LogWriter::run() {
    // Signals are for the program's own threads, and a file that exceeds its limit is an error like a full disk.
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock lock(mutex_);
    for (bool last = false; !last;) {
        wake_.wait_for(lock, longest_delay, [this] { return flush_requested_ || ending_; });
        last = ending_;
        flush_requested_ = false;
        writing_ = true;
        std::deque<Pending> all_pending = std::exchange(pending_, {});
        lock.unlock();
        write(std::move(all_pending));
        lock.lock();
        writing_ = false;
        written_.notify_all();
    }
}

void LogWriter::write(std::deque<Pending> all) {
    LogText text;
    for (Pending& one : all) {
        try {
            one.encode(text);
        } catch (const std::exception& error) {
            warn_once(fmt::format("an entry of the log {} is lost: {}", events_.name(), error.what()));
        }
        one.encode = {};
        const std::scoped_lock lock(mutex_);
        pending_bytes_ -= one.bytes;
    }
    append(lines_, text.lines);
    append(events_, text.events);
}

void LogWriter::append(LogFile& file, const std::string& text) {
    const std::string why = file.append(text);
    if (!why.empty())
        warn_once(fmt::format(
            "{} cannot be written any further: {}; training continues, and the log drops entries until there is space",
            file.name(), why));
    else if (!text.empty() && file.is_deleted())
        warn_once(fmt::format("{} was deleted; training continues, and further entries are lost", file.name()));
}

void LogWriter::warn_once(const std::string& text) {
    {
        const std::scoped_lock lock(mutex_);
        if (std::exchange(warned_, true)) return;
    }
    write_log(LogLevel::warning, text);  // without the lock: the program's handler may write to this log
}

}  // namespace lockstep::internal
