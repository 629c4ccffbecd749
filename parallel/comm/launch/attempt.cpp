#include "lockstep/parallel/comm/launch/attempt.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <tuple>
#include <vector>

#include "lockstep/parallel/comm/launch/child.h"
#include "lockstep/parallel/comm/launch/output_route.h"
#include "lockstep/parallel/comm/launch/rank_environment.h"
#include "lockstep/parallel/comm/store/sockets.h"
#include "lockstep/parallel/comm/store/store_address.h"
#include "lockstep/parallel/comm/store/store_protocol.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/internal/cpu_topology.h"
#include "lockstep/runtime/internal/trusted_links.h"
#include "lockstep/runtime/stop_signals.h"

namespace lockstep {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

/// Maximum time between two checks for ended processes, in case SIGCHLD is lost.
constexpr milliseconds longest_sleep(500);
/// A rank's last output is complete when nothing has arrived for this long.
constexpr milliseconds quiet_at_the_end(1000);
/// Other ranks may notice the end of a process this long before the launcher does.
constexpr milliseconds time_to_hear_of_a_death(500);

bool has(Streams streams, Streams one) { return (static_cast<unsigned>(streams) & static_cast<unsigned>(one)) != 0; }

bool ends_the_run(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT; }

/// Calls LaunchOptions::function in a rank. Returns its exit status.
int run_rank_function(const LaunchOptions& options, const FailureFile& file, int cores) {
    int status = 1;
    try {
        set_up_rank(options, cores);
        options.function(rank_info());
        status = 0;
    } catch (const std::exception& error) {
        report_failure();
        file.write_message(error.what());
    } catch (...) {
        report_failure();
        file.write_message("an exception that is not a std::exception was thrown");
    }
    std::fflush(nullptr);
    return status;
}

class Attempt {
public:
    Attempt(const LaunchOptions& options, const std::filesystem::path& program, int number, SignalWatch& signals)
        : options_(options), number_(number), signals_(signals) {
        RankSettings settings{
            .attempt = number, .master_addr = options.master_addr, .master_port = options.master_port};
        settings.master_addr = settings.master_addr.empty() ? "127.0.0.1" : host_of(settings.master_addr, "launch");
        if (settings.master_port == 0) {
            port_ = hold_free_port();
            settings.master_port = port_of(port_);
        }
        // On several hosts the user sets it, because the launchers do not know each other.
        const char* token = std::getenv("LOCKSTEP_STORE_TOKEN");
        if (options.nodes == 1 && !(token && *token)) settings.store_token = handshake::random_token();
        if (options.same_lines_once) passed_lines_ = std::make_shared<PassedLines>();
        const std::vector<int> cores = allowed_cores();
        reaper_.emplace();
        for (int local_rank = 0; local_rank < options.processes; ++local_rank) {
            const std::vector<int> share = share_of(cores, local_rank, options.processes);
            settings.local_rank = local_rank;
            settings.cores = share.size();
            settings.failure_file = failure_files_.emplace_back().path();
            ChildSpec spec{.function = {},
                           .program = program,
                           .arguments = options.command,
                           .environment = rank_environment(options, settings),
                           .guard = reaper_->write_fd()};
            if (options.function)
                spec.function = [&options, &file = failure_files_.back(), cores = static_cast<int>(share.size())] {
                    return run_rank_function(options, file, cores);
                };
            // Uses all of its share: a rank that cannot make way for another program delays both that program and the
            // job.
            if (options.bind_cores) spec.cores = cores_around(share, cores);
            outs_.push_back(route(local_rank, Streams::out, spec.out));
            errs_.push_back(route(local_rank, Streams::err, spec.err));
            children_.emplace_back(spec, signals);
            for (const auto* routes : {&outs_, &errs_})
                if (routes->back()) routes->back()->started();
        }
    }

    AttemptEnd run() {
        failures_seen_.resize(children_.size());
        for (;;) {
            // Before the failures are read: a rank that failed in between would count as successful.
            const bool ended =
                std::all_of(children_.begin(), children_.end(), [](Child& child) { return child.ended(); });
            reap_ranks();
            if (ended) break;
            if (phase_ != Phase::running && RunClock::now() >= deadline_ && !escalate()) break;
            sleep(phase_ == Phase::running ? longest_sleep : milliseconds(poll_time(deadline_)));
            for (const int signal : signals_.take()) pass_on(signal);
        }
        send_to_all(SIGKILL);  // processes that the ranks have started and left running
        deliver_last_words();
        if (phase_ != Phase::running) name_first_failure();
        end_.killed = std::any_of(children_.begin(), children_.end(), [](const Child& c) { return c.signal() != 0; });
        for (const auto* all : {&outs_, &errs_})
            for (const auto& route : *all) end_.lost_output = end_.lost_output || (route && route->lost_output());
        return end_;
    }

private:
    enum class Phase : std::uint8_t {
        running,
        noticing,  ///< a rank has failed; the others may find out by themselves
        ending,    ///< the ranks have been signalled
        killed
    };

    /// Null if the rank has this process's own stream; otherwise sets `end` to the descriptor that it writes to.
    std::unique_ptr<OutputRoute> route(int local_rank, Streams stream, int& end) const {
        const auto asked = [&](const std::vector<Streams>& choice) {
            return !choice.empty() && has(choice[static_cast<std::size_t>(local_rank)], stream);
        };
        const bool tee = asked(options_.tee), to_file = tee || asked(options_.redirects);
        const bool prefix = tee || options_.prefix;
        if (stream == Streams::out && !to_file && !prefix) return nullptr;
        const int rank = global_rank(options_, local_rank);
        Descriptor file;
        if (to_file) {
            const auto directory = options_.log_dir / fmt::format("attempt_{}", number_) / std::to_string(rank);
            const auto path = directory / (stream == Streams::out ? "stdout.log" : "stderr.log");
            internal::require_trusted_links(path);
            std::error_code error;
            std::filesystem::create_directories(directory, error);
            if (!error)
                file = Descriptor(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
            if (!file)
                throw Error(fmt::format("launch: log {} cannot be written: {}; expected a writable log directory",
                                        path.string(), error ? error.message() : text_of(errno)));
        }
        const int console = to_file && !tee ? -1 : (stream == Streams::out ? STDOUT_FILENO : STDERR_FILENO);
        auto made = std::make_unique<OutputRoute>(console, std::move(file), prefix ? fmt::format("[{}]:", rank) : "",
                                                  stream == Streams::err ? passed_lines_ : nullptr);
        end = made->write_fd();
        return made;
    }

    void reap_ranks() {
        for (std::size_t i = 0; i < children_.size(); ++i) {
            if (!children_[i].ended() || !children_[i].failed() || failures_seen_[i] || first_termination_) continue;
            failures_seen_[i] = Clock::now();
            if (phase_ != Phase::running) continue;
            if (const int signal = warning_that_ended(children_[i]); signal != 0)
                await_stop(signal);
            else
                enter(Phase::noticing);
        }
    }

    /// Selects the rank whose own failure mark is oldest, with ranks that only waited for others last. A rank without a
    /// mark is assumed to have failed before ranks that may have noticed its failure. A killed rank is first, because
    /// ranks that miss another one end by themselves. If all have only waited, selects a rank that was silent all the
    /// time.
    void name_first_failure() {
        using Order = std::tuple<bool, Clock::time_point, Clock::time_point>;
        std::optional<Order> first;
        for (std::size_t i = 0; i < children_.size(); ++i) {
            const Child& child = children_[i];
            if (!child.failed()) continue;
            const auto mark = failure_files_[i].mark();
            const bool by_itself =
                failures_seen_[i] || (mark && (!first_termination_ || mark->time < *first_termination_));
            if (!by_itself) continue;
            const auto seen = failures_seen_[i].value_or(Clock::time_point::max());
            Order order{false, child.signal() != 0 ? Clock::time_point::min() : seen - time_to_hear_of_a_death, seen};
            if (mark) order = {mark->cause == FailureCause::other_rank, mark->time, seen};
            if (first && *first <= order) continue;
            first = order;
            end_.failure = RankFailure{.rank = global_rank(options_, static_cast<int>(i)),
                                       .process = child.process(),
                                       .exit_status = child.exit_status(),
                                       .signal = child.signal(),
                                       .last_lines = errs_[i]->last_lines(),
                                       .message = failure_files_[i].message()};
        }
        if (silent_ && first && std::get<bool>(*first)) end_.failure = silent_;
    }

    /// Called before this process ends ranks. Finds a rank that still runs and has recorded no failure, preferably a
    /// stopped one.
    void find_silent_rank() {
        for (std::size_t i = 0; i < children_.size(); ++i) {
            if (children_[i].ended() || failure_files_[i].mark()) continue;
            const int stopped_by = children_[i].stopped_by();
            if (silent_ && (silent_->stopped_by != 0 || stopped_by == 0)) continue;
            silent_ = RankFailure{.rank = global_rank(options_, static_cast<int>(i)),
                                  .process = children_[i].process(),
                                  .silent = true,
                                  .stopped_by = stopped_by,
                                  .last_lines = errs_[i]->last_lines()};
        }
    }

    void enter(Phase phase) {
        phase_ = phase;
        deadline_ = deadline_in(options_.grace);
    }

    void send_to_all(int signal) const {
        for (const Child& child : children_) child.send(signal);
    }

    /// Returns false if there is no stronger signal left.
    bool escalate() {
        if (phase_ == Phase::killed) return false;
        const bool terminated = phase_ == Phase::ending;
        if (!first_termination_) {
            find_silent_rank();
            first_termination_ = Clock::now();
        }
        send_to_all(terminated ? SIGKILL : SIGTERM);
        enter(terminated ? Phase::killed : Phase::ending);
        if (terminated) deadline_ = std::max(deadline_, RunClock::now() + quiet_at_the_end);  // even SIGKILL takes time
        return true;
    }

    void pass_on(int signal) {
        if (signal == SIGCHLD || phase_ == Phase::killed) return;
        if (is_advance_warning(signal)) warned_ = signal;
        if (!ends_the_run(signal)) return send_to_all(signal);
        if (end_.signal == 0) {
            send_to_all(signal);
            await_stop(signal);
        } else if (is_advance_warning(end_.signal) && !repeated_) {  // the scheduler's SIGTERM after its warning
            repeated_ = true;
            interrupted_ = Clock::now();
            send_to_all(signal);
        } else if (Clock::now() - interrupted_ >= StopSignals::coalesce_window) {
            phase_ = Phase::ending;
            escalate();
        }
    }

    /// The advance warning that a rank reports to have stopped for, or that was passed on and killed it; 0: none. All
    /// ranks stop after the same step.
    int warning_that_ended(const Child& child) const {
        if (child.signal() != 0) return child.signal() == warned_ ? warned_ : 0;
        const int signal = child.exit_status() - 128;
        return is_advance_warning(signal) ? signal : 0;
    }

    /// The ranks save and end because of a signal.
    void await_stop(int signal) {
        end_.signal = signal;
        interrupted_ = Clock::now();
        if (!first_termination_) first_termination_ = interrupted_;
        enter(Phase::ending);
        deadline_ = deadline_in(options_.stop_grace);
    }

    /// Sleeps until an event. Output is forwarded in the meantime.
    void sleep(milliseconds longest) {
        std::vector<pollfd> entries{{signals_.descriptor(), POLLIN, 0}};
        std::vector<OutputRoute*> routes{nullptr};
        for (const auto* all : {&outs_, &errs_})
            for (const auto& route : *all) {
                if (!route || route->next().fd < 0) continue;
                entries.push_back(route->next());
                routes.push_back(route.get());
            }
        if (poll(entries.data(), entries.size(), static_cast<int>(longest.count())) <= 0) return;
        for (std::size_t i = 1; i < entries.size(); ++i)
            if (entries[i].revents != 0) routes[i]->advance();
    }

    /// Waits for a slow console until a signal arrives, because the last output is the most informative. Does not wait
    /// for other processes that hold the ranks' streams.
    void deliver_last_words() {
        auto deadline = RunClock::now() + quiet_at_the_end;
        for (;;) {
            bool more = false;
            for (const auto* all : {&outs_, &errs_})
                for (const auto& route : *all) {
                    if (!route) continue;
                    more = more || route->next().fd >= 0;
                    if (route->waits_for_console()) deadline = RunClock::now() + quiet_at_the_end;
                }
            if (!more || RunClock::now() >= deadline) return;
            sleep(milliseconds(poll_time(deadline)));
            for (const int signal : signals_.take()) {
                if (!ends_the_run(signal)) continue;
                if (end_.signal == 0) end_.signal = signal;
                return;
            }
        }
    }

    const LaunchOptions& options_;
    int number_;
    SignalWatch& signals_;
    Descriptor port_;
    std::vector<std::unique_ptr<OutputRoute>> outs_, errs_;
    std::shared_ptr<PassedLines> passed_lines_;  // lines of standard error; null: all lines are passed on
    std::vector<FailureFile> failure_files_;
    std::vector<Child> children_;
    std::optional<ProcessReaper> reaper_;  // destroyed before the children's PIDs can be reused
    Phase phase_ = Phase::running;
    Deadline deadline_{};
    Clock::time_point interrupted_{};
    int warned_ = 0;                                      // the last advance warning that was passed on
    bool repeated_ = false;                               // a signal that ends the run has followed an advance warning
    std::optional<Clock::time_point> first_termination_;  // when this process first ended ranks
    std::vector<std::optional<Clock::time_point>> failures_seen_;  // one per rank, for failures seen before that
    std::optional<RankFailure> silent_;                            // a rank that had recorded nothing then
    AttemptEnd end_;
};

}  // namespace

AttemptEnd run_attempt(const LaunchOptions& options, const std::filesystem::path& program, int number,
                       SignalWatch& signals) {
    return Attempt(options, program, number, signals).run();
}

}  // namespace lockstep
