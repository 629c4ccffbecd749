// What one rank prints on one stream, on its way to console and file.
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

/// What the streams of several ranks share: lines that one of them has passed on, and how often.
using PassedLines = std::map<std::string, int, std::less<>>;

/// Takes no more from the rank while the console doesn't take what is there, and never waits for the console itself.
/// Lines that bear a prefix are written whole, one after another, where they have less than 4 KiB.
class OutputRoute {
public:
    /// `console`: a descriptor that stays the caller's, or -1; `file`: may be none. `passed`: lines in there are not
    /// passed on to the console again; null: all are. Throws Error.
    OutputRoute(int console, Descriptor file, std::string prefix, std::shared_ptr<PassedLines> passed);

    /// Where the rank writes; closed here by `started`, once it has its own.
    int entrance() const { return writer_.get(); }
    void started() { writer_.reset(); }
    /// What to poll for, before `advance` is called; nothing (-1) when all has been delivered.
    pollfd next() const;
    void advance();
    /// Has the console something to take yet?
    bool waits_for_console() const { return !pending_.empty(); }
    std::vector<std::string> last_lines() const;
    /// The console could not be written, and not because nobody reads there any more.
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
    PassedLines own_;  // lines that came, and how often
    bool lost_ = false;
    std::string line_;     // without its end yet; only where lines count
    std::string pending_;  // for the console
    std::string tail_;     // of all that came
};

}  // namespace lockstep
