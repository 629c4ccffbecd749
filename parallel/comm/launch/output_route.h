// Forwards the output of one rank on one stream to console and file.
#pragma once

#include <poll.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/parallel/comm/store/sockets.h"

namespace lockstep {

/// Shared by the streams of several ranks: lines that one of them has forwarded, with their counts.
using PassedLines = std::map<std::string, int, std::less<>>;

/// Stops reading from the rank while the console is full, and never blocks on the console. Lines with a prefix are
/// written atomically, one after another, if they are shorter than 4 KiB.
class OutputRoute {
public:
    /// `console`: a descriptor owned by the caller, or -1; `file`: may be empty. `passed`: lines that are not passed on
    /// to the console again; null: all are. Throws Error.
    OutputRoute(int console, Descriptor file, std::string prefix, std::shared_ptr<PassedLines> passed);

    /// The rank's end of the pipe; `started` closes it here when the rank has its copy.
    int write_fd() const { return writer_.get(); }
    void started() { writer_.reset(); }
    /// The descriptor to poll before `advance`; -1 when all output has been delivered.
    pollfd next() const;
    void advance();
    /// Whether data is pending for the console.
    bool waits_for_console() const { return !pending_.empty(); }
    std::vector<std::string> last_lines() const;
    /// Whether writing to the console failed, other than by a closed pipe.
    bool lost_output() const { return lost_; }

private:
    void take(std::string_view bytes);
    bool is_repeated(const std::string& line);
    void write_to_console();
    void write_to_file(std::string_view bytes);
    Descriptor reader_, writer_, file_;
    int console_;
    std::string prefix_;
    std::shared_ptr<PassedLines> passed_;
    PassedLines own_;  // received lines and their counts
    bool lost_ = false;
    std::string line_;     // incomplete last line; only if lines are counted
    std::string pending_;  // for the console
    std::string tail_;     // the end of all output so far
};

}  // namespace lockstep
