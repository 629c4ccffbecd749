#include "lockstep/parallel/comm/launch/output_route.h"

#include <fmt/format.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "lockstep/parallel/comm/launch/signal_watch.h"
#include "lockstep/runtime/log.h"

namespace lockstep {

namespace {

constexpr std::size_t atomic_write = PIPE_BUF;  // size that a pipe which is ready accepts at once
constexpr std::size_t longest_line = std::size_t{64} << 10;
constexpr std::size_t longest_tail = std::size_t{8} << 10;
constexpr std::size_t max_last_lines = 10;
constexpr std::size_t lines_remembered = 1000;  // per rank; later lines are passed on

/// Number of bytes of `text` for one write: whole lines if possible.
std::size_t first_write_of(std::string_view text) {
    if (text.size() <= atomic_write) return text.size();
    const auto end = text.rfind('\n', atomic_write - 1);
    return end == std::string_view::npos ? atomic_write : end + 1;
}

}  // namespace

OutputRoute::OutputRoute(int console, Descriptor file, std::string prefix, std::shared_ptr<PassedLines> passed)
    : file_(std::move(file)), console_(console), prefix_(std::move(prefix)), passed_(std::move(passed)) {
    auto [reader, writer] = make_pipe(PipeEnds::reader_at_once);
    reader_ = std::move(reader);
    writer_ = std::move(writer);
}

pollfd OutputRoute::next() const {
    if (!pending_.empty()) return {console_, POLLOUT, 0};
    return {reader_.get(), POLLIN, 0};
}

void OutputRoute::advance() {
    if (!pending_.empty()) return write_to_console();
    std::array<char, atomic_write> bytes{};
    const ssize_t count = read(reader_.get(), bytes.data(), bytes.size());
    if (count > 0) {
        take({bytes.data(), static_cast<std::size_t>(count)});
    } else if (count == 0 || (errno != EAGAIN && errno != EINTR)) {
        reader_.reset();
        if (!line_.empty()) take("\n");
    }
    if (console_ < 0) pending_.clear();
    if (!pending_.empty()) write_to_console();
}

void OutputRoute::take(std::string_view bytes) {
    // A last line without a newline gets none in the file either.
    if (reader_) {
        write_to_file(bytes);
        tail_ += bytes;
        if (tail_.size() > longest_tail) tail_.erase(0, tail_.size() - longest_tail);
    }
    if (prefix_.empty() && !passed_) {
        pending_ += bytes;
        return;
    }
    while (!bytes.empty()) {
        const auto end = bytes.find('\n');
        line_ += bytes.substr(0, end);
        bytes.remove_prefix(std::min(end, bytes.size() - 1) + 1);
        if (end == std::string_view::npos && line_.size() < longest_line) continue;
        if (!is_repeated(line_)) pending_ += prefix_ + line_ + '\n';
        line_.clear();
    }
}

bool OutputRoute::is_repeated(const std::string& line) {
    if (!passed_) return false;
    auto own = own_.find(line);
    if (own == own_.end()) {
        if (own_.size() >= lines_remembered) return false;
        own = own_.emplace(line, 0).first;
    }
    int& passed = (*passed_)[line];
    if (++own->second <= passed) return true;
    passed = own->second;
    return false;
}

void OutputRoute::write_to_console() {
    pollfd ready{console_, POLLOUT, 0};  // another rank may have filled it since the caller polled
    if (poll(&ready, 1, 0) <= 0) return;
    const ssize_t count = write(console_, pending_.data(), first_write_of(pending_));
    if (count >= 0) {
        pending_.erase(0, static_cast<std::size_t>(count));
    } else if (errno != EAGAIN && errno != EINTR) {  // the reader has closed the pipe, which must not end the rank
        lost_ = errno != EPIPE;
        console_ = -1;
        pending_.clear();
    }
}

void OutputRoute::write_to_file(std::string_view bytes) {
    struct stat status {};
    if (file_ && ::fstat(file_.get(), &status) == 0 && status.st_nlink == 0) {
        warn("launch: a log was deleted; the ranks continue, and their further output is not stored in it");
        file_.reset();
    }
    while (file_ && !bytes.empty()) {
        const ssize_t count = write(file_.get(), bytes.data(), bytes.size());
        if (count >= 0) {
            bytes.remove_prefix(static_cast<std::size_t>(count));
        } else if (errno != EINTR) {
            warn(fmt::format("launch: a log cannot be written any further: {}", text_of(errno)));
            file_.reset();
        }
    }
}

std::vector<std::string> OutputRoute::last_lines() const {
    std::vector<std::string> lines;
    for (std::size_t at = 0; at < tail_.size();) {
        const auto end = std::min(tail_.find('\n', at), tail_.size());
        lines.push_back(tail_.substr(at, end - at));
        at = end + 1;
    }
    if (lines.size() > max_last_lines) lines.erase(lines.begin(), lines.end() - max_last_lines);
    return lines;
}

}  // namespace lockstep
