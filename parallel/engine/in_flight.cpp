#include "lockstep/parallel/engine/in_flight.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// 0 if there is no loss.
double value_of(const std::byte* reported, const StepNumbers& numbers) {
    if (!numbers.loss) return 0;
    if (numbers.loss_dtype == DType::f64) return *reinterpret_cast<const double*>(reported);
    return static_cast<double>(*reinterpret_cast<const float*>(reported));
}

}  // namespace

InFlight::InFlight(EngineParts& parts) : parts_(parts) {
    for (int i = 0; i < slots; ++i) slots_.emplace_back(parts.topology.devices[0]);
}

int InFlight::begin() {
    // Including this one, two may be in flight: the program before the last one must be complete.
    const int slot = next_;
    next_ = (next_ + 1) % slots;
    look_at(slots_[static_cast<std::size_t>(slot)]);
    look_at(slots_[static_cast<std::size_t>((slot + 1) % slots)]);
    return slot;
}

void InFlight::end(int slot, const StepNumbers& numbers, std::shared_ptr<StepOutcome> outcome) {
    Slot& used = slots_[static_cast<std::size_t>(slot)];
    Stream& stream = parts_.topology.commit(first_device);
    auto* report = static_cast<Report*>(used.report->data());
    stream.copy(&report->status, Device::host(),
                numbers.outcome ? numbers.outcome : parts_.memory.control(first_device).agreed(),
                parts_.topology.devices[0], sizeof(StatusWord));
    if (numbers.loss)
        stream.copy(report->loss.data(), Device::host(), numbers.loss, parts_.topology.devices[0],
                    size_of(numbers.loss_dtype));
    if (numbers.norm)
        stream.copy(&report->norm, Device::host(), numbers.norm, parts_.topology.devices[0], sizeof report->norm);
    if (numbers.squares)
        stream.copy(&report->squares, Device::host(), numbers.squares, parts_.topology.devices[0],
                    sizeof report->squares);
    stream.record(used.done);
    used.loss = std::move(outcome);
    used.numbers = numbers;
    used.busy = true;
}

char* InFlight::staging(int slot, std::size_t bytes) {
    auto& memory = slots_[static_cast<std::size_t>(slot)].staging;
    if (!memory || memory->bytes() < bytes) memory = Buffer::allocate_pinned(bytes);
    return static_cast<char*>(memory->data());
}

void InFlight::look_at(Slot& slot) {
    if (!slot.busy) return;
    try {
        slot.done.synchronize();
    } catch (const DeviceError& error) {  // the device is lost, with all work that waits for it
        parts_.ranks.others().abort(fmt::format("rank {} stopped: {}", parts_.topology.rank.number(), error.what()));
        throw;
    }
    slot.busy = false;
    const auto* report = static_cast<const Report*>(slot.report->data());
    const bool failed = parts_.ranks.refuses(*parts_.memory.health());
    const bool skipped = report->status.code == static_cast<std::int32_t>(StatusCode::skipped);
    if ((report->status.code != 0 && !skipped) || failed) refuse(report->status);
    if (slot.loss) {
        slot.loss->skipped = skipped;
        slot.loss->value = value_of(report->loss.data(), slot.numbers);
        if (slot.numbers.norm) slot.loss->grad_norm = report->norm;
        if (slot.loss->measured) tell(*slot.loss->measured, slot, skipped);
        slot.loss->done = true;
        slot.loss.reset();
    }
}

void InFlight::tell(MeasuredStep& step, const Slot& slot, bool skipped) {
    step.outcome = skipped ? MeasuredStep::Outcome::skipped : MeasuredStep::Outcome::taken;
    if (slot.numbers.squares) {
        const MeasuredSquares& squares = static_cast<const Report*>(slot.report->data())->squares;
        // A shard's own gradient is its part of the gradient times all rows divided by its own, and is weighted by its
        // rows.
        step.measures = {squares.of_shards * static_cast<double>(slot.numbers.rows),
                         squares.norm_of_mean * squares.norm_of_mean, slot.numbers.pieces};
    }
    step.done = true;
}

void InFlight::drain() {
    for (int i = 0; i < slots; ++i) look_at(slots_[static_cast<std::size_t>((next_ + i) % slots)]);
}

bool InFlight::is_done(const StepOutcome& outcome) const {
    return std::all_of(slots_.begin(), slots_.end(),
                       [&](const Slot& slot) { return !slot.busy || slot.loss.get() != &outcome || slot.done.done(); });
}

std::string InFlight::describe(const StatusWord& status) const {
    std::string where = fmt::format("shard {}, rank {}", status.shard, parts_.topology.rank_of(status.shard).number());
    if (!parts_.ranks.job()) {
        const DeviceIndex device = parts_.topology.replica_of(status.shard);
        where = fmt::format("shard {}, replica {} on {}", status.shard, device.number(),
                            parts_.topology.devices[device].str());
    }
    switch (static_cast<StatusCode>(status.code)) {
        case StatusCode::target_out_of_range:
            return fmt::format(
                "step {}: target {} in row {} of the batch is out of range ({}); the step was not applied; expected 0 "
                "to the number of classes minus 1",
                status.step, status.value, status.row, where);
        case StatusCode::index_out_of_range:
            return fmt::format(
                "step {}: index {} in row {} of the batch is out of range ({}); the step was not applied; expected 0 "
                "to (size of the dimension - 1)",
                status.step, status.value, status.row, where);
        case StatusCode::probability_out_of_range:
            return fmt::format(
                "step {}: probability {} in row {} of the batch is out of range ({}); the step was not applied; "
                "expected [0, 1]",
                status.step, std::bit_cast<double>(status.value), status.row, where);
        case StatusCode::deviation_negative:
            return fmt::format(
                "step {}: std {} in row {} of the batch is out of range ({}); the step was not applied; expected 0 or "
                "more",
                status.step, std::bit_cast<double>(status.value), status.row, where);
        case StatusCode::division_by_zero:
            return fmt::format(
                "step {}: the divisor in row {} of the batch is the integer 0 ({}); the step was not applied; expected "
                "another number",
                status.step, status.row, where);
        case StatusCode::loss_not_finite:
            return fmt::format("step {}: the loss is not finite; the step was not applied, the model is unchanged",
                               status.step);
        case StatusCode::gradients_not_finite:
            return fmt::format(
                "step {}: the norm of the gradients is not finite; the step was not applied, the model is unchanged; "
                "error_if_nonfinite is set",
                status.step);
        case StatusCode::operation_failed:
        case StatusCode::skipped:
        case StatusCode::good: break;
    }
    return fmt::format("step {}: an operation failed ({}); the step was not applied; fix the cause and retry it",
                       status.step, where);
}

void InFlight::refuse(const StatusWord& status) {
    const std::int64_t failed_step = parts_.memory.health()->failed_step;
    const bool in_part = failed_step >= 0 && parts_.memory.health()->committing == failed_step;
    std::string reason;
    std::exception_ptr failure;
    try {
        parts_.synchronize_all_devices();
        parts_.ranks.check_gpu();  // the thread that enqueued the next step may have seen the failure first
    } catch (const CommunicationError& error) {
        reason = error.what() + std::string(in_part ? committed_in_part : "");
        failure = std::make_exception_ptr(CommunicationError(reason));
    } catch (const std::exception& error) {
        reason = error.what() + std::string(in_part ? committed_in_part : "");
        failure = in_part ? std::make_exception_ptr(DeviceError(reason)) : std::current_exception();
    }
    if (!failure) reason = describe(status);  // not before: a report that has not arrived would be garbage
    if (in_part && !failure) {
        reason += committed_in_part;
        failure = std::make_exception_ptr(DeviceError(reason));
    }
    for (Slot& slot : slots_) {  // steps queued after the refused one changed nothing either
        slot.busy = false;
        if (!slot.loss) continue;
        slot.loss->refused = true;
        slot.loss->reason = reason;
        slot.loss->step = status.step;
        if (slot.loss->measured) {
            slot.loss->measured->outcome = MeasuredStep::Outcome::refused;
            slot.loss->measured->done = true;
        }
        slot.loss->done = true;
        slot.loss.reset();
    }
    if (failure) std::rethrow_exception(failure);
    throw StepError(reason, status.step);
}

}  // namespace lockstep
