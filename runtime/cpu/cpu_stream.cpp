#include "lockstep/runtime/cpu/cpu_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "lockstep/runtime/cpu/cpu_event.h"
#include "lockstep/runtime/cpu/thread_count.h"
#include "lockstep/runtime/internal/process.h"

namespace lockstep {

void InlineStream::run(Work work, int threads) {
    if (threads > 1) forked::note_host_threads();
    const ThreadCount scope(threads);
    work(ExecContext{device_, nullptr});
}

void InlineStream::copy(void* to, Device, const void* from, Device, std::size_t bytes) {
    if (runs_at_once()) {  // without a function object, which would need memory
        std::memcpy(to, from, bytes);
        return;
    }
    run([=](const ExecContext&) { std::memcpy(to, from, bytes); }, 1);
}

void InlineStream::copy_2d(void* to, std::size_t to_pitch, Device, const void* from, std::size_t from_pitch, Device,
                           std::size_t row_bytes, std::size_t rows) {
    run(
        [=](const ExecContext&) {
            for (std::size_t row = 0; row < rows; ++row)
                std::memcpy(static_cast<char*>(to) + row * to_pitch, static_cast<const char*>(from) + row * from_pitch,
                            row_bytes);
        },
        1);
}

void InlineStream::fill(void* to, std::uint8_t value, std::size_t bytes) {
    if (runs_at_once()) {
        std::memset(to, value, bytes);
        return;
    }
    run([=](const ExecContext&) { std::memset(to, value, bytes); }, 1);
}

void InlineStream::callback(std::function<void()> function) {
    run([f = std::move(function)](const ExecContext&) { f(); }, 1);
}

void InlineStream::record(EventImpl& event) {
    auto& state = *static_cast<CpuEvent&>(event).state();
    state.reach(state.issue());
}

void InlineStream::wait(const EventImpl& event) { event.synchronize(); }

void InlineStream::synchronize() {}

void QueueStream::run(Work work, int threads) { queue_->run(std::move(work), std::max(threads, 1)); }

void QueueStream::record(EventImpl& event) { queue_->record(static_cast<CpuEvent&>(event).state()); }

void QueueStream::wait(const EventImpl& event) {
    const auto* cpu_event = dynamic_cast<const CpuEvent*>(&event);
    if (!cpu_event) {
        event.synchronize();
        return;
    }
    const auto& state = cpu_event->state();
    const std::uint64_t ticket = state->issued();
    if (!state->reached(ticket)) queue_->wait(state, ticket);
}

}  // namespace lockstep
