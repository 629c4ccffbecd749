#include "lockstep/parallel/events/log_writer.h"

#include <fmt/format.h>

#include <chrono>
#include <csignal>
#include <exception>
#include <utility>

#include "lockstep/parallel/data/files/file_name.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/forked.h"
#include "lockstep/runtime/warning.h"

namespace lockstep::internal {

namespace {

constexpr std::chrono::seconds longest_delay(1);
/// More waits only behind a disk that has stopped to answer.
constexpr std::size_t most_pending_bytes = std::size_t{1} << 30;

/// Of the file of JSON lines, for which room is made.
std::filesystem::path prepared_lines(const std::filesystem::path& directory, const std::string& name,
                                     std::optional<std::int64_t> resume_step) {
    std::error_code failed;
    require_trusted_links(directory);
    std::filesystem::create_directories(directory, failed);
    if (failed)
        throw InvalidArgument(fmt::format("{} cannot be created: {}; expected a writable directory", directory.string(),
                                          failed.message()));
    const std::filesystem::path path = directory / (name + ".jsonl");
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
    thread_.join();
}

bool LogWriter::is_of_parent() const { return generation_ != forked::generation(); }

void LogWriter::put(std::size_t bytes, std::function<void(LogText&)> encode) {
    if (is_of_parent()) return;
    {
        const std::scoped_lock lock(mutex_);
        if (pending_bytes_ + bytes <= most_pending_bytes) {
            pending_bytes_ += bytes;
            pending_.push_back({bytes, std::move(encode)});
            return;
        }
    }
    warn_once(fmt::format("the log {} has more than 1 GiB to write; further entries are dropped", events_.name()));
}

void LogWriter::flush() {
    if (is_of_parent()) return;
    if (std::this_thread::get_id() == thread_.get_id()) return;  // of a warning handler: it is writing
    std::unique_lock lock(mutex_);
    hurry_ = true;
    wake_.notify_one();
    written_.wait(lock, [this] { return pending_.empty() && !writing_; });
}

void LogWriter::run() {
    // Signals are for the program's own threads, and a file that grows over its limit is an error like a full disk.
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
    std::unique_lock lock(mutex_);
    for (bool last = false; !last;) {
        wake_.wait_for(lock, longest_delay, [this] { return hurry_ || ending_; });
        last = ending_;
        hurry_ = false;
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
    if (why.empty()) return;
    warn_once(fmt::format(
        "{} cannot be written any further: {}; training continues, and the log drops entries until there is space",
        file.name(), why));
}

void LogWriter::warn_once(const std::string& text) {
    {
        const std::scoped_lock lock(mutex_);
        if (std::exchange(warned_, true)) return;
    }
    warn_in_thread(text);  // without the lock: the program's handler may write to this log
}

}  // namespace lockstep::internal
