#include "lockstep/parallel/engine/in_flight.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/runtime/error.h"

namespace lockstep {

namespace {

/// 0 where there is no loss.
double value_of(const std::byte* reported, const StepNumbers& numbers) {
    if (!numbers.loss) return 0;
    if (numbers.loss_dtype == DType::f64) return *reinterpret_cast<const double*>(reported);
    return static_cast<double>(*reinterpret_cast<const float*>(reported));
}

}  // namespace

InFlight::InFlight(EngineContext& context) : context_(context) {
    for (int i = 0; i < slots; ++i) slots_.emplace_back(context.devices[0]);
}

int InFlight::begin() {
    // With this one, two may be in flight: the program before the last one must be done.
    const int slot = next_;
    next_ = (next_ + 1) % slots;
    look_at(slots_[static_cast<std::size_t>(slot)]);
    look_at(slots_[static_cast<std::size_t>((slot + 1) % slots)]);
    return slot;
}

void InFlight::end(int slot, const StepNumbers& numbers, std::shared_ptr<StepLoss::State> state) {
    Slot& place = slots_[static_cast<std::size_t>(slot)];
    Stream& stream = context_.commit(0);
    auto* report = static_cast<Report*>(place.report->data());
    stream.copy(&report->status, Device::host(), numbers.outcome ? numbers.outcome : context_.control[0].agreed(),
                context_.devices[0], sizeof(StatusWord));
    if (numbers.loss)
        stream.copy(report->loss.data(), Device::host(), numbers.loss, context_.devices[0],
                    size_of(numbers.loss_dtype));
    if (numbers.norm)
        stream.copy(&report->norm, Device::host(), numbers.norm, context_.devices[0], sizeof report->norm);
    stream.record(place.done);
    place.loss = std::move(state);
    place.numbers = numbers;
    place.busy = true;
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
    } catch (const DeviceError& error) {  // the device is lost, with what the others wait for
        context_.others().abort(fmt::format("rank {} stopped: {}", context_.rank(), error.what()));
        throw;
    }
    slot.busy = false;
    const auto* report = static_cast<const Report*>(slot.report->data());
    // Processes that train together refuse a step at the same call: so one that only failed here waits for its report.
    const bool failed = context_.job ? context_.health->failed_step >= 0 : context_.health->failed.load();
    const bool skipped = report->status.code == static_cast<std::int32_t>(StatusCode::skipped);
    if ((report->status.code != 0 && !skipped) || failed) refuse(report->status);
    if (slot.loss) {
        slot.loss->skipped = skipped;
        slot.loss->value = value_of(report->loss.data(), slot.numbers);
        if (slot.numbers.norm) slot.loss->grad_norm = report->norm;
        slot.loss->engine = nullptr;
        slot.loss.reset();
    }
}

void InFlight::drain() {
    for (int i = 0; i < slots; ++i) look_at(slots_[static_cast<std::size_t>((next_ + i) % slots)]);
}

bool InFlight::is_done(const StepLoss::State& state) const {
    return std::all_of(slots_.begin(), slots_.end(),
                       [&](const Slot& slot) { return !slot.busy || slot.loss.get() != &state || slot.done.done(); });
}

std::string InFlight::describe(const StatusWord& status) const {
    std::string where = fmt::format("shard {}, rank {}", status.shard, context_.rank_of(status.shard));
    if (!context_.job) {
        const int lane = context_.lane_of(status.shard);
        const int device = context_.lanes[static_cast<std::size_t>(lane)].device;
        where = fmt::format("shard {}, replica {} on {}", status.shard, device, context_.devices[device].str());
    }
    switch (static_cast<StatusCode>(status.code)) {
        case StatusCode::target_out_of_range:
            return fmt::format(
                "step {}: target {} in row {} of the batch is out of range ({}); the step was not taken, "
                "classes count from 0 to one less than the outputs",
                status.step, status.value, status.row, where);
        case StatusCode::loss_not_finite:
            return fmt::format(
                "step {}: the loss is not finite; the step was not taken, the model is as before it; "
                "look at the batch and the learning rate",
                status.step);
        case StatusCode::gradients_not_finite:
            return fmt::format(
                "step {}: the norm of the gradients is not finite; the step was not taken, the model is as before it; "
                "look at the batch and the learning rate, or leave error_if_nonfinite out",
                status.step);
        case StatusCode::operation_failed:
        case StatusCode::skipped:
        case StatusCode::good: break;
    }
    return fmt::format(
        "step {}: an operation failed ({}); the step was not taken, "
        "mend its cause and take it again",
        status.step, where);
}

void InFlight::refuse(const StatusWord& status) {
    const std::int64_t failed_step = context_.health->failed_step;
    const bool in_part = failed_step >= 0 && context_.health->committing == failed_step;
    std::string reason;
    std::exception_ptr failure;
    try {
        rest_all_devices(context_);
        if (context_.gpu_job) context_.gpu_job->check();  // who enqueued the next step may have heard first
    } catch (const CommunicationError& error) {
        reason = error.what() + std::string(in_part ? committed_in_part : "");
        failure = std::make_exception_ptr(CommunicationError(reason));
    } catch (const std::exception& error) {
        reason = error.what() + std::string(in_part ? committed_in_part : "");
        failure = in_part ? std::make_exception_ptr(DeviceError(reason)) : std::current_exception();
    }
    if (!failure) reason = describe(status);  // not before: of a report that has not come it would be garbage
    if (in_part && !failure) {
        reason += committed_in_part;
        failure = std::make_exception_ptr(DeviceError(reason));
    }
    for (Slot& slot : slots_) {  // steps queued behind the bad one changed nothing either
        slot.busy = false;
        if (!slot.loss) continue;
        slot.loss->refused = true;
        slot.loss->reason = reason;
        slot.loss->step = status.step;
        slot.loss->engine = nullptr;
        slot.loss.reset();
    }
    if (failure) std::rethrow_exception(failure);
    throw StepError(reason, status.step);
}

void rest_all_devices(EngineContext& context) {
    std::exception_ptr first;
    const auto rest = [&](Stream& stream) {
        try {
            stream.synchronize();
        } catch (...) {
            if (!first) first = std::current_exception();
        }
    };
    for (std::size_t lane = 0; lane < context.lanes.size(); ++lane) rest(context.compute(static_cast<int>(lane)));
    if (context.job) rest(context.exchange());
    for (int d = 0; d < context.devices.size(); ++d) {
        rest(context.communicate(d));
        rest(context.commit(d));
    }
    context.health->failed = false;
    context.health->failed_step = -1;
    for (int d = 0; d < context.devices.size(); ++d) {
        const ControlBlock& control = context.control[static_cast<std::size_t>(d)];
        Stream& stream = context.commit(d);
        stream.fill(control.agreed(), 0, sizeof(StatusWord));
        for (int shard = 0; shard < context.shards; ++shard) stream.fill(control.shard(shard), 0, sizeof(StatusWord));
        rest(stream);
    }
    if (first) std::rethrow_exception(first);
}

}  // namespace lockstep
