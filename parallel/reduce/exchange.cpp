#include "lockstep/parallel/reduce/exchange.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "lockstep/ops/internal/step_operations.h"
#include "lockstep/parallel/reduce/reducer.h"

namespace lockstep {

namespace {

struct Exchange final : Operation {
    explicit Exchange(std::string n) : own_name(std::move(n)) {}
    std::string own_name;
    std::string_view name() const override { return own_name; }
};

using Body = std::function<void(Communicator&, const Invocation&)>;

void tell_others(const OtherRanks& others, std::string_view what) {
    others.abort(fmt::format("rank {} stopped: {}", others.job->rank(), what));
}

/// What an exchange throws ends what hosts wait for in the agreement.
void meet(const OtherRanks& others, const Body& body, const Invocation& call) {
    try {
        body(*others.job, call);
    } catch (const CommunicationError& error) {
        if (others.agreement) others.agreement->abort(error.what());
        throw;
    }
}

TaskSpec task_of(const EngineContext& context, ExchangeSpec spec) {
    TaskSpec task;
    task.kernel = make_kernel(
        [others = context.others(), health = context.health, body = std::move(spec.body)](const Invocation& i) {
            if (health->failed_step >= 0) tell_others(others, "an operation of its backward failed");
            meet(others, body, i);
        });
    task.operation = std::make_shared<const Exchange>(std::move(spec.name));
    task.in = std::move(spec.in);
    task.out = std::move(spec.out);
    const ControlBlock& control = context.control[0];
    task.step = control.step();
    task.agreed = control.agreed();
    task.health = context.health.get();
    task.collective = spec.collective;
    return task;
}

constexpr std::size_t staging_alignment = 256;

/// The steps of devices whose memory the host cannot use have no number here.
constexpr std::int64_t some_step = 0;

/// Where the operands of one exchange lie in pinned memory.
class StagedOperands {
public:
    explicit StagedOperands(const ExchangeSpec& spec) {
        for (const PlaceRef& place : spec.out) out_.push_back(take(place));
        for (const PlaceRef& place : spec.in) {
            std::size_t offset = nowhere;
            for (std::size_t o = 0; o < spec.out.size() && place.bytes > 0; ++o)
                if (is_part(place, spec.out[o])) offset = out_[o] + (place.offset - spec.out[o].offset);
            in_.push_back(offset != nowhere ? offset : take(place));
        }
        status_ = bytes_;
    }

    std::size_t bytes() const { return status_ + sizeof(StatusWord); }
    std::size_t in(std::size_t i) const { return in_[i]; }
    std::size_t out(std::size_t i) const { return out_[i]; }
    std::size_t status() const { return status_; }

private:
    static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
    static bool is_part(const PlaceRef& part, const PlaceRef& whole) {
        return part.workspace == whole.workspace && part.memory == whole.memory && part.offset >= whole.offset &&
               part.offset + part.bytes <= whole.offset + whole.bytes;
    }
    std::size_t take(const PlaceRef& place) {
        const std::size_t begin = bytes_;
        bytes_ += (place.bytes + staging_alignment - 1) / staging_alignment * staging_alignment;
        return begin;
    }

    std::size_t bytes_ = 0, status_ = 0;
    std::vector<std::size_t> in_, out_;
};

/// Made in the order of the stream: by a host function on a thread of the device's driver, where it calls no device,
/// and what it waits for is other processes, which wait for no stream of this one but through what it has sent already.
/// A backend that may call CUDA (an MPI that knows GPUs asks the driver about every pointer) is called by the host
/// instead: another thread may be in the driver, waiting for the stream with a lock that such a question wants.
struct HostCall {
    OtherRanks others;
    std::shared_ptr<Health> health;
    std::string name;
    Body body;
    bool behind_commits;
    Device device;
    std::shared_ptr<Buffer> memory;
    std::vector<void*> pointers;
    std::size_t inputs;
    StatusWord* status;

    void operator()() const {
        *status = {};
        try {
            if (health->failed_step < 0) perform();
        } catch (...) {
            if (behind_commits) health->committing = some_step;
            health->failed_step = some_step;
            health->failed = true;
            mark_status();
            throw;
        }
        if (health->failed_step >= 0) mark_status();
    }

private:
    void mark_status() const { status->code = static_cast<std::int32_t>(StatusCode::operation_failed); }
    void perform() const {
        try {
            const Launch launch{device};
            const Invocation call{
                launch, pointers.data(), pointers.data() + inputs, nullptr, nullptr, nullptr, nullptr, 0, 0, 0, 1};
            meet(others, body, call);
        } catch (const CommunicationError&) {
            throw;  // names rank and operation itself
        } catch (const std::exception& error) {
            tell_others(others, error.what());
            throw DeviceError(
                fmt::format("rank {} on {}: {}: {}", others.job->rank(), device.str(), name, error.what()));
        }
    }
};

void place_staged(EngineContext& context, Schedule& schedule, ExchangeSpec spec) {
    const StagedOperands places(spec);
    const std::shared_ptr<Buffer> memory = context.exchange_staging(places.bytes());
    Stream& stream = context.exchange();
    std::vector<void*> pointers;
    const auto stage = [&](const PlaceRef& place, std::size_t offset) {
        pointers.push_back(place.bytes > 0 ? static_cast<char*>(memory->data()) + offset : nullptr);
        return fixed(memory, offset, place.bytes);
    };
    for (std::size_t i = 0; i < spec.in.size(); ++i)
        schedule.copy(stream, {spec.in[i], stage(spec.in[i], places.in(i)), spec.in[i].bytes});
    std::vector<CopySpec> results;
    for (std::size_t i = 0; i < spec.out.size(); ++i)
        results.push_back({stage(spec.out[i], places.out(i)), spec.out[i], spec.out[i].bytes});
    auto* status = reinterpret_cast<StatusWord*>(static_cast<char*>(memory->data()) + places.status());
    auto call = std::make_shared<const HostCall>(HostCall{context.others(), context.health, spec.name,
                                                          std::move(spec.body), spec.behind_commits, stream.device(),
                                                          memory, std::move(pointers), spec.in.size(), status});
    schedule.call(stream, {.name = spec.name,
                           .function = [call = std::move(call)] { (*call)(); },
                           .collective = spec.collective,
                           .by_host = context.job->may_call_cuda()});
    for (CopySpec& result : results) schedule.copy(stream, std::move(result));
    const PlaceRef word = fixed(Buffer::allocate(stream, sizeof(StatusWord), "status"), 0, sizeof(StatusWord));
    schedule.copy(stream, {fixed(memory, places.status(), sizeof(StatusWord)), word, sizeof(StatusWord)});
    context.exchange_status = word;
}

/// The communicator enqueues it itself.
void place_on_gpu(EngineContext& context, Schedule& schedule, ExchangeSpec spec) {
    TaskSpec task;
    task.kernel =
        make_kernel([job = context.gpu_job, body = std::move(spec.body)](const Invocation& i) { body(*job, i); });
    task.operation = std::make_shared<const Exchange>(std::move(spec.name));
    task.in = std::move(spec.in);
    task.out = std::move(spec.out);
    task.collective = spec.collective;
    schedule.run(context.exchange(), std::move(task));
}

/// GPUs go on behind an operation that was given up. By then its communicator knows.
void place_check_of_gpu(EngineContext& context, Schedule& schedule, bool behind_commits) {
    place_staged(context, schedule,
                 {.name = "check",
                  .body = [job = context.gpu_job](Communicator&, const Invocation&) { job->check(); },
                  .collective = false,
                  .behind_commits = behind_commits});
    schedule.wait(context.commit(0), schedule.record(context.exchange()));
}

bool by_gpu(const EngineContext& context) { return context.gpu_job && !context.hook; }

}  // namespace

void place_exchange(EngineContext& context, Schedule& schedule, ExchangeSpec spec) {
    if (host_access(context.devices[0]))
        schedule.run(context.exchange(), task_of(context, std::move(spec)));
    else if (by_gpu(context) && spec.collective)
        place_on_gpu(context, schedule, std::move(spec));
    else
        place_staged(context, schedule, std::move(spec));
}

void place_exchange_check(EngineContext& context, Schedule& schedule, bool behind_commits) {
    if (by_gpu(context)) place_check_of_gpu(context, schedule, behind_commits);
    if (!context.exchange_status) return;
    const TensorMeta word = TensorMeta::contiguous(DType::u8, {sizeof(StatusWord)});
    Stream& stream = context.commit(0);
    schedule.run(stream, flat_task(context, stream, 0, make_operation(AgreeStatus{}), {word},
                                   {*context.exchange_status}, {word}, {context.control[0].agreed_place()}));
}

RankParts::RankParts(const EngineContext& context, std::vector<std::size_t> bytes, std::string_view tag)
    : bytes_(std::move(bytes)) {
    std::size_t all = 0;
    for (const std::size_t part : bytes_) {
        begin_.push_back(all);
        all += part;
    }
    memory_ = Buffer::allocate(context.exchange(), std::max<std::size_t>(all, 1), tag);
}

PlaceRef RankParts::at(int rank, std::size_t offset, std::size_t bytes) const {
    return fixed(memory_, begin_[static_cast<std::size_t>(rank)] + offset, bytes);
}

void RankParts::gather(EngineContext& context, Schedule& schedule) const {
    const int rank = context.rank();
    const PlaceRef own = at(rank, 0, bytes_[static_cast<std::size_t>(rank)]);
    place_exchange(
        context, schedule,
        {.name = "all_gather",
         .body = [bytes = bytes_](Communicator& job,
                                  const Invocation& call) { job.all_gather(call.in[0], call.out[0], bytes); },
         .in = {own},
         .out = {fixed(memory_, 0, memory_->bytes())}});
}

}  // namespace lockstep
