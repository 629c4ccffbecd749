#include "lockstep/parallel/internal/exchange.h"

#include <fmt/format.h>

#include <utility>

namespace lockstep {

namespace {

struct Exchange final : Operation {
    explicit Exchange(std::string n) : own_name(std::move(n)) {}
    std::string own_name;
    std::string_view name() const override { return own_name; }
};

}  // namespace

TaskSpec exchange_task(const EngineContext& context, std::string name,
                       std::function<void(Communicator&, const Invocation&)> body, std::vector<PlaceRef> in,
                       std::vector<PlaceRef> out) {
    TaskSpec task;
    task.kernel = make_kernel([job = context.job, hook = context.hook, health = context.health,
                               body = std::move(body)](const Invocation& i) {
        if (health->failed_step >= 0) {
            const std::string reason = fmt::format("rank {} stopped: an operation of its backward failed", job->rank());
            job->abort(reason);
            if (hook) hook->abort(reason);
        }
        body(*job, i);
    });
    task.operation = std::make_shared<const Exchange>(std::move(name));
    task.in = std::move(in);
    task.out = std::move(out);
    const ControlBlock& control = context.control[0];
    task.step = control.step();
    task.agreed = control.agreed();
    task.health = context.health.get();
    task.collective = true;
    return task;
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

void RankParts::gather(const EngineContext& context, Schedule& schedule) const {
    const int rank = context.rank();
    const PlaceRef own = at(rank, 0, bytes_[static_cast<std::size_t>(rank)]);
    schedule.run(context.exchange(), exchange_task(context, "all_gather",
                                                   [bytes = bytes_](Communicator& job, const Invocation& call) {
                                                       job.all_gather(call.in[0], call.out[0], bytes);
                                                   },
                                                   {own}, {fixed(memory_, 0, memory_->bytes())}));
}

}  // namespace lockstep
