#include "lockstep/parallel/comm/nccl/nccl_link.h"

#include <fmt/format.h>

#include <utility>

#include "lockstep/parallel/comm/group/transport.h"
#include "lockstep/parallel/comm/store/deadline.h"

namespace lockstep::nccl {

namespace {

std::string text_of(ncclResult_t result, std::string_view what) {
    const char* detail = ncclGetLastError(nullptr);  // NCCL ignores the communicator
    return fmt::format("{} failed: {}{}{}", what, ncclGetErrorString(result), detail && *detail ? ": " : "",
                       detail ? detail : "");
}

void require(ncclResult_t result, std::string_view what) {
    if (result != ncclSuccess) throw TransportError(text_of(result, what));
}

}  // namespace

void check(ncclResult_t result, std::string_view what) {
    if (result != ncclSuccess && result != ncclInProgress) throw TransportError(text_of(result, what));
}

Link::Link(const ncclUniqueId& id, int rank, int size, Deadline deadline, Interrupt interrupt)
    : interrupt_(std::move(interrupt)) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;  // a missing rank must not block this one forever
    try {
        settle(ncclCommInitRankConfig(&communicator_, size, id, rank, &config), "ncclCommInitRankConfig", deadline);
    } catch (...) {
        abort();
        throw;
    }
}

Link::~Link() { abort(); }

void Link::settle(ncclResult_t result, std::string_view what, Deadline deadline) {
    for (Backoff backoff(1000); result == ncclInProgress; backoff.pause()) {
        if (const std::string reason = interrupt_(); !reason.empty()) throw TransportError(reason);
        if (RunClock::now() >= deadline)
            throw TransportError(fmt::format("{} did not finish before the deadline", what));
        const std::scoped_lock lock(calls_);
        require_communicator();
        require(ncclCommGetAsyncError(communicator_, &result), "ncclCommGetAsyncError");
    }
    require(result, what);
}

void Link::require_communicator() const {
    if (!communicator_) throw TransportError(interrupt_());
}

void Link::group(Deadline deadline, const std::function<void(ncclComm_t)>& body) {
    const auto started = [&] {
        const std::scoped_lock lock(calls_);
        require_communicator();
        check(ncclGroupStart(), "ncclGroupStart");
        try {
            body(communicator_);
        } catch (...) {
            (void)ncclGroupEnd();  // the first error is reported; the communicator is aborted after it
            throw;
        }
        return ncclGroupEnd();
    };
    settle(started(), "ncclGroupEnd", deadline);
}

std::string Link::failure() {
    const std::unique_lock lock(calls_, std::try_to_lock);
    if (!lock || !communicator_) return {};
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(communicator_, &state);
    if (asked != ncclSuccess) return text_of(asked, "ncclCommGetAsyncError");
    if (state == ncclSuccess || state == ncclInProgress) return {};
    return text_of(state, "an operation");
}

ncclComm_t Link::take() noexcept {
    const std::scoped_lock lock(calls_);
    return std::exchange(communicator_, nullptr);
}

void Link::give_up(ncclComm_t communicator) noexcept {
    if (communicator) (void)ncclCommAbort(communicator);
}

void Link::finish(Deadline deadline) noexcept {
    if (!communicator_) return;
    try {
        settle(ncclCommFinalize(communicator_), "ncclCommFinalize", deadline);
        (void)ncclCommDestroy(take());
    } catch (const std::exception&) {
        abort();
    }
}

}  // namespace lockstep::nccl
