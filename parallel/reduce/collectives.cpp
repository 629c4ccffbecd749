#include "lockstep/parallel/reduce/collectives.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "lockstep/ops/internal/control_operations.h"
#include "lockstep/runtime/error.h"
#include "lockstep/runtime/round_up.h"

namespace lockstep {

namespace {

struct CollectiveOperation final : Operation {
    explicit CollectiveOperation(std::string n) : own_name(std::move(n)) {}
    std::string own_name;
    std::string_view name() const override { return own_name; }
};

using Body = std::function<void(Communicator&, const KernelArgs&)>;

void notify_others(const OtherRanks& others, std::string_view what) {
    others.abort(fmt::format("rank {} stopped: {}", others.job->rank(), what));
}

/// Runs `body`. A failed collective also ends the agreement that hosts wait for.
void meet(const OtherRanks& others, const Body& body, const KernelArgs& call) {
    try {
        body(*others.job, call);
    } catch (const CommunicationError& error) {
        if (others.agreement) others.agreement->abort(error.what());
        throw;
    }
}

TaskSpec task_of(const Emitter& emitter, const Ranks& ranks, CollectiveSpec spec) {
    TaskSpec task;
    const std::shared_ptr<Health>& health = emitter.memory().health();
    task.kernel = make_kernel([others = ranks.others(), health, body = std::move(spec.body)](const KernelArgs& i) {
        if (health->failed_step >= 0) notify_others(others, "an operation of its backward failed");
        meet(others, body, i);
    });
    task.operation = std::make_shared<const CollectiveOperation>(std::move(spec.name));
    task.in = std::move(spec.in);
    task.out = std::move(spec.out);
    const ControlBlock& control = emitter.memory().control(first_device);
    task.step = control.step();
    task.agreed = control.agreed();
    task.health = health.get();
    task.collective = spec.ranks_meet;
    return task;
}

constexpr std::size_t staging_alignment = 256;

/// Steps of devices whose memory the host cannot access have no number here.
constexpr std::int64_t some_step = 0;

/// Locations of the operands of one collective in pinned memory.
class StagedOperands {
public:
    explicit StagedOperands(const CollectiveSpec& spec) {
        for (const MemoryRef& ref : spec.out) out_.push_back(take(ref));
        for (const MemoryRef& ref : spec.in) {
            std::size_t offset = nowhere;
            for (std::size_t o = 0; o < spec.out.size() && ref.bytes > 0; ++o)
                if (is_part(ref, spec.out[o])) offset = out_[o] + (ref.offset - spec.out[o].offset);
            in_.push_back(offset != nowhere ? offset : take(ref));
        }
        status_ = bytes_;
    }

    std::size_t bytes() const { return status_ + sizeof(StatusWord); }
    std::size_t in(std::size_t i) const { return in_[i]; }
    std::size_t out(std::size_t i) const { return out_[i]; }
    std::size_t status() const { return status_; }

private:
    static constexpr std::size_t nowhere = static_cast<std::size_t>(-1);
    static bool is_part(const MemoryRef& part, const MemoryRef& whole) {
        return part.workspace == whole.workspace && part.memory == whole.memory && part.offset >= whole.offset &&
               part.offset + part.bytes <= whole.offset + whole.bytes;
    }
    std::size_t take(const MemoryRef& ref) {
        const std::size_t begin = bytes_;
        bytes_ += round_up(ref.bytes, staging_alignment);
        return begin;
    }

    std::size_t bytes_ = 0, status_ = 0;
    std::vector<std::size_t> in_, out_;
};

/// A collective that runs in the order of the stream. Normally a host function on a thread of the device's driver makes
/// it: it calls no device, and only waits for other processes, which wait for no stream of this process except through
/// data already sent. A backend that may call CUDA (an MPI with GPU support queries the driver about every pointer) is
/// called by the host instead. Otherwise another thread could be in the driver, waiting for the stream with a lock that
/// such a query needs.
struct HostCall {
    OtherRanks others;
    std::shared_ptr<Health> health;
    std::string name;
    Body body;
    bool after_commits;
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
            if (after_commits) health->committing = some_step;
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
            const ExecContext context{device};
            const KernelArgs call{
                context, pointers.data(), pointers.data() + inputs, nullptr, nullptr, nullptr, nullptr, 0, 0, 0, 1};
            meet(others, body, call);
        } catch (const CommunicationError&) {
            throw;  // names rank and operation itself
        } catch (const std::exception& error) {
            notify_others(others, error.what());
            throw DeviceError(
                fmt::format("rank {} on {}: {}: {}", others.job->rank(), device.str(), name, error.what()));
        }
    }
};

void emit_staged(Emitter& emitter, Ranks& ranks, CollectiveSpec spec) {
    const StagedOperands operands(spec);
    const std::shared_ptr<Buffer> memory = ranks.staging(operands.bytes());
    Stream& stream = emitter.topology().collective();
    std::vector<void*> pointers;
    const auto stage = [&](const MemoryRef& ref, std::size_t offset) {
        pointers.push_back(ref.bytes > 0 ? static_cast<char*>(memory->data()) + offset : nullptr);
        return fixed(memory, offset, ref.bytes);
    };
    for (std::size_t i = 0; i < spec.in.size(); ++i)
        emitter.copy(stream, spec.in[i], stage(spec.in[i], operands.in(i)));
    std::vector<MemoryRef> results;
    for (std::size_t i = 0; i < spec.out.size(); ++i) results.push_back(stage(spec.out[i], operands.out(i)));
    auto* status = reinterpret_cast<StatusWord*>(static_cast<char*>(memory->data()) + operands.status());
    auto call = std::make_shared<const HostCall>(HostCall{ranks.others(), emitter.memory().health(), spec.name,
                                                          std::move(spec.body), spec.after_commits, stream.device(),
                                                          memory, std::move(pointers), spec.in.size(), status});
    emitter.schedule().call(stream, {.name = spec.name,
                                     .function = [call = std::move(call)] { (*call)(); },
                                     .collective = spec.ranks_meet,
                                     .by_host = ranks.job()->may_call_cuda()});
    for (std::size_t i = 0; i < spec.out.size(); ++i) emitter.copy(stream, results[i], spec.out[i]);
    ranks.status = fixed(Buffer::allocate(stream, sizeof(StatusWord), "status"));
    emitter.copy(stream, fixed(memory, operands.status(), sizeof(StatusWord)), *ranks.status);
}

/// Lets the communicator enqueue it.
void emit_on_gpu(Emitter& emitter, const Ranks& ranks, CollectiveSpec spec) {
    TaskSpec task;
    task.kernel =
        make_kernel([job = ranks.on_gpu(), body = std::move(spec.body)](const KernelArgs& i) { body(*job, i); });
    task.operation = std::make_shared<const CollectiveOperation>(std::move(spec.name));
    task.in = std::move(spec.in);
    task.out = std::move(spec.out);
    task.collective = spec.ranks_meet;
    emitter.run(emitter.topology().collective(), std::move(task));
}

/// GPUs continue after an aborted operation. At that point its communicator has recorded the failure.
void emit_check_of_gpu(Emitter& emitter, Ranks& ranks, bool after_commits) {
    emit_staged(emitter, ranks,
                {.name = "check",
                 .body = [job = ranks.on_gpu()](Communicator&, const KernelArgs&) { job->check(); },
                 .ranks_meet = false,
                 .after_commits = after_commits});
    emitter.wait(emitter.topology().commit(first_device), emitter.topology().collective());
}

}  // namespace

void emit_collective(Emitter& emitter, Ranks& ranks, CollectiveSpec spec) {
    if (host_access(emitter.topology().devices[0]))
        emitter.run(emitter.topology().collective(), task_of(emitter, ranks, std::move(spec)));
    else if (ranks.on_gpu() && spec.ranks_meet)
        emit_on_gpu(emitter, ranks, std::move(spec));
    else
        emit_staged(emitter, ranks, std::move(spec));
}

void emit_collective_check(Emitter& emitter, Ranks& ranks, bool after_commits) {
    if (ranks.on_gpu()) emit_check_of_gpu(emitter, ranks, after_commits);
    if (!ranks.status) return;
    const TensorMeta word = bytes_meta(sizeof(StatusWord));
    emitter.run_flat(emitter.topology().commit(first_device), first_device, make_operation(AgreeStatus{}),
                     {{word}, {*ranks.status}}, {{word}, {emitter.memory().control(first_device).agreed_ref()}});
}

RankParts::RankParts(const Topology& topology, std::vector<std::size_t> bytes, std::string_view tag)
    : bytes_(std::move(bytes)) {
    std::size_t all = 0;
    for (const std::size_t part : bytes_) {
        begin_.push_back(all);
        all += part;
    }
    memory_ = Buffer::allocate(topology.collective(), std::max<std::size_t>(all, 1), tag);
}

MemoryRef RankParts::part_of(RankIndex rank, std::size_t offset, std::size_t bytes) const {
    return fixed(memory_, at(begin_, rank) + offset, bytes);
}

void RankParts::emit_gather(Emitter& emitter, Ranks& ranks) const {
    const RankIndex rank = emitter.topology().rank;
    const MemoryRef own = part_of(rank, 0, at(bytes_, rank));
    emit_collective(
        emitter, ranks,
        {.name = "all_gather",
         .body = [bytes = bytes_](Communicator& job,
                                  const KernelArgs& call) { job.all_gather(call.in[0], call.out[0], bytes); },
         .in = {own},
         .out = {fixed(memory_)}});
}

}  // namespace lockstep
